"""What the decisions of a hold-up study rest on: what trials came to, what a trial costs, what a winner has to beat."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from study.designs.search.worth import merit
from study.records.ledger import TrialRow
from study.records.records import StageDecided
from study.space.domains import Choices, Range, bounds
from study.space.parameters import PARAMETERS, REFERENCE_MINIBATCH, RULES, SCALE, Value
from study.space.sections import HoldUpSpec
from study.space.settings import batch_domain, minibatch_bounds, overlay, resolve
from study.space.spec import StudySpec

Setting = dict[str, Value]
"""A value for every parameter except the scale, or for the rule in its place."""
TIE = 0.002
"""Scores closer than this are a tie, which the lower cost decides: two thousandths of what there is to learn."""
RLLIB_DEFAULTS: Mapping[str, Value] = MappingProxyType(
    {name: value.rllib for name, value in PARAMETERS.items() if value.rllib is not None}
)
"""`PPOConfig()` of RLlib."""


def holdup_of(spec: StudySpec) -> HoldUpSpec:
    """Return the `holdup` section of a hold-up study."""
    if spec.holdup is None:
        raise ValueError("a study without `holdup` has no stages")
    return spec.holdup


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


class Known:
    """The trials of a study up to a decision.

    Attributes:
        spec: The space.
        holdup: Its section on stages.
        decisions: The decisions so far.
        rows: The trials that were run, by their numbers.
        settings: Digest -> complete setting, of everything that was run.
        large: The searched scales above the small one: those at which a setting has to hold up.
    """

    def __init__(self, spec: StudySpec, rows: Mapping[int, TrialRow], decisions: Sequence[StageDecided]) -> None:
        """Take the trials, all of which have ended."""
        self.spec, self.holdup, self.decisions, self.rows = spec, holdup_of(spec), decisions, dict(sorted(rows.items()))
        self.settings: dict[str, Setting] = {row.digest: row.rule for row in rows.values()}
        self.large = [scale for scale in spec.scales if scale != self.holdup.small_scale]

    def whole(self, *stages: str, scale: int | None = None) -> Iterator[TrialRow]:
        """Yield the trials of the whole budget that ran as the space says, in their order; by default all of them."""
        for row in self.rows.values():
            is_whole = row.variant == "study" and row.iterations is None
            if is_whole and (not stages or row.stage in stages) and scale in (None, row.num_env_runners):
                yield row

    def searched(self, scale: int) -> dict[str, float]:
        """Return setting -> mean merit of what was calibrated and searched at a scale.

        A setting that was proposed again on a seed on which it had run says nothing new: one run of them counts.
        """
        merits: dict[str, dict[int, float]] = defaultdict(dict)
        for row in self.whole("calibrate", "search", scale=scale):
            merits[row.digest].setdefault(row.seed, merit(self.spec, row))
        return {digest: mean(each.values()) for digest, each in merits.items()}

    def on_rank_seeds(self, digest: str, scale: int) -> dict[int, float]:
        """Return rank seed -> merit of a setting at a scale."""
        rows = self.whole("race", "stress", scale=scale)
        return {row.seed: merit(self.spec, row) for row in rows if row.digest == digest}

    def best(self, merits: Mapping[str, float], scales: Sequence[int] = ()) -> list[str]:
        """Return the settings, the best first; on equal merits the one whose trials at `scales` took less CPU time."""
        costs = self.costs(scales)
        return sorted(merits, key=lambda setting: (-merits[setting], costs.get(setting, math.inf), setting))

    def costs(self, scales: Sequence[int]) -> dict[str, float]:
        """Return setting -> mean CPU-seconds of its trials at the given scales."""
        spent: dict[str, list[float]] = defaultdict(list)
        for row in self.whole():
            if row.num_env_runners in scales and (seconds := row.summary.get("cpu_s_spent")) is not None:
                spent[row.digest].append(seconds)
        return {digest: mean(seconds) for digest, seconds in spent.items()}


def places(searched: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return for every setting its place among those that ran at its scale: in (0, 1), and the better the larger.

    The best of four has 7/8, the worst 1/8, one that ran alone 1/2; equal scores share the mean of their places, and a
    setting that ran at several scales has the mean of its places there. A score of 0, as of a failure, has place 0.

    Args:
        searched: For each scale, setting -> mean score.
    """
    from scipy.stats import rankdata  # takes a while; the plan of a study does without

    found: dict[str, list[float]] = defaultdict(list)
    for scores in searched:
        for setting, rank in zip(scores, rankdata(list(scores.values())), strict=True):
            found[setting].append((float(rank) - 0.5) / len(scores) if scores[setting] > 0 else 0.0)
    return {setting: sum(each) / len(each) for setting, each in found.items()}


def winner_of(holds: Mapping[str, float], costs: Mapping[str, float]) -> str:
    """Return the setting that holds up best; among those within `TIE` of it, the cheapest.

    Args:
        holds: Setting -> how well it holds up: the worst of its mean scores over the large scales.
        costs: Setting -> CPU-seconds of one trial at the target scale.
    """
    leading = max(holds.values())
    tied = [setting for setting, value in holds.items() if value >= leading - TIE]
    return min(tied, key=lambda setting: (costs.get(setting, math.inf), -holds[setting], setting))


