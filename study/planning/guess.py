"""How long a trial will take, good to a factor of three: for the plan, and for admission until trials have ended. Pure.

Figures are of one core of a 2-core machine: Acrobot-v1, two small hidden layers; pictures of 64 x 64 for convolutions.
Where the environment was played before the start, its steps and episodes are those that were measured.
"""

import math
from dataclasses import dataclass

from study.machine.shape import ClusterShape, Speeds
from study.planning.needs import num_sampling_processes, processes
from study.space.domains import bounds
from study.space.parameters import Value
from study.space.settings import batch_domain, minibatch_bounds
from study.space.spec import Execution, StudySpec

GUESS_FACTOR = 3
"""A guess may be wrong by so much, either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """Seconds of work that is done in calls on many rows: a step of all lanes, an update on a minibatch."""

    call_s: float
    """Of every call, however many rows it has."""
    row_s: float
    """Of every row: an environment step, a row of a minibatch."""


_SAMPLING = {"stock": _Cost(call_s=460e-6, row_s=41e-6), "batched": _Cost(call_s=16e-6, row_s=33e-6)}
"""Stock: 500 us a step with one environment and 100 us with eight per runner; batched: 49 us and 35 us."""
_LEARNING = {
    "rllib": _Cost(call_s=2e-3, row_s=8e-6),
    "fused": _Cost(call_s=0.05e-3, row_s=1e-6),
}
"""For 128 rows: 3 ms and 0.2 ms."""
_CALL_OF_ACROBOT_S = 13e-6
"""What of a row's time is the environment's own."""
_CONVOLUTIONS = {"nature": (0.2e-3, 0.65e-3), "impala": (1.9e-3, 3.7e-3)}
"""Seconds of every environment step, and of every row of a minibatch forwards and backwards, for 64 x 64 pixels;
hidden layers are in the other figures."""
_PIXELS = 64 * 64
_LAYERS = {42: "16,4,2 32,4,2 256,11,1", 64: "32,8,4 64,4,2 64,3,1"}
"""RLlib's own convolutions by the height of an image: filters, kernel and stride of each; larger ones: as 84."""
_LAYERS_OF_84 = "16,8,4 32,4,2 256,11,1"
_FORWARD_S, _UPDATE_S = 2.5e-11, 8e-11
"""Seconds of a multiplication in a convolution, forwards alone, and forwards and backwards."""
_PROCESS_S = 2.5
"""CPU seconds in which a process is imported."""
_TRIAL_S = 6.0
"""Start-up of the main process, and the evaluations."""


def guess_seconds(
    spec: StudySpec,
    num_env_runners: int,
    cluster: ClusterShape,
    *,
    execution: Execution,
    iterations: int | None = None,
) -> float:
    """Return a guess, good to a factor of three, of the duration of one trial in seconds.

    Args:
        spec: The space.
        num_env_runners: The scale.
        cluster: Where it runs.
        execution: How it runs.
        iterations: Limit of the trial; None for that of the space.
    """
    batch = _middle(bounds(batch_domain(spec, num_env_runners)))
    iteration = guess_iteration_seconds(spec, num_env_runners, cluster, execution=execution)
    limit = spec.budget.iterations if iterations is None else iterations
    durations = [spec.budget.time_s] if spec.budget.time_s is not None else []
    if limit is not None:
        durations.append(iteration * limit)
    if spec.budget.env_steps is not None:
        durations.append(iteration * max(spec.budget.env_steps / batch, 1))
    evaluations = spec.evaluation.num_evaluations if spec.learns else 0
    evaluating = evaluations * evaluation_seconds(spec, cluster.speeds) if cluster.speeds is not None else 0.0
    return guess_start_seconds(spec, num_env_runners, cluster, execution=execution) + min(durations) + evaluating


