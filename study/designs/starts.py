"""From the request for a trial to the record of its start. Pure.

The driver writes what these functions return, and a certificate compares every recorded start with them.
"""

from collections.abc import Mapping

from study.records.records import TrialStarted
from study.records.request import TrialRequest, digest_of
from study.space.parameters import SCALE, Value
from study.space.sections import LEARNERS
from study.space.settings import rounded, runnable
from study.space.spec import Execution, StudySpec


def _setting_and_rule(
    spec: StudySpec, request: TrialRequest, proposed: Mapping[str, Value]
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return RLlib's parameters, and in a hold-up study the complete setting, rules included."""
    scale = {SCALE: request.num_env_runners}
    if request.setting is not None:
        rule, written = dict(request.setting), tuple(request.setting)
        return runnable(spec, {**rule, **scale}, written=written), rule
    rule, written = {}, tuple(request.given)
    if request.stage is not None:
        rule = rounded(spec, {**proposed, **scale}, written=written)
        rule.pop(SCALE)
    return runnable(spec, {**(rule or proposed), **scale}, written=written), rule


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
    """Return the record of the start of a trial.

    Args:
        spec: The space.
        request: What was asked for.
        proposed: The tuned parameters as the sampler proposed them; not looked at where the request has a setting.
        optuna_number: Number among the trials that the sampler knows, from 0, in the order of proposals.
        attempt: From 1.
        num_cpus: CPUs that it reserves.
        execution: Whether its runners are real.
    """
    if request.setting is not None:
        proposed, optuna_number = {}, None
    setting, rule = _setting_and_rule(spec, request, proposed)
    if request.num_learners is not None:
        setting = {**setting, LEARNERS: request.num_learners}
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
