"""What a study will run on a cluster: trials, what each kind of them needs, hours; and what a person should know first.

Pure. The designs of `study.designs` make the plans; nothing here knows which kinds of study there are.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from study.errors import ClusterError
from study.machine.shape import LOCAL, ClusterShape
from study.planning.guess import evaluation_seconds, guess_seconds
from study.planning.needs import Process, check_fit, execution_of, label_at_start, num_cpus, processes
from study.records.request import TrialRequest
from study.records.timing import Label
from study.space.domains import Choices, Domain, Range
from study.space.parameters import SCALE
from study.space.settings import Variant
from study.space.spec import Execution, StudySpec
from study.space.throughput import Cell
from study.text import count, duration, listed

ELSEWHERE = "run where the CPUs are (--address, or the command `launch`)"


@dataclass(frozen=True, kw_only=True)
class TrialNeeds:
    """What the trials of one kind need."""

    num_env_runners: int
    num_trials: int
    execution: Execution
    processes: tuple[Process, ...]
    """Of one trial."""
    hours: float
    """Guess of one trial's duration."""
    label: Label
    """What its rows will say of their times."""
    alone: bool
    """Whether its trials take the whole cluster while they run."""

    @cached_property
    def num_cpus(self) -> int:
        """CPUs that one trial reserves."""
        return sum(process.num_cpus for process in self.processes)

    @cached_property
    def memory_mb(self) -> int:
        """Memory that one trial needs, over all nodes."""
        return sum(process.memory_mb for process in self.processes)