def evaluation_seconds(spec: StudySpec, speeds: Speeds) -> float:
    """Return a guess of one evaluation in seconds, from what was measured of the environment."""
    cut = spec.evaluation.max_episode_steps
    random_steps = min(speeds.episode_steps or cut, cut)
    # A policy may play for as long as the limit, or much shorter than random actions do: the middle of both.
    steps = math.sqrt(random_steps * min(speeds.limit, cut)) if speeds.limit else random_steps
    forward_s, _ = _convolutions(spec, speeds)
    own_s = _SAMPLING["batched"].row_s - _CALL_OF_ACROBOT_S
    return spec.evaluation.episodes * steps * (speeds.step_s + own_s + forward_s)


def guess_iteration_seconds(
    spec: StudySpec, num_env_runners: int, cluster: ClusterShape, *, execution: Execution
) -> float:
    """Return a guess of one training iteration in seconds, in the middle of the space."""
    batch = _middle(bounds(batch_domain(spec, num_env_runners)))
    minibatch = min(_middle(minibatch_bounds(spec, num_env_runners)), batch)
    lanes = num_env_runners * _middle(bounds(spec.domain("num_envs_per_env_runner")))
    forward_s, update_s = _convolutions(spec, cluster.speeds)

    num_processes = num_sampling_processes(spec, num_env_runners, execution)
    step = _SAMPLING[spec.runner_in_use]
    own_s = _CALL_OF_ACROBOT_S if cluster.speeds is None else cluster.speeds.step_s
    step_s = step.row_s - _CALL_OF_ACROBOT_S + own_s + forward_s + spec.environment.step_cpu_ms / 1e3
    # RLlib's own runners step their lanes each by itself, also those that share a process.
    callers = num_env_runners if spec.runner_in_use == "stock" else num_processes
    sampling = batch * (step_s + step.call_s * callers / lanes) / min(num_processes, cluster.capacity)
    # The lanes of a runner wait one after another, runners side by side even on one core; emulated ones do not wait.
    waiting = batch * spec.environment.step_wait_ms / 1e3 / num_env_runners if execution == "real" else 0.0

    update = _LEARNING[spec.learner_in_use]
    num_updates = _middle(bounds(spec.domain("num_epochs"))) * batch / minibatch
    rows = minibatch / max(spec.resources.num_learners, 1)  # every learner computes its share of each minibatch
    return sampling + waiting + num_updates * (update.call_s + (update.row_s + update_s) * rows)


def guess_start_seconds(spec: StudySpec, num_env_runners: int, cluster: ClusterShape, *, execution: Execution) -> float:
    """Return a guess of the start-up of all processes of a trial in seconds, with the little that evaluations take."""
    num_others = len(processes(spec, num_env_runners, execution)) - 1
    return _TRIAL_S + _PROCESS_S * num_others / cluster.capacity


def _convolutions(spec: StudySpec, speeds: Speeds | None) -> tuple[float, float]:
    """Return the seconds that convolutions take: forwards for a step, forwards and backwards for a row of an update."""
    shape = () if speeds is None else speeds.observation_shape
    known = _CONVOLUTIONS.get(spec.model.conv_net or "")
    if known is not None:
        larger = shape[0] * shape[1] / _PIXELS if len(shape) == 3 else 1.0
        return known[0] * larger, known[1] * larger
    if len(shape) != 3:
        return 0.0, 0.0
    height, width, channels = shape
    layers = spec.model.conv_filters or [
        [int(number) for number in layer.split(",")] for layer in _LAYERS.get(height, _LAYERS_OF_84).split()
    ]
    products = 0.0
    for filters, kernel, stride in layers:
        # The last of RLlib's own layers has a kernel as large as what it sees, and no padding.
        height, width = (1, 1) if kernel >= height > 1 else (-(-height // stride), -(-width // stride))
        products += float(kernel * kernel * channels * filters) * height * width
        channels = filters
    return products * _FORWARD_S, products * _UPDATE_S


def _middle(ends: tuple[Value, Value]) -> float:
    return sum(ends) / 2
