"""The iteration-time model: seconds of each phase from runners, batch and setting, by non-negative least squares.

With V vector steps and S env steps of one runner, n runners of k environments, batch B, minibatch m, epochs E,
L learners of h threads, episodes of length l, and U = ceil(E B / (L m)) minibatches:

    runner     (V alpha + S beta)(1 + 1/l) + S wait + B gamma
    slowest    the same of the busiest runner, its first term times 1 + cv z(n), z(n) = normal quantile of
               (n - 0.375) / (n + 0.25)
    sampling   slowest + d0 n + d1 B
    learning   c0 + c1 B/L + c2 (n k / L + B / (L l)) + U (a + b m / h) [+ U r where L > 1]
    sync       s0 + s1 n
    rest       r0 + r1 n

The busiest runner takes ceil(B / (n k)) vector steps, since the trial's lanes share the batch as evenly as whole steps
allow. Runners that slow each other down by work in common (memory, shared cores) in proportion to n - 1 take
S (n - 1) = B - S more: gamma holds that, and needs environments per runner that differ, or several n, to be told.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import optimize, stats

from analysis.quantity import Basis, Row, quantity, row
from analysis.scaling.blocks import Selection, exponential
from analysis.scaling.clock import engine_in
from study.errors import AnalysisError
from study.space.parameters import PARAMETERS
from study.statistics import LEVEL, Estimate, FloatArray, t_estimate, without_interval

GROUPS: Mapping[str, tuple[str, ...]] = {
    "mean_runner": ("alpha", "beta", "gamma"),
    "collect": ("d0", "d1"),
    "learning": ("c0", "c1", "c2", "a", "b", "r"),
    "sync": ("s0", "s1"),
    "rest": ("r0", "r1"),
}
"""Phase -> its unknowns, which are fitted together: seconds of what they multiply."""
UNKNOWNS = (*(name for names in GROUPS.values() for name in names), "cv")
"""Unknowns in the order of the coefficient vector; `cv` is a pure number."""
INDEX: Mapping[str, int] = {name: index for index, name in enumerate(UNKNOWNS)}
PLACES = {phase: [INDEX[name] for name in names] for phase, names in GROUPS.items()}
METHOD = "iteration-time model, jackknife of blocks"
MOST_PARTS = 20
"""Parts that are left out in turn; of more blocks, several are one part."""
_ROUNDS = 4
"""Reweightings. The weights settle to 1e-4 within three where errors are below 30 %."""
_FLOOR = 0.1
"""Least weight denominator, as a share of the median target: a phase that takes next to no time must not rule."""


def column(frame: pd.DataFrame, name: str) -> FloatArray:
    """Return a column as an array, shape (rows,)."""
    return np.asarray(frame[name].to_numpy(dtype=np.float64))


def straggling(num_env_runners: FloatArray) -> FloatArray:
    """Return z(n), the expected largest of n standard normal numbers; 0 at n = 1, shape as given.

    Source:
        Blom, Statistical Estimates and Transformed Beta-Variables (1958).
    """
    return np.asarray(stats.norm.ppf((num_env_runners - 0.375) / (num_env_runners + 0.25)), dtype=np.float64)


def design(cells: pd.DataFrame) -> dict[str, FloatArray]:
    """Return what the unknowns multiply in cells with the columns `CELL`: by phase a matrix (cells, its unknowns).

    `slowest_runner` is the matrix of the busiest runner; `mean_wait` and `slowest_wait` are known seconds, `straggling`
    is z(n). An unknown episode length counts as endless.
    """
    n, k, batch = (column(cells, name) for name in ("num_env_runners", "num_envs_per_env_runner", "train_batch_size"))
    learners, threads = column(cells, "num_learners"), column(cells, "learner_threads")
    size, wait, length = (column(cells, name) for name in ("minibatch_size", "step_wait_s", "episode_len"))
    resets = np.where(np.isfinite(length), 1 / length, 0.0)
    even, updates = batch / (n * k), np.ceil(column(cells, "num_epochs") * batch / (learners * size) - 1e-9)
    # The busiest runner is the first: all its lanes take the whole steps, and those of the remainder one more.
    steps, whole = np.ceil(even - 1e-9), np.floor(even + 1e-9)
    busiest = whole * k + np.minimum(batch - whole * n * k, k)
    one = np.ones_like(n)
    episodes = (n * k + batch * resets) / learners
    learning = [one, batch / learners, episodes, updates, updates * size / threads, updates * (learners > 1)]
    return {
        "mean_runner": np.column_stack([even * (1 + resets), batch / n * (1 + resets), batch]),
        "slowest_runner": np.column_stack([steps * (1 + resets), busiest * (1 + resets), batch]),
        "mean_wait": wait * batch / n,
        "slowest_wait": wait * busiest,
        "straggling": straggling(n),
        "collect": np.column_stack([n, batch]),
        "learning": np.column_stack(learning),
        "sync": np.column_stack([one, n]),
        "rest": np.column_stack([one, n]),
    }


def phase_times(coefficients: FloatArray, at: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return seconds of each phase and of its parts by name, shape (…, cells); `iteration` is their sum.

    The coefficients are in the order of `UNKNOWNS`, shape (…, unknowns), the cells as `design` returns them.
    """
    times = {phase: coefficients[..., places] @ at[phase].T for phase, places in PLACES.items()}
    times["mean_runner"] = times["mean_runner"] + at["mean_wait"]
    runner, cv = coefficients[..., PLACES["mean_runner"]], coefficients[..., [INDEX["cv"]]]
    own, shared = (runner[..., part] @ at["slowest_runner"][:, part].T for part in (slice(2), slice(2, None)))
    times["slowest_runner"] = own * (1 + cv * at["straggling"]) + shared + at["slowest_wait"]
    times["sampling"] = times["slowest_runner"] + times["collect"]
    times["iteration"] = np.sum([times[name] for name in ("sampling", "learning", "sync", "rest")], axis=0)
    return times


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimeFit:
    """Fitted unknowns of the iteration-time model.

    Attributes:
        coefficients: In the order of `UNKNOWNS`, shape (1 + parts, unknowns): fitted to all runs, and then to all but
            those of some blocks, of each in turn.
        n: Blocks behind them.
        episode_len: Mean episode length of the runs, for cells that do not name one; NaN where not known.
        closure: Median over the runs of |predicted - observed| / observed iteration time.
    """

    coefficients: FloatArray
    n: int
    episode_len: float
    closure: float

    def times(self, cells: pd.DataFrame) -> FloatArray:
        """Return seconds per iteration, shape (1 + parts, cells), by each of the fits."""
        known = cells.assign(episode_len=cells["episode_len"].fillna(self.episode_len))
        return phase_times(self.coefficients, design(known))["iteration"]

    def predict(self, cells: pd.DataFrame) -> list[Estimate]:
        """Return the env steps per second of each cell; the interval is for the expected rate, not for a run's.

        Student's t interval of the logarithm by the jackknife: leaving a block out tells what the blocks differ by, in
        all cells alike or in one.

        Source:
            Miller, Biometrika 61 (1974).
        """
        logs = np.log(column(cells, "train_batch_size") / self.times(cells))
        parts = len(logs) - 1
        spreads = (parts - 1) * logs[1:].var(axis=0) if parts else np.zeros(len(cells))
        return [
            exponential(t_estimate(float(value), float(spread), parts - 1, n=self.n, level=LEVEL, method=METHOD))
            for value, spread in zip(logs[0], spreads, strict=True)
        ]


