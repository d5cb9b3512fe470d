"""From the request for a trial to the record of its start. Pure.

The driver writes what these functions return, and a certificate compares every recorded start with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from study.records.records import TrialStarted
from study.records.request import TrialRequest, digest_of
from study.space.parameters import SCALE, Value
from study.space.settings import rounded, runnable
from study.space.spec import Execution, StudySpec
from study.space.throughput import LEARNERS
from study.space.variants import with_lanes_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a trial is to run, and whose proposal it is."""

    setting: dict[str, Value]
    """RLlib's parameters."""
    proposed: dict[str, Value]
    """The tuned ones as the sampler proposed them."""
    optuna_number: int | None
    """Number among the trials that the sampler knows, from 0, in the order of proposals; None for any other trial."""
    rule: dict[str, Value]
    """In a hold-up study the complete setting, rules included."""


def needs_no_sampler(request: TrialRequest) -> bool:
    """Return whether a request says what to run, and the sampler does not learn how the trial ends."""
    return request.setting is not None and not request.reported_to_sampler


def asked_for(
    spec: StudySpec, request: TrialRequest, proposed: Mapping[str, Value] | None = None, number: int | None = None
) -> Asked:
    """Return what the trial of a request runs."""
    scale = {SCALE: request.num_env_runners}
    if request.setting is not None and needs_no_sampler(request):
        setting = runnable(spec, {**request.setting, **scale}, written=tuple(request.setting))
        return Asked(setting=setting, proposed={}, optuna_number=None, rule=dict(request.setting))
    tuned, rule = dict(proposed or {}), dict[str, Value]()
    written = tuple(request.given) if request.setting is None else ()
    if request.stage is not None:
        rule = rounded(spec, {**tuned, **scale}, written=written)
        rule.pop(SCALE)
    setting = runnable(spec, {**(rule or tuned), **scale}, written=written)
    return Asked(setting=setting, proposed=tuned, optuna_number=number, rule=rule)


def start_of(
    request: TrialRequest,
    asked: Asked,
    *,
    attempt: int,
    num_env_runners: int,
    num_cpus: int,
    execution: Execution,
    predicted_cpu_s: float | None = None,
) -> TrialStarted:
    """Return the record of the start of a trial.

    Args:
        request: What was asked for.
        asked: What it runs.
        attempt: From 1.
        num_env_runners: Runners that it has; one stock runner may step the lanes of all that were asked for.
        num_cpus: CPUs that it reserves.
        execution: Whether its runners are real.
        predicted_cpu_s: CPU-seconds of training by the cost model, where there is one.
    """
    setting, stands_for = asked.setting, None
    if num_env_runners != request.num_env_runners:
        setting, stands_for = with_lanes_in(setting, num_env_runners), request.num_env_runners
    if request.num_learners is not None:
        setting = {**setting, LEARNERS: request.num_learners}
    return TrialStarted(
        trial=request.trial,
        attempt=attempt,
        seed=request.seed,
        setting=setting,
        proposed=asked.proposed,
        iterations=request.iterations,
        anchor=request.name,
        optuna_number=asked.optuna_number,
        num_cpus=num_cpus,
        execution=execution,
        stage=request.stage,
        rule=asked.rule,
        digest=digest_of(asked.rule) if asked.rule else "",
        variant=request.variant,
        scale=stands_for,
        predicted_cpu_s=predicted_cpu_s,
        first_episode=request.first_episode,
    )
