"""The phases of a hold-up study in their order, the trials that they take, and how these fit on a cluster. Pure."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from study.errors import ClusterError, RecordError
from study.machine.shape import ClusterShape
from study.planning.needs import check_fit, execution_of, label_at_start
from study.records.records import StageDecided
from study.space.sections import HoldUpSpec
from study.space.settings import Stage, Variant, spec_of
from study.space.spec import StudySpec
from study.space.throughput import shares as split

PROTOCOL = 5
"""Version of the decisions and of the rules of the verdict, kept in every decision. Raise it when the same records
would lead to another decision or verdict: a study of another version is refused."""
_NUM_SCALED = 3
"""Baselines that are made of the small scale's best setting."""
BASELINE_SEEDS = 2
"""Rank seeds that each baseline runs on; by the means over them baselines are chosen for the confirmation. One seed
would choose by luck, and the four of the stress would cost as much as the race."""
_NUM_RIVALS = 3
"""Baselines that are confirmed at the most: the best, the best scaled one, naive growth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a stage: its trials are known when it begins."""

    stage: Stage
    name: str


def phases(holdup: HoldUpSpec) -> tuple[Phase, ...]:
    """Return the phases of a study, in their order."""

    def names() -> Iterator[tuple[Stage, str]]:
        yield "calibrate", "calibrate"
        yield "search", "search"
        for number in range(1, len(holdup.race.blocks) + 1):
            yield "race", f"race {number}"
        yield "stress", "stress"
        yield "stress", "baselines"
        yield "confirm", "confirm"
        yield "confirm", "rest"
        if holdup.confirm.num_seeds_stock:
            yield "confirm", "stock"
        if holdup.measure is not None:
            yield "measure", "measure"

    return tuple(Phase(stage=stage, name=name) for stage, name in names())


def check_version(decisions: Sequence[StageDecided]) -> None:
    """Refuse decisions of another version of the protocol.

    Raises:
        RecordError: There is one.
    """
    if others := sorted({each.protocol for each in decisions} - {PROTOCOL}):
        raise RecordError(
            where="decisions",
            rule=f"this version knows version {PROTOCOL} of the hold-up protocol",
            got=", ".join(map(str, others)),
            fix="Use the version of this project that wrote the study.",
        )


def current(holdup: HoldUpSpec, decisions: Sequence[StageDecided]) -> Phase | None:
    """Return the phase whose trials run now; None at the end of the protocol."""
    every = phases(holdup)
    return every[len(decisions)] if len(decisions) < len(every) else None


def expected_trials(spec: StudySpec) -> dict[tuple[Stage, int, Variant], int]:
    """Return (stage, scale, variant) -> the most trials that a study runs; which settings is not known beforehand."""
    holdup = holdup_of(spec)
    target, small, sizes = holdup.target_scale, holdup.small_scale, holdup.confirm
    count: Counter[tuple[Stage, int, Variant]] = Counter()
    count["calibrate", target, "study"] += holdup.calibrate.num_points + 1  # the default setting
    count.update(("search", scale, "study") for scale in search_scales(spec))
    entering, finalists, seeds = holdup.race.num_settings, holdup.stress.num_settings, holdup.stress.num_seeds
    for block in holdup.race.blocks:
        count["race", target, "study"] += entering * block
        entering = max(math.ceil(entering / 2), finalists)
    for scale in spec.scales:
        run_already = min(seeds, sum(holdup.race.blocks)) if scale == target else 0
        count["stress", scale, "study"] += finalists * (seeds - run_already)
    count["stress", small, "study"] += finalists * seeds
    count["stress", target, "study"] += (len(holdup.baselines) + _NUM_SCALED) * BASELINE_SEEDS
    for scale in (target, small, *holdup.unseen_scales):
        count["confirm", scale, "study"] += sizes.num_seeds
    count["confirm", small, "study"] += sizes.num_seeds
    count["confirm", target, "study"] += _NUM_RIVALS * sizes.num_seeds_others
    if sizes.num_seeds_stock:
        count["confirm", target, "stock"] += sizes.num_seeds_stock
    if holdup.measure is not None:
        largest, repeats = max(holdup.measure.scales), holdup.measure.repeats
        for scale in holdup.measure.scales:
            count["measure", scale, "measured"] += 3 * repeats
        for scale, trials in shares(largest):
            count["measure", scale, "measured"] += trials * repeats
        count["measure", min(holdup.measure.scales), "measured"] += 2 * repeats
    return dict(count)


def num_later(spec: StudySpec) -> int:
    """Return how many whole trials race, stress and confirmation need: what a budget has to keep back."""
    expected = expected_trials(spec).items()
    return sum(count for (stage, _, _), count in expected if stage in ("race", "stress", "confirm"))


def first_half(num_seeds: int) -> int:
    """Return how many seeds of an arm run in the first half of the confirmation: five at the least, for an interval."""
    return min(max(math.ceil(num_seeds / 2), 5), num_seeds)


def search_scales(spec: StudySpec) -> list[int]:
    """Return the scale of each proposal; those between the small and the target scale take turns."""
    holdup = holdup_of(spec)
    target, small = holdup.target_scale, holdup.small_scale
    between = [scale for scale in spec.scales if scale not in (target, small)] or [target]
    turn = itertools.cycle(between)
    four = (lambda: target, lambda: small, lambda: target, lambda: next(turn))
    return [four[index % 4]() for index in range(holdup.num_settings)]


def shares(largest: int) -> list[tuple[int, int]]:
    """Return (runners, trials) that take the CPUs of one trial of `largest` runners, as two and as four trials."""
    each = {trials: split(largest + 1, trials, overhead=1, each=1) for trials in (2, 4)}  # with a main process
    return [(runners, trials) for trials, runners in each.items() if runners >= 1]


def holdup_of(spec: StudySpec) -> HoldUpSpec:
    """Return the `holdup` section of a hold-up study."""
    if spec.holdup is None:
        raise ValueError("a study without `holdup` has no stages")
    return spec.holdup


def runners_of(spec: StudySpec, variant: str, num_env_runners: int, cluster: ClusterShape) -> int:
    """Return the runner processes that stand for `num_env_runners`.

    Where the cluster has no core for each, one stock runner steps the lanes of all of them: the same number of
    environments, the same fragments, the same batch.
    """
    if variant != "stock":
        return num_env_runners
    real = spec.model_copy(update={"execution": "auto"})
    return num_env_runners if execution_of(real, num_env_runners, cluster) == "real" else 1


def why_not_measured(spec: StudySpec, cluster: ClusterShape) -> str:
    """Return why the clock cannot be measured on this cluster; empty when it can."""
    measure = holdup_of(spec).measure
    if measure is None:
        return "the space has no holdup.measure"
    real, largest = spec_of(spec, "measured"), max(measure.scales)
    try:
        check_fit(real, largest, cluster)
    except ClusterError as error:
        return error.problem.rstrip(".")
    label = label_at_start(real, cluster, num_env_runners=largest, execution="real")
    return "" if label.timing == "measured" else label.reason


def too_few_cpu_hours(holdup: HoldUpSpec, why: str, fix: str) -> ClusterError:
    """Return the refusal of a budget that cannot pay for the smallest search and the stages after it."""
    return ClusterError(
        where="holdup.cpu_hours",
        rule="must pay for the smallest search, race, stress and confirmation",
        got=f"{holdup.cpu_hours:g}; {why}",
        fix=fix,
    )