def at_scales(cell: pd.DataFrame, scales: npt.ArrayLike) -> pd.DataFrame:
    """Return one cell at other numbers of runners."""
    numbers = np.asarray(scales, dtype=np.float64)
    return cell.iloc[np.zeros(numbers.size, dtype=np.int64)].assign(num_env_runners=numbers)


def fit_iteration_time(runs: pd.DataFrame) -> IterationTimeFit:
    """Fit every phase of runs of one workload (`from_runs`) by non-negative least squares on relative error.

    Raises:
        AnalysisError: Fewer than two distinct numbers of runners, or a phase that took no time in some run.
    """
    if runs["num_env_runners"].nunique() < 2:
        rule = "the iteration-time model needs at least two different numbers of runners"
        raise AnalysisError(where="num_env_runners", rule=rule, got="one", fix="Measure a second scale.")
    for name in ("sampling_time_s", "learning_time_s", "slowest_runner_time_s", "mean_runner_time_s"):
        if not (least := column(runs, name).min()) > 0:
            rule, fix = "must be > 0 in every run: errors are relative to it", "Leave out runs that lack the phase."
            raise AnalysisError(where=name, rule=rule, got=f"{least:g}", fix=fix)
    lengths = column(runs, "episode_len")
    known = lengths[np.isfinite(lengths)]
    episode_len = float(1 / np.mean(1 / known)) if known.size else float("nan")
    blocks = list(dict.fromkeys(runs["block"]))
    num_parts = min(len(blocks), MOST_PARTS)
    part = runs["block"].map({block: at % MOST_PARTS for at, block in enumerate(blocks)})
    seen = runs.assign(episode_len=episode_len)
    left_out = [seen[part != each] for each in range(num_parts)] if num_parts > 1 else []
    coefficients = np.array([_solve(each) for each in (seen, *left_out)])
    whole = column(runs, "iteration_time_s")
    fitted = phase_times(coefficients[0], design(seen))["iteration"]
    closure = float(np.median(np.abs(fitted - whole) / whole))
    return IterationTimeFit(coefficients=coefficients, n=len(blocks), episode_len=episode_len, closure=closure)


