"""How long a trial lasts: its limits, when it is evaluated, and a guess of its seconds, good to a factor of three.

The guess serves the plan, and admission until trials have ended. Its figures are of one core of a 2-core machine with
Acrobot-v1 and two small hidden layers. What was measured before the start takes their place: the environment's steps
and episodes (`Speeds`). A larger network costs the multiplications that it has more.
"""

import math
from typing import NamedTuple

from study.machine.shape import ClusterShape, Speeds
from study.planning.needs import network_of, num_sampling_processes, processes
from study.records.ledger import TrialRow
from study.space.domains import bounds
from study.space.parameters import Value
from study.space.sections import BudgetSpec
from study.space.settings import batch_domain, minibatch_bounds
from study.space.spec import Execution, StudySpec

_ROUNDING = 1e-9
"""Shares of a budget are sums of floats; a point missed by less counts as reached."""


def progress_of(budget: BudgetSpec, limit: int | None, *, env_steps: int, iterations: int, time_s: float) -> float:
    """Return the largest share of a limit that a trial has used, in [0, 1]; at 1 it ends.

    Args:
        budget: The limits of the space.
        limit: Iterations of a trial whose place in the plan limits them; None for no such limit.
        env_steps: Environment steps so far.
        iterations: Training iterations so far.
        time_s: Seconds of training so far.
    """
    used = ((env_steps, budget.env_steps), (iterations, limit), (time_s, budget.time_s))
    share = max(amount / most for amount, most in used if most is not None)
    return 1.0 if share >= 1 - _ROUNDING else share


def evaluation_due(before: float, after: float, num_evaluations: int) -> bool:
    """Return whether an evaluation point lies in (`before`, `after`]; the points are 1/n, 2/n, …, 1."""
    return math.floor(after * num_evaluations + _ROUNDING) > math.floor(before * num_evaluations + _ROUNDING)


def is_evaluating(spec: StudySpec, row: TrialRow) -> bool:
    """Return whether a trial that runs plays the episodes of an evaluation, as far as its records say."""
    last, before = row.last_iteration, 0.0 if row.last_evaluation is None else row.last_evaluation.progress
    if last is None or not spec.learns or row.status != "running":
        return False
    reached = {"env_steps": last.env_steps, "iterations": last.iteration, "time_s": last.wall_time_s}
    now = progress_of(spec.budget, row.iterations, **reached)  # type: ignore[arg-type]
    return evaluation_due(before, now, spec.evaluation.num_evaluations)


# --- the guess -------------------------------------------------------------------------------------------------------


class _Cost(NamedTuple):
    """Seconds of work that is done in calls on many rows: a step of all lanes, an update on a minibatch."""

    call_s: float
    """Of every call, however many rows it has."""
    row_s: float
    """Of every row: an environment step, a row of a minibatch."""


_SAMPLING = {"stock": _Cost(call_s=460e-6, row_s=41e-6), "batched": _Cost(call_s=16e-6, row_s=33e-6)}
"""Stock: 500 us a step with one environment and 100 us with eight per runner; batched: 49 us and 35 us."""
_LEARNING = {"rllib": _Cost(call_s=2e-3, row_s=8e-6), "fused": _Cost(call_s=0.05e-3, row_s=1e-6)}
"""For 128 rows: 3 ms and 0.2 ms."""
_ACROBOT_S = 13e-6
"""What of a row's time is the environment's own."""
_SMALL = 10_000
"""Multiplications of the two small layers, which the figures above hold already."""
_PRODUCT_S, _BACKWARDS = 2.5e-11, 3.2
"""Seconds of a multiplication forwards, and how many of them one forwards and backwards takes."""
_PROCESS_S = 2.5
"""CPU seconds in which a process is imported."""
_TRIAL_S = 6.0
"""Start-up of the main process, and the little that evaluations of a small environment take."""


class Guess(NamedTuple):
    """Seconds of one trial, in the middle of the space."""

    start_s: float
    """Until its processes are up."""
    training_s: float
    evaluation_s: float
    """Of all its evaluations; 0 where the environment was not measured."""


