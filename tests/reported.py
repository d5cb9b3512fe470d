"""What a trial reports: for tests of what the driver makes of it."""

from typing import Any

from study.driver.conductor import Conductor
from study.records.records import Evaluation, Iteration, TrialBuilt
from tests.values import replace

Reported = TrialBuilt | Iteration | Evaluation


def built(*placement: dict[str, Any], startup_time_s: float | None = 1.0) -> TrialBuilt:
    """Return what a trial says as it comes up, of two processes where no placement is given."""
    processes = {"n0": len(placement) or 2}
    return TrialBuilt(
        trial=0,
        attempt=0,
        startup_time_s=startup_time_s,
        effective={},
        processes_per_node=processes,
        placement=list(placement),
    )


def iteration(
    number: int, *, trial: int = 0, attempt: int = 0, steps: int = 100, seconds: float = 2.0, **metrics: float | None
) -> Iteration:
    """Return an iteration; those before it had as many steps and took as long."""
    return Iteration(
        trial=trial,
        attempt=attempt,
        iteration=number,
        env_steps=steps * number,
        wall_time_s=seconds * number,
        metrics={"train_batch_size_actual": steps, "iteration_time_s": seconds, **metrics},
    )


def evaluation(after: Iteration, *returns: float, progress: float) -> Evaluation:
    """Return the evaluation after an iteration."""
    return Evaluation(
        trial=after.trial,
        attempt=after.attempt,
        iteration=after.iteration,
        env_steps=after.env_steps,
        wall_time_s=after.wall_time_s,
        progress=progress,
        returns=list(returns),
        num_cut=0,
        eval_time_s=0.5,
    )


def report(conductor: Conductor, trial: int, *values: Reported, progress: float) -> None:
    """Let a conductor hear of it."""
    attempt = conductor.ledger.rows[trial].attempt
    named = [replace(each, trial=trial, attempt=attempt) for each in values]
    conductor.report(trial, named, progress=progress)