def _solve(runs: pd.DataFrame) -> FloatArray:
    """Return the unknowns of some runs, shape (unknowns,)."""
    at, found = design(runs), np.zeros(len(UNKNOWNS))
    times = {phase: column(runs, f"{phase}_time_s") for phase in GROUPS if phase != "collect"}
    slowest = column(runs, "slowest_runner_time_s")
    times["collect"] = column(runs, "sampling_time_s") - slowest
    for phase, places in PLACES.items():
        offset = at["mean_wait"] if phase == "mean_runner" else 0.0
        found[places] = nonnegative(at[phase], times[phase], offset=offset)
    # cv: the spread >= 0 that brings the busiest runner nearest to the slowest runners' times, relative to them.
    even = phase_times(found, at)["slowest_runner"]
    lever = at["slowest_runner"][:, :2] @ found[PLACES["mean_runner"]][:2] * at["straggling"]
    weight = 1 / np.maximum(even, 1e-300) ** 2
    if (below := float(np.sum(weight * lever**2))) > 0:
        found[INDEX["cv"]] = max(float(np.sum(weight * lever * (slowest - even))) / below, 0.0)
    return found


def nonnegative(features: FloatArray, target: FloatArray, *, offset: FloatArray | float = 0.0) -> FloatArray:
    """Return theta >= 0, shape (unknowns,), that minimises sum ((offset + features @ theta - target) / fitted)^2.

    Features, >= 0, have the shape (runs, unknowns), the target and what is known of it, the offset, (runs,). Dividing
    by the fitted value keeps the fit at the mean: with lognormal noise the observed one lies 1.5 v^2 too low.
    """
    size = np.linalg.norm(features, axis=0)
    size[size == 0] = 1.0
    magnitude = np.abs(target)
    # The mean, and at last any number, where most or all of the times are 0.
    floor = _FLOOR * (float(np.median(magnitude)) or float(magnitude.mean()) or 1.0)
    fitted, theta = target, np.zeros(features.shape[1])
    for _ in range(_ROUNDS):
        weight = 1 / np.maximum(fitted, floor)
        theta = optimize.nnls(features / size * weight[:, None], (target - offset) * weight)[0]
        fitted = offset + features / size @ theta
    return np.asarray(theta / size, dtype=np.float64)


