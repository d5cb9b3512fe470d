"""T5, phases: where the time of an iteration goes. A view of analysis.scaling; no engine."""

from collections.abc import Iterator

from analysis.estimates.results import Results, attempt
from analysis.scaling.phases import stragglers
from analysis.scaling.results import PhaseRow, Phases
from analysis.tables import definitions as words
from analysis.tables.columns import BATCH, CPUS, FAILED_RUNS, FIRST_COMMAND, RUNNERS, RUNS, WORKLOAD, estimate
from analysis.tables.numbers import in_words
from analysis.tables.table import Layout, Table
from study.statistics import Estimate

NOTHING = "No phases: no run is finished with a measured clock."
MOST_UNEXPLAINED = 0.02
"""Share of an iteration that the phases may miss, at the median, before they explain it no more."""
MEANINGS = {
    "runners": "The mean runner's own time in sampling.",
    "imbalance": "From there to the slowest runner's end.",
    "transfer": "From there until its samples were here: sampling is runners + imbalance + transfer.",
    "learning": "The update: connectors, advantages, all epochs.",
    "sync": "Sending the new weights to the runners.",
    "rest": "The iteration less sampling, learning and sync.",
    "iteration": "The whole iteration, T.",
}
LONG = {"runners": "the mean runner's sampling", "imbalance": "waiting for the slowest runner"}
"""Phases by longer names, for sentences."""
_CELL = (WORKLOAD, RUNNERS, CPUS, BATCH, RUNS, FAILED_RUNS)
PHASES = Layout(
    key="T5",
    title="Phases of a training iteration",
    columns=(
        *_CELL,
        *(estimate(f"{name}_s", "s", name, meaning) for name, meaning in MEANINGS.items()),
    ),
    definitions=(words.PHASES, words.CONNECTOR, words.MEASURED, words.INTERVAL),
    first=("num_env_runners", "iteration_s", *(f"{name}_s" for name in MEANINGS)),
)


def phases(results: Results) -> Table:
    """T5: seconds per iteration by phase; as notes, stragglers and whether more runners can help."""
    found = results.phases
    if isinstance(found, str):
        return PHASES.without(found)
    if not found.rows:
        return PHASES.without(NOTHING, FIRST_COMMAND, n_failed=found.n_failed, excluded=found.excluded)
    several = len({row.label for row in found.rows}) > 1
    verdict = attempt(lambda: results.models.verdict)
    return PHASES.table(
        found.rows,
        _phase_sentence(found),
        n=found.n,
        n_failed=found.n_failed,
        excluded=found.excluded,
        notes=(*_stragglers(found, several), *([] if isinstance(verdict, str) else [verdict.sentence])),
        values={
            "workload": [row.label for row in found.rows],
            **{f"{name}_s": [row.seconds.get(name) for row in found.rows] for name in MEANINGS},
        },
        hidden=() if several else ("workload",),
    )


def _stragglers(found: Phases, several: bool) -> Iterator[str]:
    """Yield a sentence for every cell where the lower bound says that the others wait for one runner."""
    for row, ratio in stragglers(found):
        where = f" ({row.label})" if several else ""
        yield (
            f"Straggler at {row.num_env_runners} runners{where}: the slowest one takes {in_words(ratio)} times "
            "as long as the mean one."
        )


def _widest(found: Phases) -> PhaseRow:
    """Return the row of the largest scale; of several workloads there, that with most runs."""
    return max(found.rows, key=lambda row: (row.num_env_runners, row.n))


def _phase_sentence(found: Phases) -> str:
    row = _widest(found)
    shares = {name: share for name, share in row.shares.items() if name != "rest"}
    largest = max(shares, key=lambda name: shares[name].value, default="rest")
    told = f"{LONG.get(largest, largest)} takes {_percent(shares[largest])} of an iteration"
    open_ = [each for each in found.rows if each.unexplained > MOST_UNEXPLAINED]
    closed = f"the phases explain every cell to within {MOST_UNEXPLAINED:.0%} at the median"
    if open_:
        worst = max(open_, key=lambda each: each.unexplained)
        closed = (
            f"in {len(open_)} of {len(found.rows)} cells more than {MOST_UNEXPLAINED:.0%} stay unexplained (at most "
            f"{worst.unexplained:.1%}, at {worst.num_env_runners} runners)"
        )
    return f"At {row.num_env_runners} runners {told}; {closed}."


def _percent(share: Estimate) -> str:
    if not share.has_interval:
        return f"{share.value:.0%} (n={share.n}, no interval)"
    return f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]"
