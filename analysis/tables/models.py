"""T9 models on cells that they did not see; T10 the recommendation: fastest, cheapest, knee, limit. Views; no engine.

Every row of T10 says whether it was measured or is predicted, with its interval; a question that the runs do not
answer is a note that says what would answer it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.estimates import Row
from analysis.estimates.fits import COSTLY, MOST_RUNS, ModelResults
from analysis.estimates.learning import emulated
from analysis.estimates.predictions import MOST_EXTRAPOLATED, fitted, prediction_rows
from analysis.estimates.results import Results, attempt
from analysis.estimates.throughput import Names
from analysis.models.comparison import ModelError
from analysis.models.derived import MARGINAL_THRESHOLD
from analysis.scaling.goodput import least
from analysis.scaling.results import Goodput, GoodputRow, Scaling, ScalingGroup, ScalingRow
from analysis.tables import definitions as words
from analysis.tables.columns import FIRST_COMMAND, count, estimate, text
from analysis.tables.numbers import in_words, overlap
from analysis.tables.table import Layout, Table
from study.statistics import Estimate
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
ADVICE = Layout(
    key="T10",
    title="Recommendation",
    columns=(
        text("question", "", "What is asked."),
        text("choice", "", "The answer, or the cell that it is about."),
        estimate("value", "1", "", "The number behind it, in the unit beside it."),
        text("value_unit", "unit", "Unit of the number."),
        text("basis", "known by", "How it is known."),
        text("note", "", "What to know before acting on it."),
    ),
    definitions=(
        words.ADVICE,
        words.KNEE,
        words.LIMIT,
        words.CEILING,
        words.BEST_BATCH,
        words.MODEL_INTERVAL,
        words.INTERVAL,
    ),
)
BASES = {"measured": "measured", "predicted": "predicted", "extrapolated": "predicted, extrapolated"}
BOUND = "bound, extrapolated"
"""Basis of what no number of runners exceeds: from measured phases, as if runners took no time."""


# --- T9 -----------------------------------------------------------------------------------------------------------


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
    joint = f" These runs cannot distinguish {', '.join(fit.unidentified)}." if fit.unidentified else ""
    yield f"Iteration time: off by {fit.closure:.1%} at the median of the {fit.n} runs that it was fitted to.{joint}"


# --- T10 ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One line of the recommendation."""

    question: str
    choice: str
    value: Estimate
    value_unit: str
    basis: str
    note: str = ""
    said: str = ""
    """What the conclusion says of it; empty for a line that stays in the table."""


def recommendation(results: Results) -> Table:
    """T10: what to do, each line measured or predicted, with its interval."""
    found = results.models
    notes: list[str] = []
    advice = [*_measured(results, notes), *_bounds(found, notes), *_predicted(results, notes)]
    excluded = left_out_by_models(found)
    if not advice:
        why = f"No recommendation: {' '.join(dict.fromkeys(notes))}"
        return ADVICE.without(why, FIRST_COMMAND, n_failed=results.num_failed, excluded=excluded)
    verdict = attempt(lambda: found.verdict)
    said = [*([] if isinstance(verdict, str) else [verdict.sentence]), *(each.said for each in advice if each.said)]
    first = advice[0]
    only = f"{first.question}: {first.choice}, {in_words(first.value)} {first.value_unit} ({first.basis})."
    strong = results.strong.n if isinstance(results.strong, Scaling) else 0
    return ADVICE.table(
        advice,
        " ".join(said) or only,
        n=max(strong, sum(map(len, found.selection.groups))),
        n_failed=results.num_failed,
        excluded=excluded,
        notes=dict.fromkeys(notes),
    )


