"""From the request for a trial to the record of its start. Pure."""

from collections.abc import Mapping

from study.records.records import TrialRequest, TrialStarted, digest_of
from study.space.parameters import SCALE, Value
from study.space.sections import LEARNERS
from study.space.settings import rounded, runnable
from study.space.spec import Execution, StudySpec


def start_of(
    spec: StudySpec,
    request: TrialRequest,
    proposed: Mapping[str, Value],
    optuna_number: int | None,
    *,
    attempt: int,
    num_cpus: int,
    execution: Execution,
) -> TrialStarted:
    """Return the record of the start of a trial, with RLlib's parameters, and of a stage the complete setting too.

    Args:
        spec: The space.
        request: What was asked for.
        proposed: The tuned parameters as the sampler proposed them; not looked at where the request has a setting.
        optuna_number: Number among the trials that the sampler knows, from 0, in the order of proposals.
        attempt: From 1.
        num_cpus: CPUs that it reserves.
        execution: Whether its runners are real.
    """
    scale = {SCALE: request.num_env_runners}
    rule, written = dict[str, Value](), tuple(request.given)
    if request.setting is not None:
        proposed, optuna_number = {}, None
        rule, written = dict(request.setting), tuple(request.setting)
    elif request.stage is not None:
        rule = rounded(spec, {**proposed, **scale}, written=written)
        rule.pop(SCALE)
    setting = runnable(spec, {**(rule or proposed), **scale}, written=written)
    if request.num_learners is not None:
        setting[LEARNERS] = request.num_learners
    return TrialStarted(
        trial=request.trial,
        attempt=attempt,
        seed=request.seed,
        setting=setting,
        proposed=dict(proposed),
        iterations=request.iterations,
        anchor=request.name,
        optuna_number=optuna_number,
        num_cpus=num_cpus,
        execution=execution,
        stage=request.stage,
        rule=rule,
        digest=digest_of(rule) if rule else "",
        variant=request.variant,
        first_episode=request.first_episode,
    )
