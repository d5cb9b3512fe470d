"""T9: how far the models are off on cells that they did not see. A view; no engine."""

from collections.abc import Iterator, Mapping, Sequence

from analysis.estimates.fits import MOST_RUNS, ModelResults
from analysis.estimates.results import Results, attempt
from analysis.models.comparison import ModelError
from analysis.tables import definitions as words
from analysis.tables.columns import FIRST_COMMAND, count, estimate, text
from analysis.tables.numbers import in_words
from analysis.tables.table import Layout, Table
from study.text import count as counted

SHORT = {
    "num_env_runners": "n",
    "num_envs_per_env_runner": "k",
    "train_batch_size": "B",
    "minibatch_size": "m",
    "num_epochs": "E",
    "num_learners": "L",
}
MODELS = Layout(
    key="T9",
    title="Models: how far they are off on cells that they did not see",
    columns=(
        text("split", "", "Which cells were held out."),
        text("model", "", "Fitted to the other cells."),
        estimate("median_error", "1", "", "Over the held-out cells."),
        count("max_error", "largest error", "Of one held-out cell."),
        text("worst", "there", "The cell of the largest error."),
        count("num_predicted", "predicted", "Held-out cells that it can predict."),
        count("num_held_out", "held out", "Held-out cells."),
        count("num_fitted", "fitted runs", "Runs that it was fitted to, at the least."),
        text("why_not", "why not the others", "Why it cannot predict some cells."),
    ),
    definitions=(words.HOLD_OUT, words.MODEL, words.MEASURED, words.MODEL_INTERVAL),
)


def model_comparison(results: Results) -> Table:
    """T9: median hold-out error of every model on every split that the runs allow."""
    found = results.models
    errors = attempt(lambda: found.errors)
    excluded = left_out_by_models(found)
    if isinstance(errors, str) or not errors:
        why = errors if isinstance(errors, str) else "No cell can be held out: one scale and one setting were measured."
        return MODELS.without(why, FIRST_COMMAND, n_failed=results.num_failed, excluded=excluded)
    reasons = [[f"{number} x {reason}" for reason, number in each.not_applicable.items()] for each in errors]
    return MODELS.table(
        errors,
        _least_error(errors),
        n=len(found.observations),
        n_failed=results.num_failed,
        excluded=excluded,
        notes=_fits(found),
        values={
            "worst": [None if each.worst is None else cell_in_words(each.worst) for each in errors],
            "why_not": ["; ".join(each) for each in reasons],
        },
    )


def left_out_by_models(found: ModelResults) -> dict[str, int]:
    """Return the reasons for which runs are in no fit, and the runs of smaller workloads."""
    selection = found.selection
    excluded = dict(selection.excluded)
    others = sum(len(group) for group in selection.groups[1:])
    more = len(selection.groups[0]) - len(found.observations) if selection.groups else 0
    excluded |= {"of another workload than the one with most runs": others} if others else {}
    return excluded | ({f"beyond the about {MOST_RUNS} that the models are fitted to": more} if more else {})


def cell_in_words(cell: Mapping[str, float]) -> str:
    """Return a cell such as `n 46, k 4, B 5,888, m 256, E 10`."""
    return ", ".join(f"{short} {cell[name]:,.0f}" for name, short in SHORT.items() if name in cell)


def _least_error(errors: Sequence[ModelError]) -> str:
    """Return the models in the order of their errors on larger scales, which nobody ran; else on the first split."""
    splits = [each.split for each in errors]
    split = next((each for each in splits if "larger" in each), splits[0])
    known = [(each, each.median_error) for each in errors if each.split == split and each.median_error is not None]
    if not known:
        return f"No model predicts the held-out cells of the split `{split}`."
    ranked = sorted(known, key=lambda pair: pair[1].value)
    said = [
        f"{each.model} {in_words(error, digits=2)} on {each.num_predicted} of {each.num_held_out} cells"
        for each, error in ranked
    ]
    return f"Median error on held-out cells (`{split}`), the least first: {'; '.join(said)}."


def _fits(found: ModelResults) -> Iterator[str]:
    """Yield the fitted laws; one that cannot be fitted says why."""
    scales = counted(len(found.scales), "scale")
    cell = {name: float(getattr(found.cell, name)[0]) for name in SHORT if name != "num_env_runners"}
    yield f"The laws of n alone are fitted to {cell_in_words(cell)}, at {scales}."
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
    joint = f" These runs cannot distinguish {', '.join(fit.unidentified)}." if fit.unidentified else ""
    yield f"Iteration time: off by {fit.closure:.1%} at the median of the {fit.n} runs that it was fitted to.{joint}"
