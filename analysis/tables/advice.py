"""T10, the recommendation: fastest, cheapest, knee, "do not go beyond n", best batch. A view; no engine.

Every row says whether it was measured or is predicted, with its interval; a question that the runs do not answer is a
note that says what would answer it.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis import models
from analysis.estimates.fits import ModelResults
from analysis.estimates.results import Results, attempt
from analysis.load import StudyData
from analysis.scaling.results import Goodput, GoodputRow, Scaling, ScalingGroup, ScalingRow
from analysis.tables import definitions as words
from analysis.tables.grid import TableColumn
from analysis.tables.model_tables import left_out_by_models
from analysis.tables.numbers import in_words, overlap
from analysis.tables.results import of_engine
from analysis.tables.scaling_tables import FIRST_COMMAND
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows
from study.statistics import Estimate

TITLE = "Recommendation"
SAID = (words.ADVICE, words.KNEE, words.LIMIT, words.CEILING, words.BEST_BATCH, words.MODEL_INTERVAL, words.INTERVAL)
MEASURED, PREDICTED, EXTRAPOLATED = "measured", "predicted", "predicted, extrapolated"
BOUND = "bound, extrapolated"
"""Basis of what no number of runners exceeds: from measured phases, as if runners took no time."""
MOST_EXTRAPOLATED = 2
"""Times the largest measured scale up to which a prediction is said in the conclusion; beyond, it is in the table."""
MOST_CLOSURE = 0.1
"""Median relative error on its own runs above which the iteration-time model predicts nothing here; it aims at 0.02."""
ENOUGH = models.MARGINAL_THRESHOLD
COLUMNS = (
    TableColumn(name="question", unit="", meaning="What is asked."),
    TableColumn(name="choice", unit="", meaning="The answer, or the cell that it is about."),
    TableColumn(name="value", unit="1", meaning="The number behind it, in the unit beside it.", estimate=True),
    TableColumn(name="value_unit", unit="", label="unit", meaning="Unit of the number."),
    TableColumn(name="basis", unit="", meaning="How it is known."),
    TableColumn(name="note", unit="", meaning="What to know before acting on it."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One line of the recommendation."""

    question: str
    choice: str
    value: Estimate
    unit: str
    basis: str
    note: str = ""
    said: str = ""
    """What the conclusion says of it; empty for a line that stays in the table."""


