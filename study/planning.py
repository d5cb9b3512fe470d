"""What a study will run on a cluster: its trials, what each kind of them needs, hours; what a person should know first.

What Ray reserves, what admission counts and what a plan shows follow from the list of a trial's processes.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from study.errors import ClusterError
from study.machine.shape import LOCAL, UNKNOWN, ClusterShape, NodeShape, Speeds
from study.records.ledger import Label
from study.records.records import TrialRequest
from study.space.domains import largest, smallest
from study.space.parameters import SCALE
from study.space.sections import BudgetSpec, is_procgen
from study.space.settings import Variant, batch_domain
from study.space.spec import Execution, StudySpec
from study.text import count, duration, listed

LANE_MB = 0.3
"""Memory that an emulated trial is reckoned to need for each lane: a small Gymnasium environment with its wrappers. One
of RLlib's own runners in it fits in, too: measured, 1,024 of them with four lanes each of Acrobot-v1 add 214 MB."""
FUSED_MB = 200
"""Memory that JAX adds to the process that learns. Measured peaks of the main process, CartPole-v1: 600 MB without it,
770 MB with the fused learner, 906 MB where the process compiles a program that is not in the cache."""
LEARNT_COPIES = 4
"""Numbers of 4 bytes that a learner holds for each weight: itself, its gradient, and the two means of Adam. The main
process and each runner hold the weights once more, to act by."""
STEP_KB, PICTURE_KB = 1.2, 500.0
"""Memory of one step of a train batch in the main process. Vectors: measured, peaks of batches of 20,000 and of 320,000
steps of CartPole-v1. Pictures of 64 x 64 x 3: measured, a peak of 2.7 GB for the batch of 4,096 of coinrun_ppo.yaml,
which RLlib's own learner takes through the network as a whole."""
VECTOR, PICTURE = (8,), (64, 64, 3)
"""Observations that nobody has seen: by the space they are pictures, or perhaps a vector."""
ELSEWHERE = "run where the CPUs are (--address, or the command `launch`)"


