"""The efficiency table of a study in short, as far as it has come. Loads pandas and SciPy only when there is one."""

from typing import TYPE_CHECKING

from analysis.status.reader import StatusReader
from study.errors import StudyError
from study.text import count

if TYPE_CHECKING:
    from analysis.tables.table import Table

SHOWN = ("workload", "num_env_runners", "num_cpus", "n", "env_steps_per_s", "speed_up", "efficiency_n", "efficiency_p")


def efficiency_so_far(reader: StatusReader) -> "Table | str":
    """Return T2 with its chief columns, or in a sentence why there is none yet."""
    rows = reader.ledger.rows.values()
    measured = [row for row in rows if row.status == "finished" and row.timing == "measured"]
    scales = {row.num_env_runners for row in measured}
    if len(scales) < 2:
        found = f"{len(measured)} at {count(len(scales), 'scale')}"
        return f"None yet: it needs finished trials with a measured clock at two scales, got {found}."
    from analysis.estimates import Results
    from analysis.load import from_folder
    from analysis.tables.catalogue import table_of

    try:
        table = table_of("T2", Results(from_folder(reader.folder.path)))
    except StudyError as error:
        return f"None: {error}"
    return table.said if table.empty else table.select(SHOWN)