def _measured(results: Results, notes: list[str]) -> Iterator[Advice]:
    strong, goodput = results.strong, results.goodput
    if isinstance(strong, Scaling) and strong.groups:
        yield _fastest(strong)
        named = f" ({strong.groups[0].label})" if len(strong.groups) > 1 else ""
        yield from _of_scaling(strong.groups[0].rows, named)
    else:
        notes.append("No two scales ran equal work with a measured clock: nothing measured says how many runners.")
    if isinstance(goodput, Goodput) and goodput.groups:
        yield from _of_goodput(goodput.groups[0].rows, results.data.runs)


def _fastest(strong: Scaling) -> Advice:
    """Return the cell with the highest throughput, of all workloads that ran at several scales."""
    cells = [(group, row) for group in strong.groups for row in group.rows]
    best = max(cells, key=lambda cell: cell[1].env_steps_per_s.value)
    rate = best[1].env_steps_per_s
    several = len(strong.groups) > 1

    def place(cell: tuple[ScalingGroup, ScalingRow]) -> str:
        return f"{counted(cell[1].num_env_runners, 'runner')}{f' ({cell[0].label})' if several else ''}"

    rivals = [cell for cell in cells if cell is not best and overlap(cell[1].env_steps_per_s, rate)]
    apart = _rivals([place(cell) for cell in rivals], [rate, *(cell[1].env_steps_per_s for cell in rivals)])
    return Advice(
        question="Fastest: highest throughput",
        choice=place(best),
        value=rate,
        value_unit="env steps/s",
        basis="measured",
        note=apart,
        said=f"Fastest of those measured: {place(best)}, {in_words(rate)} env steps/s{', ' + apart if apart else ''}.",
    )


def _of_scaling(rows: tuple[ScalingRow, ...], named: str) -> Iterator[Advice]:
    known = [(row, row.efficiency_p) for row in rows if row.efficiency_p is not None]
    if known:
        cheapest, efficiency = max(known, key=lambda pair: pair[1].value)
        close = [pair for pair in known if pair[0] is not cheapest and overlap(pair[1], efficiency)]
        scales = ", ".join(str(row.num_env_runners) for row, _ in close)
        yield Advice(
            question="Cheapest env step: highest efficiency per CPU",
            choice=f"{counted(cheapest.num_env_runners, 'runner')}{named}",
            value=efficiency,
            value_unit="of the ideal per CPU",
            basis="measured",
            note=_rivals([f"n = {scales}"] if close else [], [efficiency, *(other for _, other in close)]),
        )
    for last, row in itertools.pairwise(rows):
        share = row.marginal if row.num_env_runners > last.num_env_runners else None
        if share is not None and share.has_interval and share.high < MARGINAL_THRESHOLD:
            scales = f"from {last.num_env_runners} to {counted(row.num_env_runners, 'runner')}"
            yield Advice(
                question="Do not go beyond",
                choice=f"n = {last.num_env_runners}",
                value=share,
                value_unit="d ln X / d ln P",
                basis="measured",
                note=f"{scales}; of the scales that were measured",
                said=f"Do not go beyond n = {last.num_env_runners} (measured): {scales} a CPU more gives "
                f"{in_words(share)} of its share.",
            )
            return


def _of_goodput(rows: tuple[GoodputRow, ...], runs: pd.DataFrame) -> Iterator[Advice]:
    for question, unit, prices in (
        ("Soonest at the target", "s", [(row, row.time_to_target_s) for row in rows]),
        ("Cheapest way to the target", "CPU h", [(row, row.cpu_h_to_target) for row in rows]),
    ):
        known = [(row, price) for row, price in prices if price is not None]
        if known:
            first, places = least(known)
            (best, price), rivals = known[first], [known[place] for place in places]
            never = f"{best.n_censored} of {counted(best.n, 'run')} never got there; " if best.n_censored else ""
            apart = _rivals([_cell(row) for row, _ in rivals], [price, *(value for _, value in rivals)])
            ran = runs.loc[runs["trial"].isin(best.trials)]
            yield Advice(
                question=question,
                choice=_cell(best),
                value=price,
                value_unit=unit,
                basis="emulated" if emulated(ran) else "measured",
                note=f"{never}{apart}".removesuffix("; "),
            )


