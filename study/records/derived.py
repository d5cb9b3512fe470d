"""What is made of the records: the table of trials for people and spreadsheets, and a copy that can be published."""

import csv
import io
import lzma
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import structs

from study.errors import RecordError
from study.harmless import csv_cell, mask_arguments, printable
from study.metrics import OF_TRIALS
from study.records.files import write_atomically
from study.records.folder import StudyFolder
from study.records.ledger import TrialRow, ledger_of
from study.records.records import StudyOpened, read_lines, written_line

# --- trials.csv -------------------------------------------------------------------------------------------------------

_LEADING = (
    *("trial", "status", "num_env_runners", "train_batch_size", "lr", "seed", "env_steps_per_s", "wall_time_s"),
    *("final_return", "score", "execution", "timing", "engine"),
)
"""The columns that come first; the other parameters and metrics follow."""
_OF_ROW = (
    *("trial", "status", "seed", "execution", "timing", "engine"),
    *("attempt", "num_cpus", "checkpoint", "timing_reason", "reason"),
)


def table_row(row: TrialRow) -> dict[str, Any]:
    """Return one line of the table of trials, all columns."""
    line: dict[str, Any] = {
        **dict.fromkeys((*_LEADING, *row.setting, *OF_TRIALS)),
        **row.setting,
        **row.summary,
        **row.columns(),
        **{"max_iterations": row.iterations, "baseline": row.anchor, "stage": row.stage},
        **{"variant": row.variant if row.stage else None, "digest": row.digest or None},
        "stands_for_runners": row.scale,
        **{name: getattr(row, name) for name in _OF_ROW},
    }
    if row.provisional and row.status == "running":  # the whole trial has yet to settle the label
        line["timing"] = None
    return line


def write_table(path: Path, rows: Iterable[TrialRow]) -> None:
    """Write one line per trial, by its number; an empty cell is a quantity that does not exist."""
    lines = [table_row(row) for row in sorted(rows, key=lambda row: row.trial)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = dict.fromkeys(name for line in lines for name in line)
    for cells in (names, *([line.get(name) for name in names] for line in lines)):
        writer.writerow([csv_cell(printable(cell)) if isinstance(cell, str) else cell for cell in cells])
    write_atomically(path, text.getvalue())


# --- a copy for publication -------------------------------------------------------------------------------------------

_FOLDERS = re.compile(r"[^\s=:]*/")
"""The folders of a path."""


def pack(folder: StudyFolder, target: Path) -> StudyFolder:
    """Copy a study to `target`, where it can be read, analysed and verified, but not resumed.

    The words of command lines and the tracking URI lose their folders. Host names and the reasons of failures stay as
    they were recorded. The copy has study.json, space.yaml, trials.csv and records.jsonl.xz.

    Raises:
        RecordError: There is no study, its records cannot be trusted, its arguments hold a secret, or the target holds
            something already or cannot be written.
    """
    identity, packed = folder.identity(), StudyFolder(target)
    if any(shown != identity.spec[name] for name, shown in mask_arguments(identity.spec).items()):
        # Masked, it would be another study than the certified one.
        rule = "arguments must hold no secret, because a copy is published"
        fix = "Publish the study's report or certificate, or let the environment of a new study read it from a file."
        raise RecordError(where=str(folder.identity_file), rule=rule, fix=fix)
    rows = ledger_of(folder.records).rows.values()
    try:
        space = folder.space_file.read_text()
        packed.prepare(fix="Name another folder for the copy.")
        # The default MLflow: a published study is mirrored to nowhere until somebody does so.
        public = {"tracking_uri": "sqlite:///mlflow.db", "optuna_storage": None, "space": Path(identity.space).name}
        packed.write(structs.replace(identity, **public), space)
        with lzma.open(packed.packed_records, "wb", preset=9) as sink:
            for line in read_lines(folder.records):
                record = line.record
                if isinstance(record, StudyOpened):
                    command = [_FOLDERS.sub("", word) for word in record.provenance.get("command") or []]
                    record = structs.replace(record, provenance={**record.provenance, "command": command})
                sink.write(written_line(record, seq=line.seq, moment=line.time))
        write_table(packed.table, rows)
    except (OSError, UnicodeDecodeError) as error:
        rule, fix = f"the copy could not be written ({error})", "Free some space, remove it, then pack again."
        raise RecordError(where=str(target), rule=rule, fix=fix) from error
    return packed
