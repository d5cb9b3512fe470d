"""Every figure of a study, in the order of a report; one that cannot be drawn says why. Imports the pure analysis."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from analysis.figures.efficiency import efficiency
from analysis.figures.figure import Figure, absent
from analysis.figures.fits import fits
from analysis.figures.importance import importance as importance_figure
from analysis.figures.phases import phases
from analysis.figures.returns import return_curves
from analysis.figures.scores import cost_return_front, score
from analysis.figures.throughput import throughput
from analysis.figures.times import to_target
from analysis.figures.words import engine_of
from analysis.scaling.results import ScalingGroup
from study.errors import AnalysisError
from study.statistics import Estimate

if TYPE_CHECKING:
    from analysis.estimates.results import Results
    from analysis.load.study_data import StudyData

SEED = 20_261_121
"""Of the resamples behind the bands, so that the same records make the same bytes."""
NOT_COMPUTED = "Nobody computed it. Fix: run `python -m study report STUDY`, with the folder of the study."
Result = TypeVar("Result")
Maker = tuple[str, str, Callable[[], Figure]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Which parameters mattered.

    Attributes:
        values: Scale -> parameter -> importance, dimensionless, sum 1 at each scale.
        runs: Scale -> trials behind it.
        fewest: Trials of a scale below which none is computed.
    """

    values: Mapping[int, Mapping[str, float]]
    runs: Mapping[int, int] = field(default_factory=dict)
    fewest: int = 10


def all_figures(
    data: "StudyData",
    results: "Results",
    *,
    importance: Importance | str = "",
) -> tuple[Figure, ...]:
    """Return every figure of a study.

    Args:
        data: The study.
        results: What its tables rest on.
        importance: Which parameters mattered, or why that is not known.
    """
    makers = [*_clock(data, results)]
    if data.kind != "throughput":
        makers += _learning(data, results)
        title = "Which parameters mattered, per number of runners"
        makers.append(("importance", title, lambda: _importance(data, title, importance)))
    return tuple(_made(*maker) for maker in makers)


def _clock(data: "StudyData", results: "Results") -> Iterator[Maker]:
    def rates() -> Figure:
        found = _known(results.strong)
        if not found.groups:
            return throughput(found, data.runs)
        first = found.groups[0]
        return throughput(found, data.runs, lines=fits(found, data.runs), ceiling=_ceiling(first, results))

    yield "throughput", "Throughput against the number of runners", rates
    yield "efficiency", "Efficiency against the number of runners", lambda: efficiency(_known(results.strong))
    weak = "Weak-scaling efficiency against the number of runners"
    yield "weak_efficiency", weak, lambda: efficiency(_known(results.weak), key="weak_efficiency")
    yield "phases", "Where the time of one iteration goes", lambda: phases(_known(results.phases))


def _ceiling(group: ScalingGroup, results: "Results") -> Estimate | None:
    """Return what the learner allows at most, if the models looked at the same workload; None where it is not known."""
    try:
        cells, verdict = results.models.setting.cells, results.models.verdict
    except AnalysisError:
        return None
    batches = {row.train_batch_size for row in group.rows}
    same = set(results.models.scales) == {row.num_env_runners for row in group.rows}
    return verdict.most_env_steps_per_s if same and batches == {int(cells.train_batch_size[0])} else None


def _learning(data: "StudyData", results: "Results") -> Iterator[Maker]:
    runs, spec = data.runs, data.spec
    floor = spec.environment.floor if spec is not None else None

    def curves() -> Figure:
        return return_curves(runs, data.evaluations(), against="env_steps", floor=floor)

    def clock_curves() -> Figure:
        return return_curves(runs, data.evaluations(), against="wall_time_s", floor=floor)

    yield "score", "Score against the number of runners", lambda: score(runs)
    yield "return_steps", "Return against environment steps", curves
    yield "return_wall_clock", "Return against wall clock", clock_curves
    yield (
        "steps_to_target",
        "Environment steps to the target",
        lambda: to_target(results.watched, quantity="env_steps"),
    )
    yield "time_to_target", "Time to the target", lambda: to_target(results.watched, quantity="time")
    yield "front", "Return against cost", lambda: cost_return_front(runs)


def _importance(data: "StudyData", title: str, importance: Importance | str) -> Figure:
    if isinstance(importance, str):
        return absent("importance", title, importance or NOT_COMPUTED)
    figure = importance_figure(importance.values, runs=importance.runs, fewest=importance.fewest)
    return replace(figure, caption=f"{figure.caption} {engine_of(data.runs)}") if figure.drawn else figure


def _known(result: Result | str) -> Result:
    """Return a result; one that the data did not allow is raised as the sentence that says so."""
    if isinstance(result, str):
        raise AnalysisError(rule=result, code="no-result-to-draw")
    return result


def _made(key: str, title: str, make: Callable[[], Figure]) -> Figure:
    """Return the figure; where the data do not allow it, one that says why it is missing."""
    try:
        return make()
    except AnalysisError as error:
        return absent(key, title, str(error))
