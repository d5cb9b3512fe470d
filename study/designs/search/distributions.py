"""Parameters -> Optuna distributions. May import Optuna."""

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from study.records.request import TrialRequest
from study.space.domains import Choices, Range
from study.space.parameters import SCALE, Value
from study.space.settings import ITERATIONS
from study.space.spec import StudySpec


def distributions(spec: StudySpec) -> dict[str, BaseDistribution]:
    """Return what Optuna knows of the space: the stratified axes and the tuned parameters."""
    known: dict[str, BaseDistribution] = {SCALE: _integers(spec.scales)}
    limits = [value for value in spec.iterations_axis if value is not None]
    if len(limits) > 1:
        known[ITERATIONS] = _integers(limits)
    return known | {name: _distribution(domain) for name, domain in spec.tuned.items()}


def _integers(values: tuple[int, ...] | list[int]) -> IntDistribution:
    return IntDistribution(min(values), max(values), log=True)


def _distribution(domain: Choices[int] | Choices[float] | Range[int] | Range[float]) -> BaseDistribution:
    if isinstance(domain, Choices):
        return CategoricalDistribution(domain.choices)
    low, high, step = domain.low, domain.high, domain.step
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=domain.log, step=int(step or 1))
    return FloatDistribution(float(low), float(high), log=domain.log, step=None if step is None else float(step))


def fixed_by(request: TrialRequest, spec: StudySpec) -> dict[str, Value]:
    """Return what the sampler is not asked for: the stratified axes and a baseline's values."""
    fixed: dict[str, Value] = {SCALE: request.num_env_runners, **request.given}
    if len(spec.iterations_axis) > 1 and request.iterations is not None:
        fixed[ITERATIONS] = request.iterations
    return fixed