# --- what it says of one study ----------------------------------------------------------------------------------------
# It is fitted to the workload with most runs. Where a question needs one setting (batch, minibatch, epochs, envs per
# runner), it is the one that ran at most scales. Nothing is predicted beyond `MOST_EXTRAPOLATED` times the largest
# measured scale, nor by a model that does not describe its own runs.

TIMES = (
    *("iteration_time_s", "sampling_time_s", "learning_time_s", "sync_time_s", "rest_time_s"),
    *("slowest_runner_time_s", "mean_runner_time_s"),
)
SETTING = ("num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs", "num_learners", "step_wait_s")
"""k, B (over all learners), m (per learner), E, L, and the known wait of one step of one environment in seconds."""
CELL = ("num_env_runners", *SETTING, "learner_threads", "episode_len")
"""n, the setting, h, and the mean length of episodes in env steps; NaN where none ended."""
CLOCK_FREE = frozenset(
    (
        *("train_batch_size", "minibatch_times_learners", "num_epochs", "num_envs_per_env_runner", "num_learners"),
        *(name for name, each in PARAMETERS.items() if each.kind is float),
        *("orthogonal_init", "evaluation"),
    )
)
"""Keys of a fingerprint that the model takes as numbers, or that leave the clock alone."""
MOST_OFF = 0.1
"""Median relative error on its own runs above which a model does not describe them."""
MOST_EXTRAPOLATED = 2
"""Times the largest measured scale up to which a number of runners has a prediction."""
ASKED = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of runners that are predicted where they lie between measured ones, or a little beyond."""


def from_runs(measured: pd.DataFrame) -> list[pd.DataFrame]:
    """Return runs whose phases are known, one frame per workload, the largest first.

    A workload is the fingerprint without what the model takes as numbers and without what leaves the clock alone. A row
    has `CELL` (where it ran), `TIMES` (mean seconds of a timed iteration), `block` and `fingerprint`.
    """
    numbers = [name for name in (*CELL, *TIMES) if name != "step_wait_s"]
    frame = pd.DataFrame({name: measured[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in numbers})
    found = [_workload(str(text)) for text in measured["fingerprint"]]
    frame["workload"], frame["step_wait_s"] = [text for text, _ in found], [wait for _, wait in found]
    frame["fingerprint"], frame["block"] = measured["fingerprint"].astype(str).to_numpy(), measured["block"].to_numpy()
    for name in ("num_learners", "learner_threads"):
        frame[name] = np.maximum(np.nan_to_num(frame[name], nan=1.0), 1.0)
    # A setting's minibatch is what all learners take together.
    frame["minibatch_size"] = np.maximum(np.floor(frame["minibatch_size"] / frame["num_learners"]), 1.0)
    frame = frame.dropna(subset=[name for name in numbers if name != "episode_len"])
    groups = [group.drop(columns="workload").reset_index(drop=True) for _, group in frame.groupby("workload")]
    return sorted(groups, key=lambda group: -len(group))


def _workload(fingerprint: str) -> tuple[str, float]:
    """Return the part of a fingerprint that the model does not take as numbers, and the wait of a step in seconds."""
    content: dict[str, Any] = json.loads(fingerprint)
    kept = {key: value for key, value in content.items() if key not in CLOCK_FREE}
    environment = dict(kept.get("environment") or {})
    wait_ms = float(environment.pop("step_wait_ms", None) or 0.0)
    # Threads of the learner are a number of the model; the main process is the learner where it has no other.
    threads = {key: value for key, value in (kept.get("threads") or {}).items() if key.endswith("_runner")}
    return json.dumps(kept | {"environment": environment, "threads": threads}, sort_keys=True), wait_ms / 1e3


def setting_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the setting that ran at most scales; on a tie of that with most runs."""
    grouped = runs.groupby(list(SETTING), sort=True)["num_env_runners"]
    weights = pd.DataFrame({"scales": grouped.nunique(), "runs": grouped.size()})
    most = weights.sort_values(["scales", "runs"], ascending=False, kind="stable").index[0]
    mine: pd.DataFrame = runs[(runs[list(SETTING)] == list(most)).all(axis=1)]
    return mine