class Process(NamedTuple):
    """What a process of a trial reserves."""

    num_cpus: int
    memory_mb: int
    num_gpus: float = 0

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray reserves."""
        return {"CPU": self.num_cpus} | ({"GPU": self.num_gpus} if self.num_gpus else {})


def processes(
    spec: StudySpec, num_env_runners: int, execution: Execution, shape: Sequence[int] = ()
) -> tuple[Process, ...]:
    """Return the processes of a trial: the main one, those that step environments, the learners.

    Emulated, the main process steps all environments. `shape` is that of an observation, as far as it is known.
    """
    resources, pictures = spec.resources, _sees_pictures(spec)
    weights_mb = network_size(spec, shape)[0] * 4 // 2**20
    learning_mb = LEARNT_COPIES * weights_mb + (FUSED_MB if spec.learner_in_use == "fused" else 0)
    batch_kb = int(largest(batch_domain(spec, num_env_runners))) * (PICTURE_KB if pictures else STEP_KB)
    main_mb, samplers = resources.memory_main_mb + int(batch_kb / 1024) + weights_mb, num_env_runners
    if execution == "emulated":
        lanes, samplers = num_env_runners * int(largest(spec.domain("num_envs_per_env_runner"))), 0
        main_mb += round(LANE_MB * lanes)
    sampler = Process(resources.num_cpus_per_env_runner, resources.memory_per_env_runner_mb + weights_mb)
    if resources.num_learners == 0:
        main = Process(resources.num_cpus_for_main_process, main_mb + learning_mb, resources.num_gpus_per_learner)
        return (main, *[sampler] * samplers)
    learner_mb = resources.memory_main_mb + learning_mb
    learner = Process(resources.num_cpus_per_learner, learner_mb, resources.num_gpus_per_learner)
    main = Process(resources.num_cpus_for_main_process, main_mb)
    return (main, *[sampler] * samplers, *[learner] * resources.num_learners)


DEFAULT_FILTERS = {
    10: ((16, 5, 2), (32, 5, 2)),
    42: ((16, 4, 2), (32, 4, 2), (256, 11, 1)),
    64: ((16, 4, 2), (32, 4, 2), (64, 4, 2), (128, 4, 2)),
    84: ((16, 8, 4), (32, 4, 2), (256, 11, 1)),
    96: ((16, 8, 4), (32, 4, 2), (256, 11, 2)),
}
"""Height of a square picture -> RLlib's own convolutions, `(filters, kernel, stride)` each, with padding to the same
size (`ray.rllib.models.utils.get_filter_config`, Ray 2.60)."""


def network_size(spec: StudySpec, shape: Sequence[int]) -> tuple[int, int]:
    """Return the weights of policy and value function without their last layers, and the multiply-adds of both.

    `shape` is that of an observation. Shared layers count once: of pictures the convolutions alone are shared.
    """
    model, shape = spec.model, shape or (PICTURE if _sees_pictures(spec) else VECTOR)
    shared, weights, multiply_adds, features = 1 if model.vf_share_layers else 2, 0, 0, math.prod(shape)
    dense = shared
    if len(shape) == 3:
        height, width, channels = shape
        for filters, kernel, stride in model.convolutions or DEFAULT_FILTERS.get(height, ()):
            height, width = math.ceil(height / stride), math.ceil(width / stride)
            layer = shared * kernel * kernel * channels * filters
            weights, multiply_adds, channels = weights + layer, multiply_adds + layer * height * width, filters
        dense, features = 2, height * width * channels
    for units in model.fcnet_hiddens:
        layer = dense * features * units
        weights, multiply_adds, features = weights + layer, multiply_adds + layer, units
    return weights, multiply_adds


def _sees_pictures(spec: StudySpec) -> bool:
    return is_procgen(spec.environment.id) or spec.model.conv_net is not None or spec.model.conv_filters is not None


def num_cpus(spec: StudySpec, num_env_runners: int, execution: Execution) -> int:
    """Return the CPUs that a trial reserves."""
    return sum(process.num_cpus for process in processes(spec, num_env_runners, execution))


# --- how far and how long ---------------------------------------------------------------------------------------------

_ROUNDING = 1e-9
"""Shares of a budget are sums of floats; a point missed by less counts as reached."""


def progress_of(budget: BudgetSpec, limit: int | None, *, env_steps: int, iterations: int, time_s: float) -> float:
    """Return the largest share of a limit that a trial has used so far, in [0, 1]; at 1 it ends.

    `limit` are the iterations of a trial whose place in the plan limits them; None for no such limit.
    """
    used = ((env_steps, budget.env_steps), (iterations, limit), (time_s, budget.time_s))
    share = max(amount / most for amount, most in used if most is not None)
    return 1.0 if share >= 1 - _ROUNDING else share


def evaluation_due(before: float, after: float, num_evaluations: int) -> bool:
    """Return whether an evaluation point lies in (`before`, `after`]; the points are 1/n, 2/n, …, 1."""
    return math.floor(after * num_evaluations + _ROUNDING) > math.floor(before * num_evaluations + _ROUNDING)


_SAMPLED_S = {"stock": 200e-6, "batched": 30e-6}
"""Seconds of a step besides the environment's own, on one core, with two small hidden layers and a few lanes."""
_LEARNT_S = {"rllib": 25e-6, "fused": 2e-6}
"""Seconds of a step in each epoch, in minibatches of 128."""
_MULTIPLY_ADDS_PER_S = 35e9
"""Of a network, by one core. Measured with PyTorch 2.13 on one core of an AMD EPYC: 30e9 with RLlib's own convolutions
on 42 x 42 pixels, 37e9 with those of DQN on 64 x 64. An update takes three times those of acting."""
_SMALL = Speeds(step_s=13e-6, episode_steps=0.0)
"""Acrobot-v1, which stands for an environment that was not measured."""
_START_S, _PROCESS_S = 6.0, 2.5
"""Start-up of a trial, and CPU seconds in which each further process is imported."""


