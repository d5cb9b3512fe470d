"""T9: the models against each other on cells that they were not fitted to. A view of analysis.models; no engine."""

from collections.abc import Iterator, Mapping, Sequence

from analysis.estimates.fits import COSTLY, MOST_RUNS, ModelResults
from analysis.estimates.results import Results, attempt
from analysis.load import StudyData
from analysis.models import ModelError
from analysis.tables import definitions as words
from analysis.tables.grid import TableColumn
from analysis.tables.numbers import in_words
from analysis.tables.results import of_engine
from analysis.tables.scaling_tables import FIRST_COMMAND
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows

TITLE = "Models: how far they are off on cells that they did not see"
SAID = (words.HOLD_OUT, words.MODEL, words.MEASURED, words.MODEL_INTERVAL)
SHORT = {
    "num_env_runners": "n",
    "num_envs_per_env_runner": "k",
    "train_batch_size": "B",
    "minibatch_size": "m",
    "num_epochs": "E",
    "num_learners": "L",
}
COLUMNS = (
    TableColumn(name="split", unit="", meaning="Which cells were held out."),
    TableColumn(name="model", unit="", meaning="Fitted to the other cells."),
    TableColumn(name="median_error", unit="1", label="median error", meaning="Over the held-out cells.", estimate=True),
    TableColumn(name="max_error", unit="1", label="largest error", meaning="Of one held-out cell."),
    TableColumn(name="worst", unit="", label="there", meaning="The cell of the largest error."),
    TableColumn(name="num_predicted", unit="1", label="predicted", meaning="Held-out cells that it can predict."),
    TableColumn(name="num_held_out", unit="1", label="held out", meaning="Held-out cells."),
    TableColumn(name="num_fitted", unit="1", label="fitted runs", meaning="Runs that it was fitted to, at the least."),
    TableColumn(name="why_not", unit="", label="why not the others", meaning="Why it cannot predict some cells."),
)


@of_engine
def model_comparison(data: StudyData, results: Results) -> Table:
    """T9: median hold-out error of every model on every split that the runs allow."""
    found = results.models
    errors = attempt(lambda: found.errors)
    excluded = left_out_by_models(found)
    if isinstance(errors, str) or not errors:
        why = errors if isinstance(errors, str) else "No cell can be held out: one scale and one setting were measured."
        why = f"{why} Measure more: {FIRST_COMMAND}"
        return without_rows("T9", TITLE, why, definitions=SAID, n_failed=results.num_failed, excluded=excluded)
    frame = {
        "split": [each.split for each in errors],
        "model": [each.model for each in errors],
        **estimate_columns("median_error", [each.median_error for each in errors]),
        "max_error": [each.max_error for each in errors],
        "worst": [None if each.worst is None else cell_in_words(each.worst) for each in errors],
        "num_predicted": [each.num_predicted for each in errors],
        "num_held_out": [each.num_held_out for each in errors],
        "num_fitted": [each.num_fitted for each in errors],
        "why_not": [
            "; ".join(f"{count} x {reason}" for reason, count in each.not_applicable.items()) for each in errors
        ],
    }
    return Table(
        key="T9",
        title=TITLE,
        frame=make_frame(frame),
        columns=COLUMNS,
        definitions=SAID,
        n=len(found.observations),
        n_failed=results.num_failed,
        excluded=excluded,
        conclusion=_conclusion(errors),
        notes=tuple(_notes(found)),
    )


def left_out_by_models(found: ModelResults) -> dict[str, int]:
    """Return the reasons for which runs are in no fit, the failed ones apart, and the runs of smaller workloads."""
    selection = found.selection
    excluded = {reason: count for reason, count in selection.excluded.items() if reason != "status is failed"}
    others = sum(len(group) for group in selection.groups[1:])
    more = len(selection.groups[0]) - len(found.observations) if selection.groups else 0
    excluded |= {"of another workload than the one with most runs": others} if others else {}
    return excluded | ({f"beyond the about {MOST_RUNS} that the models are fitted to": more} if more else {})


def cell_in_words(cell: Mapping[str, float]) -> str:
    """Return a cell such as `n 46, k 4, B 5,888, m 256, E 10`."""
    return ", ".join(f"{short} {cell[name]:,.0f}" for name, short in SHORT.items() if name in cell)


def _conclusion(errors: Sequence[ModelError]) -> str:
    split = _hardest(errors)
    known = [each for each in errors if each.split == split and each.median_error is not None]
    if not known:
        return f"No model predicts the held-out cells of the split `{split}`."
    ranked = sorted(known, key=lambda each: each.median_error.value if each.median_error else float("inf"))
    told = [f"{each.model} {_error(each)}" for each in ranked]
    return f"Median error on held-out cells (`{split}`), the least first: {'; '.join(told)}."


def _hardest(errors: Sequence[ModelError]) -> str:
    """Return the split that asks for what nobody ran, larger scales, where there is one; else the first."""
    larger = [each.split for each in errors if "larger" in each.split]
    return larger[0] if larger else errors[0].split


def _error(each: ModelError) -> str:
    if each.median_error is None:
        return "-"
    return f"{in_words(each.median_error, digits=2)} on {each.num_predicted} of {each.num_held_out} cells"


def _notes(found: ModelResults) -> Iterator[str]:
    """Yield the fitted laws; one that cannot be fitted says why."""
    scales = "1 scale" if len(found.scales) == 1 else f"{len(found.scales)} scales"
    yield f"The laws of n alone are fitted to {cell_in_words(_cell(found))}, at {scales}."
    yield f"Fitted to the means of cells, not to single runs: {', '.join(COSTLY)}."
    amdahl = attempt(lambda: found.amdahl)
    if isinstance(amdahl, str):
        yield f"Amdahl: {amdahl}"
    else:
        yield f"Amdahl: serial fraction {in_words(amdahl.serial_fraction)} (a prediction)."
    usl = attempt(lambda: found.usl)
    if isinstance(usl, str):
        yield f"USL: {usl}"
    else:
        peak = f"peak unidentified: {usl.unidentified}" if usl.peak is None else f"peak at n = {in_words(usl.peak)}"
        contention, coherency = in_words(usl.contention), in_words(usl.coherency, digits=2)
        yield f"USL: contention a = {contention}, coherency b = {coherency}; {peak} (a prediction)."
    fit = attempt(lambda: found.fit)
    if isinstance(fit, str):
        yield f"Iteration time: {fit}"
        return
    told = f" Not told apart by these runs: {', '.join(fit.unidentified)}." if fit.unidentified else ""
    yield f"Iteration time: off by {fit.closure:.1%} at the median of the {fit.n} runs that it was fitted to.{told}"


def _cell(found: ModelResults) -> dict[str, float]:
    cell = found.cell
    return {name: float(getattr(cell, name)[0]) for name in SHORT if name != "num_env_runners"}