def trial_needs(
    spec: StudySpec, num_env_runners: int, cluster: ClusterShape, *, num_trials: int, iterations: int | None = None
) -> TrialNeeds:
    """Return what trials of a scale need.

    Raises:
        ClusterError: They can never fit.
    """
    check_fit(spec, num_env_runners, cluster)
    execution = execution_of(spec, num_env_runners, cluster)
    return TrialNeeds(
        num_env_runners=num_env_runners,
        num_trials=num_trials,
        execution=execution,
        processes=processes(spec, num_env_runners, execution),
        hours=guess_seconds(spec, num_env_runners, cluster, execution=execution, iterations=iterations) / 3600,
        label=label_at_start(spec, cluster, num_env_runners=num_env_runners, execution=execution),
        alone=spec.exclusive and execution == "real",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """A cell of a throughput study with what each of its trials needs."""

    cell: Cell
    needs: TrialNeeds
    """Its `hours` are those of training alone: most trials go on in processes that are up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the study will run on this cluster."""

    requests: tuple[TrialRequest, ...]
    """The trials known so far: all of them, or those that the stages of a hold-up study have asked for."""
    scales: tuple[TrialNeeds, ...]
    cluster: ClusterShape
    num_trials: int
    """Trials in all; a guess for stages that have not begun."""
    hours: float
    """Guess of the whole study's duration."""
    variants: Mapping[tuple[int, Variant], TrialNeeds] = field(default_factory=dict)
    """What trials need that do not run as the space says."""
    cells: Mapping[str, CellPlan] = field(default_factory=dict)
    """What the trials of named cells need."""

    def needs(self, request: TrialRequest) -> TrialNeeds:
        """Return what a trial needs."""
        if (cell := self.cells.get(request.name or "")) is not None:
            return cell.needs
        return self.variants.get((request.num_env_runners, request.variant)) or self.scale(request.num_env_runners)

    def scale(self, num_env_runners: int) -> TrialNeeds:
        """Return what the trials of one scale need."""
        return next(scale for scale in self.scales if scale.num_env_runners == num_env_runners)

    def processes_kept_for(self, request: TrialRequest) -> Hashable | None:
        """Return what trials have in common that can go on in each other's processes; None where each needs its own.

        Of cells these are trials of as many runners and learners, one after another: between them the runner processes
        get new environments and a new policy, which takes a second instead of a start.
        """
        if request.name in self.cells:
            return request.num_env_runners, request.num_learners
        return "study" if self.reuses_processes and request.variant == "study" else None

    @property
    def reuses_processes(self) -> bool:
        """Whether a trial's process goes on with the next trial: where all are of one process and reserve the same.

        It saves each trial the seconds of importing RLlib and torch. Elsewhere a process kept for a trial of another
        size would hold CPUs that admission takes for free.
        """
        alone = all(scale.execution == "emulated" and len(scale.processes) == 1 for scale in self.scales)
        return bool(self.scales) and alone and len({scale.num_cpus for scale in self.scales}) == 1


def total_hours(needs: Iterable[TrialNeeds], cluster: ClusterShape) -> float:
    """Return a guess of how long all trials take, as many at a time as have cores."""
    held = ((each, cluster.capacity if each.alone else min(each.num_cpus, cluster.capacity)) for each in needs)
    return sum(cpus * each.hours * each.num_trials for each, cpus in held) / cluster.capacity


def check_objective(spec: StudySpec, cluster: ClusterShape, scales: Iterable[int]) -> None:
    """Refuse to choose by a clock that is none, or by two different ones.

    Raises:
        ClusterError: Trials that the objective compares would be emulated, or some of them and others not.
    """
    ways = {scale: execution_of(spec, scale, cluster) for scale in scales}
    emulated = [scale for scale, way in ways.items() if way == "emulated"]
    objective = spec.search.objective
    mixed = objective == "cpu_s_to_target" and 0 < len(emulated) < len(ways)
    if (objective == "time_to_target_s" and emulated) or mixed:
        need = "needs real runners" if not mixed else "needs trials that are all real or all emulated"
        rule = f"{objective} {need}, and {emulated} runners would be emulated here"
        fix = "Use env_steps_to_target or final_return, set execution, or run where the CPUs are."
        raise ClusterError(where="search.objective", rule=rule, fix=fix)


def remarks(spec: StudySpec, plan: Plan) -> Iterator[str]:
    """Yield a line for each thing that the times, or the learning, of the planned trials will suffer from."""
    yield from _on_script(spec)
    if spec.algorithm in ("PPO", "A2C") and spec.learner != "rllib" and spec.learner_in_use == "rllib":
        why = spec.fused_obstacle or "JAX is missing; pip install jax"
        yield f"Learner: RLlib's own. The fused one cannot do the same: {why}."
    speeds = plan.cluster.speeds
    if spec.learns and speeds is not None and speeds.episode_steps is None and speeds.limit is None:
        seconds = spec.evaluation.num_evaluations * evaluation_seconds(spec, speeds)
        yield (
            f"Episodes: none ended in {speeds.seconds / speeds.step_s:,.0f} random steps, and the environment has no "
            f"limit. Evaluations cut one after {spec.evaluation.max_episode_steps:,} (evaluation.max_episode_steps), "
            f"and may take {duration(seconds)} of each trial. To change it: set environment.max_episode_steps."
        )
    yield from _on_clocks(spec, plan)


def _on_clocks(spec: StudySpec, plan: Plan) -> Iterator[str]:
    """Yield which trials have no clock that counts, and which nodes disturb the clocks."""
    needed = {scale.num_env_runners: scale for scale in (*plan.scales, *(cell.needs for cell in plan.cells.values()))}
    emulated = sorted(scale for scale, needs in needed.items() if needs.execution == "emulated")
    if emulated and spec.execution == "auto":
        yield (
            f"Emulated: trials of {listed(emulated)} runners. Real runners would need up to "
            f"{num_cpus(spec, emulated[-1], 'real')} CPUs, there are {count(plan.cluster.capacity, 'core')}. They "
            "learn as with real runners; their times say nothing about real runners. "
            f"To change it: {ELSEWHERE}, or --set execution=real."
        )
    crowded = {scale: needs.label for scale, needs in needed.items() if needs.label.timing == "oversubscribed"}
    if crowded:
        reasons = "; ".join(dict.fromkeys(label.reason for _, label in sorted(crowded.items())))
        yield (
            f"Oversubscribed: trials of {listed(sorted(crowded))} runners ({reasons}). Their times say nothing about "
            f"scaling. To change it: {'' if spec.not_emulated else '--set execution=emulated, '}fewer runners, start "
            f"Ray with as many CPUs as there are cores (--num-cpus), or {ELSEWHERE}."
        )
    for node in plan.cluster.nodes:
        if node.niceness > 0:
            fix = "the study without `nice`" if node.address == LOCAL else "Ray there with RAY_worker_niceness=0"
            yield (
                f"{node.address}: trials run at nice {node.niceness}, so that other programs may go before them and "
                f"their times suffer. To change it: start {fix}."
            )


def _on_script(spec: StudySpec) -> Iterator[str]:
    """Yield what of a person's script runs, what the study sets, and which parts are RLlib's own and why."""
    facts = spec.script
    if facts is None:
        return
    values = {**facts.defaults, SCALE: facts.values.get(SCALE, 0)}  # without runners a main process samples
    said = ", ".join(
        f"{name} {_in_words(domain)}{f' (script: {values[name]:g})' if name in values else ''}"
        for name, domain in spec.set_by_study.items()
    )
    own = f" It sets {listed(list(facts.settings))}." if facts.settings else ""
    yield (
        f"Script: {facts.source.file} ({facts.found_as}), {facts.algorithm} on {facts.environment}.{own} The study "
        f"sets {said or 'none of its parameters'}; seeds, evaluation, resources, and what happens when a runner is "
        "lost. All else is the script's."
    )
    if facts.runner_obstacle and spec.runner == "batched":
        yield f"Runner: RLlib's own. The batched one cannot do the same: {facts.runner_obstacle}."


def _in_words(domain: Domain) -> str:
    if isinstance(domain, Choices):
        return listed([f"{value:g}" for value in domain.choices])
    return f"{domain.low:g} to {domain.high:g}" if isinstance(domain, Range) else f"{domain:g}"
