"""What a study will run and what it needs: StudySpec x cluster shape -> Plan. Pure.

A trial's place in the plan (its *slot*) is fixed before anything runs: scale, seed and anchor are dealt here, evenly,
so that the sampler can never drift to the scale that learns most easily. Only the tuned parameters are left open.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from study.designs.holdup.stages import Purpose, Request, Variant
from study.designs.holdup.variants import runners_of, spec_of, why_not_measured
from study.designs.throughput.blocks import throughput_requests
from study.designs.throughput.plan_cells import CellPlan, cell_plans, study_seconds
from study.errors import ClusterError
from study.planning.guess import GUESS_FACTOR
from study.planning.needs import execution_of
from study.planning.scale_plan import ScalePlan, scale_plan
from study.planning.shape import ClusterShape
from study.records.records import StageDecided
from study.space.domains import Choices, Range
from study.space.holdup import HoldUpSpec
from study.space.parameters import SCALE, Value
from study.space.spec import StudySpec
from study.text import cpu_hours as in_cpu_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One planned trial: everything about it that no sampler may choose."""

    trial: int
    """Number in the plan, from 0."""
    num_env_runners: int
    iterations: int | None
    seed: int
    anchor: str | None = None
    index_at_scale: int = 0
    """Number among the trials of its scale, from 0; in a hold-up study among the proposals there."""
    given: Mapping[str, Value] = field(default_factory=dict)
    """Tuned parameters that an anchor or the grid fixes; the sampler fills in the rest."""
    stage: Purpose | None = None
    """Stage of a hold-up study, or `throughput`."""
    rule: Mapping[str, Value] | None = None
    """In a hold-up or throughput study the complete setting, when no sampler is asked."""
    told: bool = True
    """Whether Optuna knows of this trial."""
    variant: Variant = "study"
    group: int | None = None
    """Trials of one group run side by side, and nothing else does meanwhile."""
    num_learners: int | None = None
    """Learner processes; None for the space's."""
    first_episode: int = 0
    """Number of the first evaluation episode that it plays."""


def deal_slots(spec: StudySpec) -> tuple[Slot, ...]:
    """Return the planned trials in their order.

    Anchors come first. Then come blocks with one trial of every scale (and every length), shuffled within the block,
    all on the same seed, so that neither seed nor time of day is confounded with scale. A longer plan begins with the
    shorter one, whatever `num_trials` is.
    """
    if spec.holdup is not None:
        raise ValueError("a hold-up study asks for its trials stage by stage")  # a mistake of ours
    if spec.kind == "throughput":
        return slots_of(throughput_requests(spec))
    if spec.search.sampler == "grid":
        unnumbered: Iterator[Slot] = _grid(spec)
    else:
        unnumbered = itertools.islice(itertools.chain(_anchors(spec), _blocks(spec)), spec.search.num_trials)
    at_scale: Counter[int] = Counter()
    slots = []
    for trial, slot in enumerate(unnumbered):
        slots.append(replace(slot, trial=trial, index_at_scale=at_scale[slot.num_env_runners]))
        at_scale[slot.num_env_runners] += 1
    return tuple(slots)


def _cells(spec: StudySpec) -> list[tuple[int, int | None]]:
    return list(itertools.product(spec.scales, spec.iterations_axis))


def _anchors(spec: StudySpec) -> Iterator[Slot]:
    for anchor in spec.search.baselines:
        given = {name: value for name, value in anchor.parameters.items() if name in spec.tuned}
        scale = anchor.parameters.get(SCALE)
        for num_env_runners, iterations in _cells(spec):
            if scale in (None, num_env_runners):
                yield Slot(
                    trial=-1,
                    num_env_runners=num_env_runners,
                    iterations=iterations,
                    seed=spec.search.seeds[0],
                    anchor=anchor.name,
                    given=given,
                )


def _blocks(spec: StudySpec) -> Iterator[Slot]:
    cells, seeds = _cells(spec), spec.search.seeds
    for block in itertools.count():
        rng = np.random.default_rng([spec.search.sampler_seed, block])
        for cell in rng.permutation(len(cells)):
            num_env_runners, iterations = cells[cell]
            yield Slot(trial=-1, num_env_runners=num_env_runners, iterations=iterations, seed=seeds[block % len(seeds)])