@quantity("model", "1", "error of the model")
def prediction_error(runs: pd.DataFrame) -> Estimate | None:
    """Median |predicted - measured| / measured iteration time where each number of runners in turn is held out.

    By the iteration-time model, of the setting that ran at most scales; None below three scales.
    """
    mine, errors = setting_of(runs), list[FloatArray]()
    if mine["num_env_runners"].nunique() < 3:
        return None
    for scale in mine["num_env_runners"].unique():
        held = mine[mine["num_env_runners"] == scale]
        # What is handed over is where, not what: an episode's length is measured there, and is taken away too.
        where = held[list(CELL)].assign(episode_len=np.nan)
        predicted = fit_iteration_time(runs[runs["num_env_runners"] != scale]).times(where)[0]
        errors.append(np.abs(predicted / column(held, "iteration_time_s") - 1))
    value, n = float(np.median(np.concatenate(errors))), mine["block"].nunique()
    return without_interval(value, n=n, level=LEVEL, method="each number of runners held out")


def model_rows(selection: Selection) -> Iterator[Row]:
    """Yield what the model says of the workload with most runs; nothing where it cannot be fitted or is far off."""
    if not (groups := from_runs(selection.runs)):
        return
    with suppress(AnalysisError):
        fit, mine = fit_iteration_time(groups[0]), setting_of(groups[0])
        if fit.closure > MOST_OFF:
            return
        cell = mine.iloc[[int(column(mine, "num_env_runners").argmax())]][list(CELL)].reset_index(drop=True)
        scales = sorted({int(each) for each in mine["num_env_runners"]})
        text, least, largest = mine["fingerprint"].mode().iloc[0], scales[0], scales[-1]
        here = selection.runs[selection.runs["fingerprint"].isin(mine["fingerprint"])].dropna(subset=["num_cpus"])
        cpus = here.groupby("num_env_runners")["num_cpus"].min().astype(float)
        place: dict[str, Any] = {"workload": selection.names[text], "engine": engine_in(text)}
        place |= {"train_batch_size": int(cell["train_batch_size"].iloc[0])}

        def at(scale: int) -> Row:
            """Return the columns of a number of runners; its CPUs grow in a line with them."""
            basis: Basis = "predicted" if least <= scale <= largest else "extrapolated"
            return {**place, "num_env_runners": scale, "num_cpus": _cpus(cpus, scale), "basis": basis}

        most = MOST_EXTRAPOLATED * largest
        asked = sorted({n for n in (*ASKED, most) if least < n <= most} - set(scales))
        for n, rate in zip(asked, fit.predict(at_scales(cell, asked)) if asked else (), strict=True):
            yield row("env_steps_per_s", rate, at(n))
        if (error := prediction_error(groups[0])) is not None:
            yield row("prediction_error", error, at(largest))


def _cpus(known: "pd.Series[float]", num_env_runners: int) -> int | None:
    """Return the CPUs of a number of runners, on the line from the fewest to the most that ran; None without any."""
    if not len(known):
        return None
    least, most = int(known.index[0]), int(known.index[-1])
    each = (known[most] - known[least]) / (most - least) if most > least else 1.0
    line = known[least] + each * (num_env_runners - least)
    return round(float(known.get(num_env_runners, line)))