def _bounds(found: ModelResults, notes: list[str]) -> Iterator[Advice]:
    verdict = attempt(lambda: found.verdict)
    if isinstance(verdict, str):
        notes.append(verdict)
        return
    where = f"at {counted(verdict.num_env_runners, 'runner')}"
    yield Advice(
        question="What binds an iteration",
        choice=f"{verdict.bound} {where}",
        value=verdict.fixed_share,
        value_unit="share that no runner shortens",
        basis="measured",
    )
    yield Advice(
        question="Most that more runners can give",
        choice=f"over the throughput {where}",
        value=verdict.most_gain,
        value_unit="x",
        basis=BOUND,
        note=f"at this batch and setting, however many runners: {in_words(verdict.most_env_steps_per_s)} env steps/s",
    )


def _predicted(results: Results, notes: list[str]) -> Iterator[Advice]:
    """Yield what the iteration-time model says up to twice the largest measured scale, and its ceiling."""
    found = results.models
    fit = attempt(lambda: fitted(found))
    if isinstance(fit, str):
        notes.append(fit)
        return
    rows = {row.quantity: row for row in prediction_rows(results, Names(results.measured))}
    most = MOST_EXTRAPOLATED * max(found.scales)
    if (knee := rows.get("knee_num_env_runners")) is None:
        notes.append(f"No knee up to {counted(most, 'runner')}: sampling and learning never take equally long.")
    else:
        yield _runners_advice("Knee: sampling takes as long as learning", knee)
    if (limit := rows.get("limit_num_env_runners")) is None:
        notes.append(f"No limit up to {counted(most, 'runner')}: each is worth its CPU, by the iteration-time model.")
    else:
        value, basis = limit.estimate, BASES[limit.basis]
        said = f"Do not go beyond n = {in_words(value, digits=1)} ({basis}, {value.level:.0%} interval)."
        yield _runners_advice("Do not go beyond", limit, said=said)
    if (ceiling := rows.get("ceiling_of_all_batches_env_steps_per_s")) is None:
        notes.append("No throughput ceiling: the fit found no cost per env step that runners do not share.")
    else:
        yield Advice(
            question="Ceiling of the throughput, of all batches",
            choice="whatever n and the batch are",
            value=ceiling.estimate,
            value_unit="env steps/s",
            basis=BASES["extrapolated"],
            note="of this minibatch, epochs and learners, by the iteration-time model",
        )
    best = attempt(lambda: found.best_batches)
    if isinstance(best, str):
        notes.append(best)
        return
    for each in best:
        yield Advice(
            question=f"Best batch at {counted(each.num_env_runners, 'runner')}",
            choice=f"about {each.train_batch_size.value:,.0f} env steps",
            value=each.train_batch_size,
            value_unit="env steps",
            basis=BASES["extrapolated" if each.extrapolated else "predicted"],
            note=f"target after {in_words(each.time_to_target_s)} s",
        )


def _runners_advice(question: str, row: Row, *, said: str = "") -> Advice:
    value = row.estimate
    choice = f"n = {value.value:.0f}"
    return Advice(
        question=question, choice=choice, value=value, value_unit="runners", basis=BASES[row.basis], said=said
    )


def _rivals(names: Sequence[str], estimates: Sequence[Estimate]) -> str:
    """Return what the best cannot be told from, and why: the intervals overlap, or not all of them are known."""
    why = "intervals overlap" if all(each.has_interval for each in estimates) else "not all have an interval"
    return f"cannot be told from {'; '.join(names)} ({why})" if names else ""


def _cell(row: GoodputRow) -> str:
    batch = "" if row.train_batch_size is None else f", batch {row.train_batch_size:,}"
    return f"{counted(row.num_env_runners, 'runner')}{batch}"