def _grid(spec: StudySpec) -> Iterator[Slot]:
    names = list(spec.tuned)
    values = [grid_values(spec.tuned[name]) for name in names]
    cells = list(itertools.product(_cells(spec), itertools.product(*values)))
    for block, seed in enumerate(spec.search.seeds):
        rng = np.random.default_rng([spec.search.sampler_seed, block])
        for index in rng.permutation(len(cells)):
            (num_env_runners, iterations), point = cells[index]
            given = dict(zip(names, point, strict=True))
            yield Slot(trial=-1, num_env_runners=num_env_runners, iterations=iterations, seed=seed, given=given)


def grid_values(domain: Choices[int] | Choices[float] | Range[int] | Range[float]) -> list[Value]:
    """Return every value of a list, or of a range with a step."""
    if isinstance(domain, Choices):
        return list(domain.choices)
    step = domain.step
    if step is None:
        raise ValueError("a range without a step has no grid")  # a law of the space: refused when it was read
    count = round((domain.high - domain.low) / step) + 1  # a law of the space: the step divides the range
    return [min(domain.low + index * step, domain.high) for index in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the study will run on this cluster."""

    slots: tuple[Slot, ...]
    """The trials known so far: all of them, or those that the stages of a hold-up study have asked for."""
    scales: tuple[ScalePlan, ...]
    variants: Mapping[tuple[int, Variant], ScalePlan]
    """In a hold-up study: what trials need that do not run as the space says."""
    cluster: ClusterShape
    num_trials: int
    """Trials in all; a guess for stages that have not begun."""
    hours: float
    """Guess of the whole study's duration."""
    cells: Mapping[str, CellPlan] = field(default_factory=dict)
    """In a throughput study: what the trials of each cell need, by its name."""

    def leg_of(self, slot: Slot) -> Hashable | None:
        """Return what tells apart trials that can go on in each other's processes; None where each needs its own.

        In a throughput study these are trials of as many runners and learners, one after another: between them the
        runner processes get new environments and a new policy, which takes a second instead of a start.
        """
        if slot.stage == "throughput":
            together = self.cells[slot.anchor or ""].cell.num_trials > 1
            return None if together else (slot.num_env_runners, slot.num_learners)
        return "study" if self.reuses_processes and slot.variant == "study" else None

    @property
    def reuses_processes(self) -> bool:
        """Whether a trial's process goes on with the next trial: where all are of one process and reserve the same.

        It saves each trial the seconds of importing RLlib and torch. Elsewhere a process kept for a trial of another
        size would hold CPUs that admission takes for free.
        """
        alone = all(scale.execution == "emulated" and scale.num_processes == 1 for scale in self.scales)
        return bool(self.scales) and alone and len({scale.num_cpus for scale in self.scales}) == 1

    def scale(self, num_env_runners: int) -> ScalePlan:
        """Return what the trials of one scale need."""
        return next(scale for scale in self.scales if scale.num_env_runners == num_env_runners)

    def needs(self, slot: Slot) -> ScalePlan:
        """Return what a trial needs."""
        if slot.stage == "throughput":
            return self.cells[slot.anchor or ""].needs
        return self.variants.get((slot.num_env_runners, slot.variant)) or self.scale(slot.num_env_runners)


def make_plan(spec: StudySpec, cluster: ClusterShape, decisions: Sequence[StageDecided] = ()) -> Plan:
    """Return the plan of `spec` on `cluster`.

    Args:
        spec: The space.
        cluster: Where it runs.
        decisions: Of a hold-up study, so far.

    Raises:
        ClusterError: A trial can never fit; names the scale, what it needs, what there is, and the ways out.
    """
    if spec.holdup is not None:
        return _staged_plan(spec, spec.holdup, cluster, decisions)
    if spec.kind == "throughput":
        return _throughput_plan(spec, cluster)
    _check_objective(spec, cluster, spec.scales)
    slots = deal_slots(spec)
    trials = Counter(slot.num_env_runners for slot in slots)
    scales = tuple(scale_plan(spec, scale, cluster, num_trials=trials[scale]) for scale in spec.scales)
    hours = _hours(scales, cluster)
    return Plan(slots=slots, scales=scales, variants={}, cluster=cluster, num_trials=len(slots), hours=hours)


def _throughput_plan(spec: StudySpec, cluster: ClusterShape) -> Plan:
    cells, slots = cell_plans(spec, cluster), deal_slots(spec)
    plan = Plan(slots=slots, scales=(), variants={}, cluster=cluster, num_trials=len(slots), hours=0.0, cells=cells)
    order = [(cells[slot.anchor or ""], slot.group, plan.leg_of(slot)) for slot in slots]
    return replace(plan, hours=study_seconds(spec, cluster, order) / 3600)


def _hours(scales: Iterable[ScalePlan], cluster: ClusterShape) -> float:
    held = ((scale, cluster.capacity if scale.alone else min(scale.num_cpus, cluster.capacity)) for scale in scales)
    return sum(cpus * scale.hours * scale.num_trials for scale, cpus in held) / cluster.capacity


def _staged_plan(spec: StudySpec, holdup: HoldUpSpec, cluster: ClusterShape, decisions: Sequence[StageDecided]) -> Plan:
    """Return the plan of a hold-up study: its sizes are known beforehand, its settings are not."""
    from study.designs.holdup import machine, phases

    _check_objective(spec, cluster, spec.scales)
    expected = phases.expected_trials(spec)
    counts = Counter({scale: 0 for scale in (*spec.scales, *holdup.unseen_scales)})
    for (_, scale, variant), count in expected.items():
        if variant == "study":
            counts[scale] += count
    scales = tuple(scale_plan(spec, scale, cluster, num_trials=count) for scale, count in sorted(counts.items()))
    target = next(scale for scale in scales if scale.num_env_runners == holdup.target_scale)
    least = phases.num_later(spec) + phases.fewest_looks(holdup) + holdup.calibrate.num_seeds
    _check_budget(holdup, least * target.hours * min(target.num_cpus, cluster.capacity))
    variants: dict[tuple[int, Variant], ScalePlan] = {}
    possible: list[Variant] = ["stock"] if holdup.confirm.num_seeds_stock else []
    if not why_not_measured(spec, cluster):
        possible.append("measured")
    for (_, scale, variant), count in expected.items():
        if variant in possible:
            real = spec_of(spec, variant)
            runners = runners_of(spec, variant, scale, cluster)
            limit = holdup.measure.iterations if variant == "measured" and holdup.measure else None
            variants[scale, variant] = scale_plan(real, runners, cluster, num_trials=count, iterations=limit)
    return Plan(
        slots=slots_of(machine.requests_of(spec, decisions)),
        scales=scales,
        variants=variants,
        cluster=cluster,
        num_trials=sum(count for (_, _, variant), count in expected.items() if variant in ("study", *possible)),
        hours=_hours([*scales, *variants.values()], cluster),
    )


def _check_objective(spec: StudySpec, cluster: ClusterShape, scales: Iterable[int]) -> None:
    """Refuse to choose by a clock that is none, or by two different ones.

    Raises:
        ClusterError: Trials that the objective compares would be emulated, or some of them and others not.
    """
    ways = {scale: execution_of(spec, scale, cluster) for scale in scales}
    emulated = [scale for scale, way in ways.items() if way == "emulated"]
    objective = spec.search.objective
    mixed = objective in ("cpu_s_to_target", "return_and_cpu_s") and 0 < len(emulated) < len(ways)
    if (objective == "time_to_target_s" and emulated) or mixed:
        law = "needs real runners" if not mixed else "needs trials that are all real or all emulated"
        raise ClusterError(
            f"search.objective: {objective} {law}, and {emulated} runners would be emulated here. Fix: use "
            "env_steps_to_target or final_return, set execution, or run where the CPUs are."
        )


def _check_budget(holdup: HoldUpSpec, cpu_hours: float) -> None:
    """Refuse a budget that cannot pay for the confirmation even where trials take a third of the guess.

    Raises:
        ClusterError: Names what would be enough.
    """
    if holdup.cpu_hours is not None and holdup.cpu_hours < cpu_hours / GUESS_FACTOR:
        raise ClusterError(
            f"holdup.cpu_hours: must pay for the smallest search, race, stress and confirmation, got "
            f"{holdup.cpu_hours:g}; they take about {in_cpu_hours(cpu_hours)}, by a guess good to a factor of three. "
            f"Fix: set it to {cpu_hours:.1f} or more, or lower the sizes of the stages."
        )


def slots_of(requests: Sequence[Request]) -> tuple[Slot, ...]:
    """Return the planned trials of all requests, those of a hold-up study so far."""
    proposed: Counter[int] = Counter()
    slots = []
    for trial, request in enumerate(requests):
        slots.append(
            Slot(
                trial=trial,
                num_env_runners=request.num_env_runners,
                iterations=request.iterations,
                seed=request.seed,
                anchor=request.name,
                index_at_scale=proposed[request.num_env_runners],
                stage=request.stage,
                rule=request.setting,
                told=request.told,
                variant=request.variant,
                group=request.group,
                num_learners=request.num_learners,
                first_episode=request.first_episode,
            )
        )
        if request.setting is None:
            proposed[request.num_env_runners] += 1
    return tuple(slots)
