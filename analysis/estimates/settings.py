"""The settings of a study: what they are called in plain words, and what they learnt.

Runs of one setting at one number of runners are replicates: they differ in nothing but their seeds, and two of one seed
are one. Settings are judged by the runs of the confirmation, once a hold-up study has any: the other stages ran on
seeds that settings were chosen by. A failed run counts: as not solved, with a score of 0 and the return of the
environment's floor. Where the space gives no floor and reference there are no scores, since 0 may be a good return
there.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from analysis.fingerprint import fields, in_words, value_in_words
from analysis.load import StudyData
from analysis.quantity import Basis, declare, quantity
from analysis.scaling.blocks import as_int, as_text, at_their_scale, texts
from study.errors import StudyError
from study.records.folder import StudyFolder
from study.space.parameters import PARAMETERS, SCALE
from study.space.settings import BEST_SMALL, BEST_SMALL_RLLIB, WINNER, WINNER_RLLIB
from study.space.spec import StudySpec
from study.statistics import BoolArray, Estimate, FloatArray, iqm_interval, mean_interval, rate_interval
from study.text import count

DAMAGE = (AttributeError, LookupError, TypeError, ValueError)
"""What looking into a damaged certificate raises."""


def certificate_of(data: StudyData) -> dict[str, Any] | str:
    """Return the certificate: the written one, else one made from the records; or why there is none."""
    if data.kind != "holdup":
        return (
            "No certificate: this study asks for no setting that holds up. A space with a `holdup` section does: "
            "python run_study.py --space holdup_small.yaml"
        )
    folder = data.folder or StudyFolder(Path(data.source))
    from study.designs.holdup.certificate import make_certificate  # SciPy's, for a second

    try:
        if folder.certificate.exists():
            content: dict[str, Any] = json.loads(folder.certificate.read_text())
            return content
        return make_certificate(folder)
    except (json.JSONDecodeError, RecursionError) as error:
        write = f"python -m study certificate write {shlex.quote(str(folder.path))}"
        return f"No certificate. {folder.certificate} must be JSON, got a damaged file ({error}). Run: {write}"
    except (StudyError, OSError, ValueError) as error:
        return f"No certificate. {error}"


def estimate_of(content: Mapping[str, Any] | None) -> Estimate | None:
    """Return an estimate as it was before it became JSON: an open end is null there."""
    if content is None:
        return None
    ends = {"low": float("-inf"), "high": float("inf")} | {k: v for k, v in content.items() if v is not None}
    return Estimate(**ends)


declare(
    "certificate",
    "solved_last",
    "1",
    "solved",
    "Share of runs at the target at the worst of the last three evaluations.",
)


LIMIT = "max_iterations"
"""Column that tells settings apart too: runs that were given less training are no replicates of the others."""
_FIRST = (
    *("train_batch_size", "minibatch_size", "num_epochs", "num_envs_per_env_runner"),
    *("lr", "gamma", "lambda", "clip_param", "entropy_coeff"),
)
TOLD = (*_FIRST, *(name for name in PARAMETERS if name not in (*_FIRST, SCALE)), LIMIT)
"""What tells settings apart, in the order in which a name has them: all that a space can vary."""
ARMS: Mapping[str, str] = MappingProxyType(
    {
        WINNER: "the chosen setting",
        WINNER_RLLIB: "the chosen setting, RLlib's own engine",
        BEST_SMALL: "the best of {small}",
        BEST_SMALL_RLLIB: "the best of {small}, RLlib's own engine",
        "best_small_unchanged": "the best of {small}, unchanged",
        "best_small_batch_grown": "the best of {small}, batch grown",
        "best_small_minibatch_grown": "the best of {small}, minibatch grown",
        "naive_growth": "RLlib's defaults, batch grown",
        "published": "the published setting",
        "default": "this project's defaults",
    }
)
"""Arm or baseline in the records -> its name in plain words; `{small}` is the small scale of a hold-up study."""
MOST_SETTINGS = 1_000
"""Settings that are looked at, those with the most runs first and of these the best; `Study.trials` has every run."""
CHOSEN_BY = "Runs on seeds that settings were chosen by: the best ones look better than they are."
"""What must be said where there is no confirmation yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The runs of one setting at one number of runners.

    `num_env_runners` are those that the lanes stand for; `runs` has one row per seed, the failed ones too. A run is
    solved from the return `target` on, a failed one counts with the `floor`; None: the space names none. `scored` says
    whether the environment has a scale of scores.
    """

    name: str
    num_env_runners: int
    runs: pd.DataFrame
    target: float | None = None
    floor: float | None = None
    scored: bool = False

    def numbers(self, name: str) -> FloatArray:
        """Return a column of the runs, shape (runs,), NaN where there is nothing."""
        return self.runs[name].to_numpy(dtype=np.float64, na_value=np.nan)

    @property
    def finals(self) -> FloatArray:
        """Return of each run, shape (runs,); a failed one has the environment's floor, NaN where that is not known."""
        return np.where(self.failed, np.nan if self.floor is None else self.floor, self.numbers("final_return"))

    @property
    def scores(self) -> FloatArray:
        """Score of each run, shape (runs,), NaN where there is none; a failed one has 0."""
        return np.where(self.failed, 0.0, self.numbers("score"))

    @property
    def solved(self) -> BoolArray:
        """Which runs end at the target, shape (runs,); without a target, which did not fail."""
        reached = self.target is None or self.numbers("final_return") >= self.target
        return np.asarray(~self.failed.to_numpy(dtype=bool) & reached)

    @property
    def failed(self) -> "pd.Series[bool]":
        """Which of its runs failed."""
        return self.runs["status"].eq("failed").fillna(False)

    @property
    def order(self) -> tuple[float, float, float, int, str]:
        """Place among others, the best first: by mean score (a failed run is 0), return, steps to the target.

        Where the environment has no scale of scores, those come first of which fewer runs failed.
        """
        scores = self.runs["score"].astype("Float64")
        scored = scores[~self.failed].notna().any()
        first = -float(scores.where(~self.failed, 0.0).fillna(0.0).mean()) if scored else float(self.failed.mean())
        returns, steps = self.runs["final_return"].mean(), self.runs["env_steps_to_target"].mean(skipna=False)
        worst = [np.inf if pd.isna(each) else float(each) for each in (-returns, steps)]
        return first, worst[0], worst[1], self.num_env_runners, self.name

    def row(self) -> dict[str, Any]:
        """Return the columns of its rows in the long frame."""
        runs = self.runs
        environments = {fields(str(each)).get("environment.id") for each in runs["fingerprint"].unique()}
        emulated = bool((runs["execution"].eq("emulated") | runs["stands_for_runners"].notna()).any())
        return {
            "workload": str(environments.pop()) if len(environments) == 1 else "",
            "arm": self.name,
            "num_env_runners": self.num_env_runners,
            "num_cpus": None if emulated else as_int(runs, "num_cpus"),
            "train_batch_size": as_int(runs, "train_batch_size"),
            "basis": "emulated" if emulated else basis_of(runs.loc[~self.failed, "timing"].dropna()),
            "engine": as_text(runs, "engine") or "",
            "fingerprint": as_text(runs, "fingerprint") or "",
            "n_failed": int(self.failed.sum()),
        }