def guess_seconds(
    spec: StudySpec, num_env_runners: int, cluster: ClusterShape, execution: Execution, iterations: int | None = None
) -> float:
    """Return a guess of the duration of one trial in seconds, in the middle of the space and good to a factor of five.

    It rests on the speed of the environment as it was measured, if `cluster` has it; `iterations` limit the trial, or
    the space does.
    """
    batch, epochs = (
        (smallest(domain) + largest(domain)) / 2
        for domain in (batch_domain(spec, num_env_runners), spec.domain("num_epochs"))
    )
    speeds, budget, evaluation = cluster.speeds or _SMALL, spec.budget, spec.evaluation
    network_s = network_size(spec, speeds.observation_shape)[1] / _MULTIPLY_ADDS_PER_S
    step_s = speeds.step_s + _SAMPLED_S[spec.runner_in_use] + network_s
    sampling_s = step_s
    if execution == "real":  # the lanes of a runner wait one after another, runners side by side
        sampling_s = step_s / min(num_env_runners, cluster.capacity)
        sampling_s += spec.environment.step_wait_ms / 1e3 / num_env_runners
    trained_s = sampling_s + epochs * (_LEARNT_S[spec.learner_in_use] + 3 * network_s)
    limit = budget.iterations if iterations is None else iterations
    limits = [budget.time_s, limit and trained_s * batch * limit, budget.env_steps and trained_s * budget.env_steps]
    start_s = _START_S + _PROCESS_S * len(processes(spec, num_env_runners, execution)) / cluster.capacity
    played = evaluation.num_evaluations * evaluation.episodes if spec.learns else 0
    length = math.inf if speeds.episode_steps is None else speeds.episode_steps
    evaluated_s = played * min(length, evaluation.max_episode_steps) * step_s
    return start_s + min(seconds for seconds in limits if seconds is not None) + evaluated_s


# --- where it runs ----------------------------------------------------------------------------------------------------


def execution_of(spec: StudySpec, num_env_runners: int, cluster: ClusterShape) -> Execution:
    """Return how a trial of this scale runs on this cluster.

    `auto` looks at the cores and never at the CPUs that Ray hands out. Where a search has several scales and only one
    of them has room, that is emulated too: its times would have no others to be compared with.
    """
    if spec.execution != "auto":
        return spec.execution
    if spec.not_emulated or spec.environment.step_wait_ms > 0:
        return "real"  # environments that wait can share a core
    scales = {*spec.scales, num_env_runners}
    cores = [(node.capacity, node.memory_mb, node.num_gpus) for node in cluster.nodes]
    spread = spec.resources.placement == "spread"
    roomy = {scale for scale in scales if fits(processes(spec, scale, "real"), cores, spread=spread)}
    enough = 1 if spec.kind == "throughput" or len(scales) == 1 else 2
    return "real" if num_env_runners in roomy and len(roomy) >= enough else "emulated"


def fits(wanted: Sequence[Process], nodes: Sequence[tuple[int, int, float]], *, spread: bool) -> bool:
    """Return whether Ray finds a node for every process, on an idle cluster.

    Ray takes the largest process first, to the node with the largest share left. PACK puts there what else fits, and
    does not come back to the node; SPREAD takes another node as long as one has room. Neither tries a second way: a
    trial that could be placed otherwise waits for ever. Ray reserves no memory; the plan reckons with it all the same.

    `nodes` are the CPUs, MB of memory and GPUs of each; the strategy is SPREAD where `spread` is set, else PACK.

    Source: Ray 2.60, src/ray/raylet/scheduling/policy, bundle_scheduling_policy.cc and scorer.cc.
    """
    free: dict[int, tuple[float, ...]] = dict(enumerate(nodes))
    untouched = list(free)

    def has_room(node: int, process: Process) -> bool:
        return all(needed <= there for needed, there in zip(process, free[node], strict=True))

    def share_left(node: int) -> float:
        pairs = ((free[node][0], left[0].num_cpus), (free[node][2], left[0].num_gpus))
        return sum((there - needed) / there for there, needed in pairs if needed)

    left = sorted(wanted, key=lambda each: (each.num_gpus, each.num_cpus, each.memory_mb), reverse=True)
    while left:
        roomy = [node for node in untouched if has_room(node, left[0])]
        if spread:
            roomy = roomy or [node for node in free if has_room(node, left[0])]
        if not roomy:
            return False
        chosen, waiting = max(roomy, key=share_left), list[Process]()
        for process in left[:1] if spread else left:
            if has_room(chosen, process):
                free[chosen] = tuple(there - needed for there, needed in zip(free[chosen], process, strict=True))
            else:
                waiting.append(process)
        left = left[1:] if spread else waiting
        untouched = [node for node in untouched if node != chosen]
    return True