def guess_trial(
    spec: StudySpec, num_env_runners: int, cluster: ClusterShape, *, execution: Execution, iterations: int | None = None
) -> Guess:
    """Return a guess of the duration of one trial.

    Args:
        spec: The space.
        num_env_runners: The scale.
        cluster: Where it runs.
        execution: How it runs.
        iterations: Limit of the trial; None for that of the space.
    """
    batch = _middle(bounds(batch_domain(spec, num_env_runners)))
    iteration_s = _iteration_seconds(spec, num_env_runners, cluster, execution=execution)
    limit = spec.budget.iterations if iterations is None else iterations
    durations = [spec.budget.time_s] if spec.budget.time_s is not None else []
    durations += [iteration_s * limit] if limit is not None else []
    if spec.budget.env_steps is not None:
        durations.append(iteration_s * max(spec.budget.env_steps / batch, 1))
    evaluations = spec.evaluation.num_evaluations if spec.learns and cluster.speeds is not None else 0
    others = len(processes(spec, num_env_runners, execution)) - 1
    return Guess(
        start_s=_TRIAL_S + _PROCESS_S * others / cluster.capacity,
        training_s=min(durations),
        evaluation_s=evaluations * evaluation_seconds(spec, cluster.speeds) if cluster.speeds is not None else 0.0,
    )


def evaluation_seconds(spec: StudySpec, speeds: Speeds) -> float:
    """Return a guess of one evaluation in seconds, from what was measured of the environment."""
    cut = spec.evaluation.max_episode_steps
    random_steps = min(speeds.episode_steps or cut, cut)
    # A policy may play for as long as the limit, or much shorter than random actions do: the middle of both.
    steps = math.sqrt(random_steps * min(speeds.limit, cut)) if speeds.limit else random_steps
    forward_s, _ = _network_seconds(spec, speeds)
    return spec.evaluation.episodes * steps * (speeds.step_s + _SAMPLING["batched"].row_s - _ACROBOT_S + forward_s)


def _iteration_seconds(spec: StudySpec, num_env_runners: int, cluster: ClusterShape, *, execution: Execution) -> float:
    batch = _middle(bounds(batch_domain(spec, num_env_runners)))
    minibatch = min(_middle(minibatch_bounds(spec, num_env_runners)), batch)
    lanes = num_env_runners * _middle(bounds(spec.domain("num_envs_per_env_runner")))
    forward_s, update_s = _network_seconds(spec, cluster.speeds)

    num_processes = num_sampling_processes(spec, num_env_runners, execution)
    step = _SAMPLING[spec.runner_in_use]
    own_s = _ACROBOT_S if cluster.speeds is None else cluster.speeds.step_s
    step_s = step.row_s - _ACROBOT_S + own_s + forward_s
    # RLlib's own runners step their lanes each by itself, also those that share a process.
    callers = num_env_runners if spec.runner_in_use == "stock" else num_processes
    sampling = batch * (step_s + step.call_s * callers / lanes) / min(num_processes, cluster.capacity)
    # The lanes of a runner wait one after another, runners side by side even on one core; emulated ones do not wait.
    waiting = batch * spec.environment.step_wait_ms / 1e3 / num_env_runners if execution == "real" else 0.0

    update = _LEARNING[spec.learner_in_use]
    num_updates = _middle(bounds(spec.domain("num_epochs"))) * batch / minibatch
    rows = minibatch / max(spec.resources.num_learners, 1)  # every learner computes its share of each minibatch
    return sampling + waiting + num_updates * (update.call_s + (update.row_s + update_s) * rows)


def _network_seconds(spec: StudySpec, speeds: Speeds | None) -> tuple[float, float]:
    """Return what the network takes beyond a small one: forwards for a step, and for a row of an update."""
    network = network_of(spec, () if speeds is None else speeds.observation_shape)
    return max(network.acting - _SMALL, 0) * _PRODUCT_S, max(network.learning - _SMALL, 0) * _PRODUCT_S * _BACKWARDS


def _middle(ends: tuple[Value, Value]) -> float:
    return sum(ends) / 2