def basis_of(labels: Iterable[str]) -> Basis:
    """Return on what numbers of runs rest, by the labels of their clocks: of several by the one that says least."""
    found = {*labels}
    order: tuple[Basis, ...] = ("emulated", "oversubscribed", "tainted")
    return next((each for each in order if each in found), "measured")


def arm_in_words(name: str, small: int | None, *, unnamed: str | None = None) -> str:
    """Return what an arm or baseline of the records is called, without its scale; `unnamed` where `ARMS` has none."""
    known = ARMS.get(name, name.replace("_", " ") if unnamed is None else unnamed)
    return known.format(small="few runners" if small is None else count(small, "runner"))


def learning_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the ended runs that had their whole budget and that settings may be judged by, at their scale.

    The column `setting` says which of them learn by one setting. Of runs of one setting and scale those of the longest
    training are taken, and of these one of each seed: a failed one, else the first.
    """
    confirmed = runs["stage"].eq("confirm").fillna(False).astype(bool)
    # Runs of a throughput study are cut short for the clock: they say nothing about the return.
    here = runs[confirmed] if confirmed.any() else runs[texts(runs, "stage") != "throughput"]
    here = at_their_scale(here[here["status"].isin(["finished", "failed"])]).dropna(subset=["num_env_runners"])
    if here.empty:
        return here.assign(setting=pd.Series(dtype=object))
    here = here.assign(setting=_keys(here))
    longest = here.groupby(["setting", "num_env_runners"])[LIMIT].transform("max")
    here = here[here[LIMIT].eq(longest).fillna(False) | here[LIMIT].isna()]
    first = here.assign(_ended=here["status"].eq("finished")).sort_values(["_ended", "trial"], kind="stable")
    again = first.duplicated(["setting", "num_env_runners", "seed"]) & first["seed"].notna()
    return here.loc[~again.sort_index()]


def runs_per_setting(runs: pd.DataFrame) -> list[int]:
    """Return how many seeds each setting has at each number of runners, of `learning_runs`."""
    return learning_runs(runs).groupby(["setting", "num_env_runners"]).size().tolist()


def settings_of(runs: pd.DataFrame, spec: StudySpec | None = None) -> list[Setting]:
    """Return the settings of `learning_runs`: most seeds first, of equally many the best score, then the best return.

    The space says by what runs are judged. There are at most `MOST_SETTINGS`.
    """
    here = learning_runs(runs)
    if here.empty:
        return []
    names = _names(here, spec.holdup.small_scale if spec and spec.holdup else None)
    scores = here["score"].astype("Float64").where(here["status"].ne("failed"), 0.0).fillna(0.0).astype(float)
    # The return alone tells settings apart where nothing is scored.
    cells = here.assign(score=scores, final=here["final_return"].astype(float))
    grouped = cells.groupby(["setting", "num_env_runners"], sort=True)
    order = grouped.agg(size=("score", "size"), score=("score", "mean"), final=("final", "mean")).reset_index()
    by = ["size", "score", "final", "num_env_runners", "setting"]
    order = order.sort_values(by, ascending=[False] * 3 + [True] * 2).head(MOST_SETTINGS)
    places, environment = grouped.indices, spec.environment if spec else None
    judged: dict[str, Any] = {"scored": spec.is_scored if spec else bool(runs["score"].notna().any())}
    judged |= {name: getattr(environment, name, None) for name in ("target", "floor")}
    return [
        Setting(name=names[key, int(scale)], num_env_runners=int(scale), runs=here.iloc[places[key, scale]], **judged)
        for key, scale in zip(order["setting"], order["num_env_runners"], strict=True)
    ]


def _keys(runs: pd.DataFrame) -> "pd.Series[Any]":
    """Return the identity of each run's setting: its digest and variant, else what the learner was given."""
    parts = [runs[name].astype("string").fillna("-") for name in TOLD]
    written = pd.Series(list(map(" ".join, zip(*parts, strict=True))), index=runs.index, dtype=object)
    digest, variant = texts(runs, "digest"), texts(runs, "variant")
    known = pd.Series([f"{one} {two}" if one else "" for one, two in zip(digest, variant, strict=True)], runs.index)
    return written.where(known == "", known)