# --- what a trial costs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """CPU-seconds of a trial: seconds for each environment step, row of a minibatch, gradient update and iteration.

    Source: the iteration-time model of the analysis, T = steps + rows + updates + a constant, fitted by non-negative
    least squares on relative errors.
    """

    per_step: float
    per_row: float
    per_update: float
    per_iteration: float
    error: float
    """Median relative error on the trials that it was fitted to."""

    def predict(self, setting: Mapping[str, Value], env_steps: float) -> float:
        """Return the CPU-seconds of a trial.

        Args:
            setting: RLlib's parameters at the trial's scale.
            env_steps: Environment steps of the trial.
        """
        shares = self.per_step, self.per_row, self.per_update, self.per_iteration
        return float(sum(share * count for share, count in zip(shares, _work(setting, env_steps), strict=True)))


def _work(setting: Mapping[str, Value], env_steps: float) -> tuple[float, float, float, float]:
    """Return steps, rows, updates and iterations of a trial."""
    batch, minibatch = float(setting["train_batch_size"]), float(setting["minibatch_size"])
    iterations = math.ceil(env_steps / batch)
    rows = iterations * batch * setting["num_epochs"]
    return iterations * batch, rows, rows / minibatch, float(iterations)


def cost_model(rows: Iterable[TrialRow]) -> CostModel | None:
    """Return the model that fits the calibration's trials best; None where none of them cost anything."""
    from scipy.optimize import nnls

    measured = [
        (row.setting, steps, cost)
        for row in rows
        if row.stage == "calibrate" and row.status == "finished"
        if (steps := row.summary.get("env_steps") or 0) > 0 and (cost := row.summary.get("cpu_s_spent") or 0.0) > 0
    ]
    if not measured:
        return None
    work = np.array([_work(setting, steps) for setting, steps, _ in measured], dtype=np.float64)
    costs = np.array([cost for _, _, cost in measured], dtype=np.float64)
    shares, _ = nnls(work / costs[:, None], np.ones(len(measured)))
    step, row, update, iteration = map(float, shares)
    error = float(np.median(np.abs(work @ shares / costs - 1)))
    return CostModel(per_step=step, per_row=row, per_update=update, per_iteration=iteration, error=error)


def cost_points(spec: StudySpec, count: int) -> list[Setting]:
    """Return settings at the corners of what costs: batch, minibatch and epochs; the most different ones first."""
    target = holdup_of(spec).target_scale
    batches = [int(value) for value in bounds(batch_domain(spec, target))]
    minibatches, epochs = minibatch_bounds(spec, target), [int(value) for value in bounds(spec.domain("num_epochs"))]
    corners = list(itertools.product((0, 1), repeat=3))
    order = sorted(corners, key=lambda corner: sum(corner) % 2)  # a half fraction, then the other
    return [
        {
            "train_batch_size": batches[first],
            "minibatch_size": min(minibatches[second], batches[first]),
            "num_epochs": epochs[third],
        }
        for first, second, third in itertools.islice(itertools.cycle(order), count)
    ]


# --- settings that nobody had to search for --------------------------------------------------------------------------


NUM_SCALED = 3
"""Baselines that are made of the small scale's best setting."""


def fixed_baselines(holdup: HoldUpSpec) -> dict[str, Setting]:
    """Return the baselines that need nothing of the study, by name."""
    known: dict[str, Setting] = {
        "rllib_defaults": dict(RLLIB_DEFAULTS),
        "naive_growth": overlay(RLLIB_DEFAULTS, {"steps_per_env_runner": holdup.naive_steps_per_env_runner}),
        "published": overlay(RLLIB_DEFAULTS, holdup.published),
    }
    return {name: known[name] for name in holdup.baselines}


def scaled_baselines(best_small: Mapping[str, Value], small_scale: int) -> dict[str, Setting]:
    """Return the best setting of the small scale as it would be carried to a larger one.

    `best_small_unchanged`: the same numbers. `best_small_batch_grown`: the batch grows with the runners, minibatch and
    lr stay (Beukman 2026). `best_small_minibatch_grown`: the minibatch grows with the batch, and lr with its square
    root (Hilton 2022).

    Args:
        best_small: The setting, rules included.
        small_scale: Where it is best.
    """
    numbers: Setting = {name: value for name, value in resolve(best_small, small_scale).items() if name != SCALE}
    batch, minibatch = int(numbers["train_batch_size"]), int(numbers["minibatch_size"])
    grown = overlay(numbers, {"steps_per_env_runner": max(round(batch / small_scale), 1)})
    square_root = {
        "num_minibatches": max(round(batch / minibatch), 1),
        "lr": numbers["lr"] * (REFERENCE_MINIBATCH / minibatch) ** 0.5,
        "lr_scaling_exponent": 0.5,
    }
    return {
        "best_small_unchanged": numbers,
        "best_small_batch_grown": grown,
        "best_small_minibatch_grown": overlay(grown, square_root),
    }


def default_setting(spec: StudySpec) -> Setting:
    """Return the setting of the calibration: this project's defaults where the space allows them, else its middle."""
    known = {**PARAMETERS, **RULES}
    chosen = {name: known[name].kind(_typical(domain, known[name].default)) for name, domain in spec.tuned.items()}
    return {**spec.fixed, **chosen}


def _typical(domain: Choices[int] | Choices[float] | Range[int] | Range[float], default: Value | None) -> Value:
    if isinstance(domain, Choices):
        ordered = sorted(domain.choices)
        return default if default is not None and default in ordered else ordered[len(ordered) // 2]
    if default is not None and domain.low <= default <= domain.high and domain.step is None:
        return default
    if domain.log:
        return float((domain.low * domain.high) ** 0.5)
    if domain.step is None:
        return (domain.low + domain.high) / 2
    return domain.low + round((domain.high - domain.low) / domain.step / 2) * domain.step
