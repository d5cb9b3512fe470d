"""T2b: the rows whose clock says nothing about scaling, shown apart with the reason. A view; no engine, no speed-up."""

import pandas as pd

from analysis.estimates.results import Results
from analysis.load import StudyData
from analysis.scaling.selection import at_their_scale
from analysis.tables import definitions as words
from analysis.tables.grid import TableColumn
from analysis.tables.results import FAILED, of_engine
from analysis.tables.table import Table, make_frame, without_rows

TITLE = "Not measured: no speed-up"
NOTES = {
    "oversubscribed": "oversubscribed: more processes than cores.",
    "emulated": "emulated: the lanes of all runners stepped in few processes: their learning, not their clock.",
    "tainted": "tainted: the trial failed, a runner was lost, a sample dropped, or others worked on its nodes.",
}
UNKNOWN = "no label"
COLUMNS = (
    TableColumn(name="timing", unit="", meaning="Why the clock says nothing about scaling."),
    TableColumn(
        name="num_env_runners", unit="1", label="n", meaning="Environment runners, or those that are stood for."
    ),
    TableColumn(
        name="num_cpus", unit="CPU", label="P", meaning="CPUs reserved; the least and the most where they differ."
    ),
    TableColumn(name="n", unit="1", label="runs", meaning="Runs with this label, the failed ones included."),
    TableColumn(name="n_failed", unit="1", label="failed", meaning="Failed runs among them."),
    TableColumn(name="workloads", unit="1", meaning="Different workload fingerprints among them."),
    TableColumn(
        name="least", unit="env steps/s", label="X, least", meaning="Smallest rate seen: a range, no estimate."
    ),
    TableColumn(name="median", unit="env steps/s", label="X, median", meaning="Median rate seen, of all workloads."),
    TableColumn(name="largest", unit="env steps/s", label="X, largest", meaning="Largest rate seen."),
    TableColumn(name="reason", unit="", meaning="As recorded; the commonest where there are several."),
)


@of_engine
def not_measured(data: StudyData, results: Results) -> Table:
    """T2b: oversubscribed, emulated and tainted rows by scale, with the range of their rates."""
    runs = at_their_scale(data.runs)
    label = runs["timing"].astype(object).fillna(UNKNOWN)
    # Folded in one stock runner or emulated in one process: two clocks, of one scale.
    folded = runs["stands_for_runners"].notna()
    apart = runs.assign(label=label, folded=folded)[(label != "measured").to_numpy()]
    if apart.empty:
        why = "None: every run has a measured clock." if len(runs) else "None: the study has no runs yet."
        return without_rows("T2b", TITLE, why, n_failed=results.num_failed)
    cells = apart.groupby(["label", "num_env_runners", "folded"], sort=True, dropna=False)
    rows = [_row(cell) for _, cell in cells]
    counts = apart["label"].value_counts()
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return Table(
        key="T2b",
        title=TITLE,
        frame=make_frame({column.name: [row[column.name] for row in rows] for column in COLUMNS}),
        columns=COLUMNS,
        definitions=(words.CPUS, words.THROUGHPUT, words.MEASURED),
        n=len(apart),
        n_failed=int((apart["status"] == FAILED).sum()),
        excluded={"measured: see T2": len(runs) - len(apart)},
        conclusion=f"{len(apart):,} of {len(runs):,} runs have no measured clock ({shown}): their times and rates say "
        "nothing about scaling and are in no other table of times.",
        notes=tuple(NOTES[name] for name in NOTES if name in counts),
    )


def _row(cell: pd.DataFrame) -> dict[str, object]:
    rates = cell["env_steps_per_s"].dropna()
    cpus = sorted({int(each) for each in cell["num_cpus"].dropna()})
    reasons = cell["timing_reason"].dropna()
    scale = cell["num_env_runners"].iloc[0]
    return {
        "timing": str(cell["label"].iloc[0]),
        "num_env_runners": None if pd.isna(scale) else int(scale),
        "num_cpus": "unknown" if not cpus else str(cpus[0]) if len(cpus) == 1 else f"{cpus[0]} to {cpus[-1]}",
        "n": len(cell),
        "n_failed": int((cell["status"] == FAILED).sum()),
        "workloads": int(cell["fingerprint"].nunique()),
        "least": float(rates.min()) if len(rates) else None,
        "median": float(rates.median()) if len(rates) else None,
        "largest": float(rates.max()) if len(rates) else None,
        "reason": str(reasons.value_counts().index[0]) if len(reasons) else "not settled",
    }