def _names(runs: pd.DataFrame, small: int | None) -> dict[tuple[str, int], str]:
    """Return a name for each setting and scale: that of its arm, else the values that tell it from other settings."""

    def shared(groups: Any) -> dict[Any, Any]:
        """Return group -> the value that all its rows share, for the groups that have one."""
        return dict(groups.first()[groups.nunique() == 1].items())

    by_key = runs.assign(_per_runner=runs["train_batch_size"] / runs["num_env_runners"]).groupby("setting")
    varying = [name for name in TOLD if runs[name].nunique() > 1]
    same = {name: shared(by_key[name]) for name in (*varying, "_per_runner")}

    def written(key: str, told: Iterable[str]) -> str:
        words = [f"{in_words(name)} {value_in_words(same[name][key])}" for name in told if key in same[name]]
        if "train_batch_size" in told and key not in same["train_batch_size"] and key in same["_per_runner"]:
            words.insert(0, f"batch {value_in_words(same['_per_runner'][key])} per runner")
        return ", ".join(words)

    places = runs.groupby(["setting", "num_env_runners"])
    arms = shared(places["baseline"])
    names: dict[tuple[str, int], str] = {}
    taken: dict[str, list[str]] = {}
    for key, scale in places.size().index.tolist():
        arm = arm_in_words(str(arms.get((key, scale))), small, unnamed="")
        name = arm or written(key, varying) or "the only setting"
        if arm and LIMIT in varying and key in same[LIMIT]:
            name += f", {written(key, [LIMIT])}"
        others = taken.setdefault(name, [])
        if key not in others:
            others.append(key)
        number = others.index(key) + 1
        names[str(key), int(scale)] = name if number == 1 else f"{name} (no. {number})"
    return names