def _check_fit(spec: StudySpec, scale: int, cluster: ClusterShape, execution: Execution, all_of: list[Process]) -> None:
    """Refuse a trial of these processes that can never be placed."""
    if execution == "emulated" and spec.budget.time_s is not None:
        emulated = f"{count(scale, 'runner')} would be emulated here"
        rule = f"seconds of emulated runners are not those of real ones, and {emulated}"
        fix = "Set budget.env_steps instead, or execution: real."
        raise ClusterError(where="budget.time_s", rule=rule, fix=fix)
    nodes = [(node.num_cpus, node.memory_mb, node.num_gpus) for node in cluster.nodes]
    if fits(all_of, nodes, spread=spec.resources.placement == "spread"):
        return
    total, each = Process(*map(sum, zip(*all_of, strict=True))), "; ".join(dict.fromkeys(map(_resources, all_of)))
    emulated = "" if execution == "emulated" or spec.not_emulated else ", or set execution: emulated"
    fix = f"Use smaller scales, a smaller network (model.fcnet_hiddens), more nodes, or lower resources.*{emulated}."
    if without := bool(total.num_gpus) and not any(node.num_gpus for node in cluster.nodes):
        fix = "Run where the GPUs are, or set resources.num_gpus_per_learner: 0."
    raise ClusterError(
        where=f"parameters.{SCALE}",
        rule=f"{count(scale, 'runner')} need{'s' if scale == 1 else ''} {_resources(total)} at once, every process on "
        f"one node and the largest placed first (processes of {each})",
        got=", ".join(f"{node.address} with {_resources(node)}{', no GPU' * without}" for node in cluster.nodes),
        fix=fix,
    )


def _resources(of: Process | NodeShape) -> str:
    gpus = f", {of.num_gpus:g} GPU{'s' * (of.num_gpus != 1)}" if of.num_gpus not in (0, UNKNOWN) else ""
    memory = f", {of.memory_mb} MB" if of.memory_mb != UNKNOWN else ""
    return f"{count(of.num_cpus, 'CPU')}{gpus}{memory}"


def label_at_start(
    spec: StudySpec,
    cluster: ClusterShape,
    num_env_runners: int,
    execution: Execution,
    processes_per_node: Mapping[str, int] | None = None,
) -> Label:
    """Return the label that a trial begins with: whether every process has a core of its own.

    `processes_per_node` is node address -> processes of this trial there, once they are up; None: any may get some.
    """
    if execution == "emulated":
        return Label(timing="emulated", reason=f"lanes of {count(num_env_runners, 'runner')} stepped in 1 process")
    reserved = num_cpus(spec, num_env_runners, execution)
    shared = _shared_cores(cluster, reserved, processes_per_node)
    if not shared:
        return Label(timing="measured", reason=f"{reserved} CPUs reserved of {cluster.capacity} cores")
    if wait := spec.environment.step_wait_ms:
        return Label(timing="measured", reason=f"environments wait {wait:g} ms a step; {shared}", provisional=True)
    return Label(timing="oversubscribed", reason=shared)


def _shared_cores(cluster: ClusterShape, reserved: int, processes_per_node: Mapping[str, int] | None) -> str:
    """Return how it is known that processes share cores; empty when each has its own."""
    if reserved > cluster.capacity:
        return f"{reserved} CPUs reserved, {cluster.capacity} cores"
    nodes = {node.address: node for node in cluster.nodes}
    if LOCAL in nodes:
        return ""  # on a Ray of our own nobody else runs; elsewhere others may hold the CPUs that do not exist
    used = dict.fromkeys(nodes, 1) if processes_per_node is None else processes_per_node
    for address in (address for address, number in used.items() if number):
        node = nodes.get(address)
        if node is None:
            return f"{address} joined after the study began: its cores are not known"
        if node.num_cpus > node.physical_cpus:
            return f"{address}: Ray hands out {node.num_cpus} CPUs, {node.physical_cpus} cores"
    return ""