@of_engine
def recommendation(data: StudyData, results: Results) -> Table:
    """T10: what to do, each line measured or predicted, with its interval."""
    found = results.models
    notes: list[str] = []
    advice = [*_measured(results, notes), *_verdict(found, notes), *_predicted(found, notes), *_batches(found, notes)]
    if not advice:
        why = f"No recommendation: {' '.join(dict.fromkeys(notes))} Measure first: {FIRST_COMMAND}"
        return without_rows(
            "T10", TITLE, why, definitions=SAID, n_failed=results.num_failed, excluded=left_out_by_models(found)
        )
    frame = {
        "question": [each.question for each in advice],
        "choice": [each.choice for each in advice],
        **estimate_columns("value", [each.value for each in advice]),
        "value_unit": [each.unit for each in advice],
        "basis": [each.basis for each in advice],
        "note": [each.note for each in advice],
    }
    return Table(
        key="T10",
        title=TITLE,
        frame=make_frame(frame),
        columns=COLUMNS,
        definitions=SAID,
        n=max(results.strong.n if isinstance(results.strong, Scaling) else 0, sum(map(len, found.selection.groups))),
        n_failed=results.num_failed,
        excluded=left_out_by_models(found),
        conclusion=_conclusion(advice, found),
        notes=tuple(dict.fromkeys(notes)),
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
        yield from _of_goodput(goodput.groups[0].rows)


def _fastest(strong: Scaling) -> Advice:
    """Return the cell with the highest throughput, of all workloads that ran at several scales."""
    cells = [(group, row) for group in strong.groups for row in group.rows]
    group, fastest = max(cells, key=lambda cell: cell[1].env_steps_per_s.value)
    rivals = [
        (other, row)
        for other, row in cells
        if row is not fastest and overlap(row.env_steps_per_s, fastest.env_steps_per_s)
    ]
    several = len(strong.groups) > 1

    def place(of: ScalingGroup, row: ScalingRow) -> str:
        return f"{_runners(row.num_env_runners)}{f' ({of.label})' if several else ''}"

    apart = f"not told apart from {'; '.join(place(*each) for each in rivals)} (intervals overlap)" if rivals else ""
    return Advice(
        question="Fastest: highest throughput",
        choice=place(group, fastest),
        value=fastest.env_steps_per_s,
        unit="env steps/s",
        basis=MEASURED,
        note=apart,
        said=f"Fastest of those measured: {place(group, fastest)}, {in_words(fastest.env_steps_per_s)} env "
        f"steps/s{', ' + apart if apart else ''}.",
    )


def _of_scaling(rows: tuple[ScalingRow, ...], named: str) -> Iterator[Advice]:
    known = [(row, row.efficiency_p) for row in rows if row.efficiency_p is not None]
    if known:
        cheapest, efficiency = max(known, key=lambda pair: pair[1].value)
        close = [row for row, other in known if row is not cheapest and overlap(other, efficiency)]
        yield Advice(
            question="Cheapest env step: highest efficiency per CPU",
            choice=f"{_runners(cheapest.num_env_runners)}{named}",
            value=efficiency,
            unit="E_P",
            basis=MEASURED,
            note=f"not told apart from {_and(close)}" if close else "",
        )
    poor = [
        (last, row, row.marginal)
        for last, row in itertools.pairwise(rows)
        if row.marginal is not None and row.marginal.has_interval and row.marginal.high < ENOUGH
    ]
    if poor:
        last, row, share = poor[0]
        scales = f"from {last.num_env_runners} to {_runners(row.num_env_runners)}"
        yield Advice(
            question="Do not go beyond",
            choice=f"n = {last.num_env_runners}",
            value=share,
            unit="d ln X / d ln P",
            basis=MEASURED,
            note=f"{scales}; of the scales that were measured",
            said=f"Do not go beyond n = {last.num_env_runners} (measured): {scales} a CPU more gives {in_words(share)} "
            "of its share.",
        )


def _of_goodput(rows: tuple[GoodputRow, ...]) -> Iterator[Advice]:
    for question, unit, prices in (
        ("Soonest at the target", "s", [(row, row.time_to_target_s) for row in rows]),
        ("Cheapest way to the target", "CPU h", [(row, row.cpu_h_to_target) for row in rows]),
    ):
        known = [(row, price) for row, price in prices if price is not None]
        if known:
            best, price = min(known, key=lambda pair: pair[1].value)
            yield Advice(
                question=question,
                choice=_cell(best),
                value=price,
                unit=unit,
                basis=MEASURED,
                note=_not_apart(best, known),
            )


def _not_apart(best: GoodputRow, known: Sequence[tuple[GoodputRow, Estimate]]) -> str:
    """Return which rows cannot be told from the best one."""
    own = next(value for row, value in known if row is best)
    rivals = [_cell(row) for row, value in known if row is not best and overlap(value, own)]
    return f"not told apart from {'; '.join(rivals)}" if rivals else ""


def _verdict(found: ModelResults, notes: list[str]) -> Iterator[Advice]:
    verdict = attempt(lambda: found.verdict)
    if isinstance(verdict, str):
        notes.append(verdict)
        return
    where = f"at {_runners(verdict.num_env_runners)}"
    yield Advice(
        question="What binds an iteration",
        choice=f"{verdict.bound} {where}",
        value=verdict.fixed_share,
        unit="share that no runner shortens",
        basis=MEASURED,
    )
    yield Advice(
        question="Most that more runners can give",
        choice=f"over the throughput {where}",
        value=verdict.most_gain,
        unit="x",
        basis=BOUND,
        note=f"at this batch and setting, however many runners: {in_words(verdict.most_env_steps_per_s)} env steps/s",
    )


def _predicted(found: ModelResults, notes: list[str]) -> Iterator[Advice]:
    fit = attempt(lambda: found.fit)
    if isinstance(fit, str):
        notes.append(fit)
        return
    if fit.closure > MOST_CLOSURE:
        notes.append(
            f"The iteration-time model does not describe these runs (off by {fit.closure:.0%} at their median, more "
            f"than {MOST_CLOSURE:.0%}): nothing is predicted from it."
        )
        return
    cell = found.cell
    knee, limit, ceiling = (
        models.knee(fit, cell)[0],
        models.runner_limit(fit, cell)[0],
        models.throughput_ceiling(fit, cell)[0],
    )
    if knee.num_env_runners is None:
        notes.append(f"No knee: {knee.reason}.")
    else:
        yield Advice(
            question="Knee: sampling takes as long as learning",
            choice=f"n = {knee.num_env_runners.value:.0f}",
            value=knee.num_env_runners,
            unit="runners",
            basis=_basis(knee.extrapolated),
        )
    if limit.num_env_runners is None or limit.env_steps_per_s is None:
        notes.append(f"No limit of the runners: {limit.reason}, by the iteration-time model.")
    else:
        why = f"; {limit.reason}" if limit.reason else ""
        yield Advice(
            question="Do not go beyond",
            choice=f"n = {limit.num_env_runners.value:.0f}",
            value=limit.num_env_runners,
            unit="runners",
            basis=_basis(limit.extrapolated),
            note=f"{in_words(limit.env_steps_per_s)} env steps/s there{why}",
            said=f"Do not go beyond n = {in_words(limit.num_env_runners, digits=1)} ({_basis(limit.extrapolated)}, "
            f"{limit.num_env_runners.level:.0%} interval{why})."
            if limit.num_env_runners.value <= MOST_EXTRAPOLATED * max(found.scales)
            else "",
        )
    if ceiling is None:
        notes.append("No throughput ceiling: the fit found no cost per env step that runners do not share.")
    else:
        yield Advice(
            question="Ceiling of the throughput, of all batches",
            choice="whatever n and the batch are",
            value=ceiling,
            unit="env steps/s",
            basis=EXTRAPOLATED,
            note="of this minibatch, epochs and learners, by the iteration-time model",
        )


def _batches(found: ModelResults, notes: list[str]) -> Iterator[Advice]:
    fit = attempt(lambda: found.fit)
    if isinstance(fit, str) or fit.closure > MOST_CLOSURE:
        return  # said already
    best = attempt(lambda: found.best_batches)
    if isinstance(best, str):
        notes.append(best)
        return
    for each in best:
        yield Advice(
            question=f"Best batch at {_runners(each.num_env_runners)}",
            choice=f"about {each.best.train_batch_size.value:,.0f} env steps",
            value=each.best.train_batch_size,
            unit="env steps",
            basis=_basis(each.best.extrapolated),
            note=f"target after {in_words(each.best.time_to_target_s)} s",
        )


def _conclusion(advice: list[Advice], found: ModelResults) -> str:
    verdict = attempt(lambda: found.verdict)
    said = [] if isinstance(verdict, str) else [verdict.sentence]
    said += [each.said for each in advice if each.said]
    first = advice[0]
    return " ".join(
        said or [f"{first.question}: {first.choice}, {in_words(first.value)} {first.unit} ({first.basis})."]
    )


def _basis(extrapolated: bool) -> str:
    return EXTRAPOLATED if extrapolated else PREDICTED


def _runners(number: int) -> str:
    return "1 runner" if number == 1 else f"{number} runners"


def _cell(row: GoodputRow) -> str:
    batch = "" if row.train_batch_size is None else f", batch {row.train_batch_size:,}"
    return f"{_runners(row.num_env_runners)}{batch}"


def _and(rows: list[ScalingRow]) -> str:
    return f"n = {', '.join(str(row.num_env_runners) for row in rows)} (intervals overlap)"