@quantity("setting", "return", "return")
def final_return(at: Setting) -> Estimate | None:
    """Interquartile mean of the runs' final greedy evaluation returns; a failed run has the environment's floor."""
    known = np.isfinite(at.finals)
    return iqm_interval(at.finals[known], solved=at.solved[known]) if known.any() else None


@quantity("setting", "1", "score")
def score(at: Setting) -> Estimate | None:
    """Mean score of the runs, 0 = floor, 1 = reference; a failed run is 0."""
    return mean_interval(at.scores, solved=at.solved) if at.scored and np.isfinite(at.scores).all() else None


@quantity("setting", "1", "solved")
def solved_share(at: Setting) -> Estimate | None:
    """Share of the runs that end at the target; a failed run does not."""
    known = at.target is not None and (np.isfinite(at.numbers("final_return")) | at.failed).any()
    return rate_interval(int(at.solved.sum()), len(at.runs)) if known else None


@quantity("setting", "CPU s", "CPU time")
def cpu_s_spent(at: Setting) -> Estimate | None:
    """Mean CPU seconds that a run spent in training."""
    spent = at.numbers("cpu_s_spent")
    spent = spent[np.isfinite(spent)]
    return mean_interval(spent) if spent.size else None


# --- learning curves -------------------------------------------------------------------------------------------

GRID_POINTS = 24
"""Points of a curve whose runs were evaluated at different times."""
COLUMNS = ("arm", "num_env_runners", "at", "value", "low", "high", "level", "n", "n_failed", "method")


def learning_curves(settings: Iterable[Setting], evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return the curve of each setting by greedy evaluations: a row per setting and env step, columns `COLUMNS`."""
    rows: list[tuple[object, ...]] = []
    known = evaluations.dropna(subset=["eval_return", "env_steps"])
    for setting in settings:
        failed = set(setting.runs.loc[setting.failed, "trial"])
        tracks = []
        for trial in sorted(setting.runs["trial"]):
            here = known[known["trial"] == trial].sort_values("env_steps")
            at, values = here["env_steps"].to_numpy(float), here["eval_return"].to_numpy(float)
            if trial in failed:
                if setting.floor is None:
                    continue
                # The evaluation after the last one is the first that the run did not live to see.
                after = np.nextafter(at[-1], np.inf) if at.size else 0.0
                at, values = np.append(at, after), np.append(values, setting.floor)
            if at.size:
                tracks.append((at, values))
        for place, values in _along(tracks):
            found = iqm_interval(values, solved=None if setting.target is None else values >= setting.target)
            ends = [end if np.isfinite(end) else None for end in (found.low, found.high)]
            numbers = (found.value, *ends, found.level, found.n, len(failed), found.method)
            rows.append((setting.name, setting.num_env_runners, place, *numbers))
    types = {"arm": "string", "num_env_runners": "Int64", "n": "Int64", "n_failed": "Int64", "method": "string"}
    types |= dict.fromkeys(("at", "value", "low", "high", "level"), "Float64")
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object).astype(types)


def _along(tracks: list[tuple[FloatArray, FloatArray]]) -> list[tuple[float, FloatArray]]:
    """Return (place, value of each run; it keeps its last one), from where all evaluated more than once have one."""
    if not tracks:
        return []
    living = [track for track in tracks if track[0].size > 1] or tracks
    first = max(float(at[0]) for at, _ in living)
    last = max(float(at[-1]) for at, _ in tracks)
    places = np.unique(np.concatenate([at for at, _ in tracks]))
    places = places[(places >= first) & (places <= last)]
    if places.size > GRID_POINTS:
        places = np.linspace(first, float(places[-1]), GRID_POINTS)

    def values(here: float) -> FloatArray:
        return np.array([value[np.searchsorted(at, here, side="right") - 1] for at, value in tracks if at[0] <= here])

    return [(float(here), values(here)) for here in places]
