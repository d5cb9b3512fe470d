"""T7: when the batch changed with the runners, what each of them did. A view of analysis.scaling; no engine."""

from analysis.estimates.results import Results
from analysis.load import StudyData
from analysis.scaling.results import Decomposition, Refusal
from analysis.tables import definitions as words
from analysis.tables.grid import TableColumn
from analysis.tables.numbers import in_words
from analysis.tables.results import left_out, of_engine
from analysis.tables.scaling_tables import FIRST_COMMAND
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows
from study.statistics import Estimate

TITLE = "Runners x batch: what each of them did to the throughput"
SAID = (words.DECOMPOSITION, words.THROUGHPUT, words.STATISTICAL, words.MEASURED, words.INTERVAL)
COLUMNS = (
    TableColumn(name="comparison", unit="", meaning="The two cells that somebody would compare."),
    TableColumn(name="changed", unit="", meaning="What changed besides the runners."),
    TableColumn(name="part", unit="", meaning="Which part of the ratio of throughputs."),
    TableColumn(name="factor", unit="1", meaning="The part as a factor; total = runners x workload.", estimate=True),
    TableColumn(name="log", unit="1", label="ln factor", meaning="Its logarithm: these add up.", estimate=True),
)


@of_engine
def decomposition(data: StudyData, results: Results) -> Table:
    """T7: the decomposition of every refused comparison, or the command for the cells that are missing."""
    found = results.strong
    if isinstance(found, str):
        return without_rows("T7", TITLE, found, definitions=SAID)
    split = [each.decomposition for each in found.refusals if each.decomposition is not None]
    missing = tuple(_missing(each) for each in found.refusals if each.missing and each.second is not None)
    if not split:
        why = missing[0] if missing else _nothing(bool(found.groups))
        excluded = left_out(found.excluded)
        return without_rows(
            "T7", TITLE, why, definitions=SAID, n_failed=found.n_failed, excluded=excluded, notes=missing[1:]
        )
    rows = [(each, name, factor, log) for each in split for name, factor, log in _parts(each)]
    frame = {
        "comparison": [f"{each.first.name} -> {each.second.name}" for each, *_ in rows],
        "changed": [f"{each.factor}: {each.values[0]} -> {each.values[1]}" for each, *_ in rows],
        "part": [name for _, name, _, _ in rows],
        **estimate_columns("factor", [factor for _, _, factor, _ in rows]),
        **estimate_columns("log", [log for _, _, _, log in rows]),
    }
    return Table(
        key="T7",
        title=TITLE,
        frame=make_frame(frame),
        columns=COLUMNS,
        definitions=SAID,
        n=sum(cell.n for cell in {cell for each in split for cell, _ in each.rates}),
        n_failed=found.n_failed,
        excluded=left_out(found.excluded),
        conclusion=split[0].sentence,
        notes=(*_rates(split), *missing),
    )


def _parts(split: Decomposition) -> list[tuple[str, Estimate, Estimate | None]]:
    return [
        ("total", split.total, split.total_log),
        ("runners", split.parallel, split.parallel_log),
        ("workload", split.batch, split.batch_log),
        ("interaction", split.interaction, None),
        ("runners, at the first workload", split.parallel_at_first, None),
        ("runners, at the second workload", split.parallel_at_second, None),
    ]


def _rates(split: list[Decomposition]) -> list[str]:
    cells = {cell.name: rate for each in split for cell, rate in each.rates}
    return [f"{name}: {in_words(rate)} env steps/s, n={rate.n}." for name, rate in cells.items()]


def _missing(refusal: Refusal) -> str:
    command = f" Run: {refusal.command}" if refusal.command else ""
    return f"{refusal.reason}{command}"


def _nothing(comparable: bool) -> str:
    if comparable:
        return "Nothing to take apart: no comparison between scales is confounded by a batch that changed too."
    return f"Nothing to take apart: it needs measured runs at two scales and two batches. Measure them: {FIRST_COMMAND}"