# --- the whole study --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrialKind:
    """Trials of a study that need the same: of a scale, of a scale and variant, or of a cell."""

    spec: StudySpec
    num_env_runners: int
    num_trials: int
    """At the most, where later trials depend on earlier ones."""
    variant: Variant = "study"
    cell: str | None = None
    """Name of the cell of a throughput study."""
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
        """Return what trials of a kind need on a cluster; one that can never fit is a `ClusterError`."""
        spec, scale = kind.spec, kind.num_env_runners
        execution = execution_of(spec, scale, cluster)
        wanted = processes(spec, scale, execution, () if cluster.speeds is None else cluster.speeds.observation_shape)
        _check_fit(spec, scale, cluster, execution, list(wanted))
        seconds = guess_seconds(spec, scale, cluster, execution, kind.iterations)
        label = label_at_start(spec, cluster, scale, execution)
        return cls(**vars(kind), execution=execution, processes=wanted, seconds=seconds, label=label)

    @cached_property
    def total(self) -> Process:
        """What one trial reserves, over all nodes."""
        return Process(*map(sum, zip(*self.processes, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the study will run on this cluster."""

    requests: tuple[TrialRequest, ...]
    """The trials known so far: all of them, or those that the stages of a hold-up study have asked for."""
    kinds: tuple[TrialNeeds, ...]
    cluster: ClusterShape

    @property
    def num_trials(self) -> int:
        """Trials in all; a guess for stages that have not begun."""
        return sum(each.num_trials for each in self.kinds)

    @property
    def hours(self) -> float:
        """A guess of how long all trials take, as many at a time as have cores; timed cells run alone."""
        capacity = self.cluster.capacity
        held = (capacity if each.cell else min(each.total.num_cpus, capacity) for each in self.kinds)
        shares = (cpus * each.seconds * each.num_trials for cpus, each in zip(held, self.kinds, strict=True))
        return sum(shares) / capacity / 3600

    def needs(self, request: TrialRequest) -> TrialNeeds:
        """Return what a trial needs."""
        scale, known = request.num_env_runners, self._by_request
        return known.get((request.name, scale, request.variant)) or known[None, scale, request.variant]

    @cached_property
    def _by_request(self) -> dict[Hashable, TrialNeeds]:
        return {(each.cell, each.num_env_runners, each.variant): each for each in self.kinds}

    def processes_kept_for(self, request: TrialRequest) -> Hashable | None:
        """Return what trials have in common that can go on in each other's processes; None where each needs its own."""
        if self.needs(request).cell is not None:
            return request.num_env_runners, request.num_learners
        return "study" if self.reuses_processes and request.variant == "study" else None

    @cached_property
    def reuses_processes(self) -> bool:
        """Whether a trial's process goes on with the next trial, which saves the seconds of importing RLlib and torch.

        A process kept for a trial of another size would hold CPUs that admission takes for free.
        """
        own = [each for each in self.kinds if each.variant == "study"]
        alone = all(each.execution == "emulated" and len(each.processes) == 1 for each in own)
        return alone and len({each.total.num_cpus for each in own}) == 1


FEW = 3
"""Trials of a scale below which its search is hardly one."""


def remarks(spec: StudySpec, plan: Plan) -> Iterator[str]:
    """Yield a line for each thing that the times, or the learning, of the planned trials will suffer from."""
    if (facts := spec.script) is not None:
        own = f" It sets {listed(list(facts.settings))}." if facts.settings else ""
        yield (
            f"Script: {facts.source.file} ({facts.found_as}), {facts.algorithm} on {facts.environment}.{own} The study "
            "sets what the space says of `parameters`; seeds, evaluation, resources, and what happens when a runner is "
            "lost (its trial runs again) or an environment raises (its trial fails). All else is the script's."
        )
        if facts.runner_obstacle and spec.runner == "batched":
            yield f"Runner: RLlib's own. The batched one cannot do the same: {facts.runner_obstacle}."
    if spec.algorithm in ("PPO", "A2C") and spec.learner != "rllib" and spec.fused_obstacle:
        yield f"Learner: RLlib's own. The fused one cannot do the same: {spec.fused_obstacle}."
    each_gets, scales = len(plan.requests) // len(spec.scales), len(spec.scales)
    if spec.design == "search" and spec.search.sampler == "tpe" and spec.tuned and scales > 1 and each_gets < FEW:
        yield (
            f"Few trials: {count(len(plan.requests), 'trial')} over {scales} numbers of runners are about {each_gets} "
            "for each, of which Optuna learns little: its first ten are drawn at random. More trials: --trials."
        )
    evaluation, speeds = spec.evaluation, plan.cluster.speeds
    if speeds is not None and speeds.episode_steps is None and spec.learns:
        longest = duration(evaluation.episodes * evaluation.max_episode_steps * speeds.step_s)
        yield (
            f"Endless: no episode of {spec.environment.id} ended while random actions played it for a moment. An "
            f"evaluation of {evaluation.episodes} such episodes takes {longest} of CPU time at least, and there are "
            f"{evaluation.num_evaluations} in a trial: each episode is cut at evaluation.max_episode_steps, "
            f"{evaluation.max_episode_steps:,}. Set environment.max_episode_steps where one should end sooner."
        )
    if speeds is not None and speeds.outside:
        yield (
            f"Outside: an observation of {spec.environment.id} is not in its observation_space ({speeds.outside}). "
            "RLlib learns from it as it is. Correct the bounds, or the observation."
        )
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
