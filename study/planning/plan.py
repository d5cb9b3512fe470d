"""What a study will run on a cluster: trials, what each kind of them needs, hours; and what a person should know first.

The designs of `study.designs` say which kinds of trials there are; nothing here knows which kinds of study there are.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from study.machine.shape import ClusterShape
from study.planning.needs import Process, check_fit, execution_of, guess_seconds, label_at_start, num_cpus, processes
from study.records.records import TrialRequest
from study.records.timing import Label
from study.space.settings import Cell, Variant
from study.space.spec import Execution, StudySpec
from study.text import count, listed

ELSEWHERE = "run where the CPUs are (--address, or the command `launch`)"


@dataclass(frozen=True, kw_only=True)
class TrialKind:
    """Trials of a study that need the same: of a scale, of a scale and variant, or of a cell."""

    spec: StudySpec
    """Under which they run."""
    num_env_runners: int
    num_trials: int
    """At the most, where later trials depend on earlier ones."""
    variant: Variant = "study"
    cell: Cell | None = None
    """Of a throughput study."""
    iterations: int | None = None
    """Limit of each trial; None for that of the space."""


@dataclass(frozen=True, kw_only=True)
class TrialNeeds(TrialKind):
    """What the trials of one kind need on a cluster."""

    execution: Execution
    processes: tuple[Process, ...]
    """Of one trial."""
    seconds: float
    """A guess of one trial's duration."""
    label: Label
    """What its rows will say of their times."""

    @classmethod
    def of(cls, kind: TrialKind, cluster: ClusterShape) -> "TrialNeeds":
        """Return what trials of a kind need on a cluster.

        Raises:
            ClusterError: They can never fit.
        """
        spec, scale = kind.spec, kind.num_env_runners
        execution = execution_of(spec, scale, cluster)
        wanted = processes(spec, scale, execution, () if cluster.speeds is None else cluster.speeds.observation_shape)
        check_fit(spec, scale, cluster, execution, wanted)
        return cls(
            **vars(kind),
            execution=execution,
            processes=wanted,
            seconds=guess_seconds(spec, scale, cluster, execution, kind.iterations),
            label=label_at_start(spec, cluster, num_env_runners=scale, execution=execution),
        )

    @cached_property
    def num_cpus(self) -> int:
        """CPUs that one trial reserves."""
        return sum(process.num_cpus for process in self.processes)

    @cached_property
    def memory_mb(self) -> int:
        """Memory that one trial needs, over all nodes."""
        return sum(process.memory_mb for process in self.processes)

    @cached_property
    def num_gpus(self) -> float:
        """GPUs, or shares of them, that one trial reserves."""
        return sum(process.num_gpus for process in self.processes)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the study will run on this cluster."""

    requests: tuple[TrialRequest, ...]
    """The trials known so far: all of them, or those that the stages of a hold-up study have asked for."""
    kinds: tuple[TrialNeeds, ...]
    """What each kind of trial needs."""
    cluster: ClusterShape
    hours: float
    """Guess of the whole study's duration."""

    @property
    def num_trials(self) -> int:
        """Trials in all; a guess for stages that have not begun."""
        return sum(each.num_trials for each in self.kinds)

    def needs(self, request: TrialRequest) -> TrialNeeds:
        """Return what a trial needs."""
        scale, known = request.num_env_runners, self._by_request
        return known.get((request.name, scale, request.variant)) or known[None, scale, request.variant]

    @cached_property
    def _by_request(self) -> dict[Hashable, TrialNeeds]:
        return {(each.cell and each.cell.name, each.num_env_runners, each.variant): each for each in self.kinds}

    def processes_kept_for(self, request: TrialRequest) -> Hashable | None:
        """Return what trials have in common that can go on in each other's processes; None where each needs its own.

        Of cells these are trials of as many runners and learners, one after another.
        """
        if self.needs(request).cell is not None:
            return request.num_env_runners, request.num_learners
        return "study" if self.reuses_processes and request.variant == "study" else None

    @cached_property
    def reuses_processes(self) -> bool:
        """Whether a trial's process goes on with the next trial: where all are of one process and reserve the same.

        It saves each trial the seconds of importing RLlib and torch. Elsewhere a process kept for a trial of another
        size would hold CPUs that admission takes for free.
        """
        own = [each for each in self.kinds if each.variant == "study"]
        alone = all(each.execution == "emulated" and len(each.processes) == 1 for each in own)
        return alone and len({each.num_cpus for each in own}) == 1


def hours_of(kinds: Sequence[TrialNeeds], cluster: ClusterShape) -> float:
    """Return a guess of how long all trials take, as many at a time as have cores; timed cells run alone."""
    capacity = cluster.capacity
    held = [capacity if each.cell else min(each.num_cpus, capacity) for each in kinds]
    return sum(cpus * each.seconds * each.num_trials for cpus, each in zip(held, kinds, strict=True)) / capacity / 3600


def largest_of(kinds: Sequence[TrialKind], cluster: ClusterShape) -> int:
    """Return the CPUs that a Ray must hand out, so that a trial of each kind can run on it."""
    ways = ((each, execution_of(each.spec, each.num_env_runners, cluster)) for each in kinds)
    return max(num_cpus(each.spec, each.num_env_runners, way) for each, way in ways)


# --- what a person should know first ---------------------------------------------------------------------------------


def remarks(spec: StudySpec, plan: Plan) -> Iterator[str]:
    """Yield a line for each thing that the times, or the learning, of the planned trials will suffer from."""
    if (facts := spec.script) is not None:
        own = f" It sets {listed(list(facts.settings))}." if facts.settings else ""
        yield (
            f"Script: {facts.source.file} ({facts.found_as}), {facts.algorithm} on {facts.environment}.{own} The study "
            "sets what the space says of `parameters`; seeds, evaluation, resources, and what happens when a runner is "
            "lost. All else is the script's."
        )
        if facts.runner_obstacle and spec.runner == "batched":
            yield f"Runner: RLlib's own. The batched one cannot do the same: {facts.runner_obstacle}."
    if spec.algorithm in ("PPO", "A2C") and spec.learner != "rllib" and spec.learner_in_use == "rllib":
        why = spec.fused_obstacle or "JAX is missing; pip install jax"
        yield f"Learner: RLlib's own. The fused one cannot do the same: {why}."
    needed = {each.num_env_runners: each for each in plan.kinds if each.variant == "study"}
    emulated = sorted(scale for scale, needs in needed.items() if needs.execution == "emulated")
    if emulated and spec.execution == "auto":
        yield (
            f"Emulated: trials of {listed(emulated)} runners. Real runners would need up to "
            f"{num_cpus(spec, emulated[-1], 'real')} CPUs, there are {count(plan.cluster.capacity, 'core')}. They "
            "learn as with real runners; their times say nothing about real runners. "
            f"To change it: {ELSEWHERE}, or --set execution=real."
        )
    crowded = {scale: needs.label.reason for scale, needs in needed.items() if needs.label.timing == "oversubscribed"}
    if crowded:
        reasons = "; ".join(dict.fromkeys(reason for _, reason in sorted(crowded.items())))
        yield (
            f"Oversubscribed: trials of {listed(sorted(crowded))} runners ({reasons}). Their times say nothing about "
            f"scaling. To change it: {'' if spec.not_emulated else '--set execution=emulated, '}fewer runners, start "
            f"Ray with as many CPUs as there are cores (--num-cpus), or {ELSEWHERE}."
        )
