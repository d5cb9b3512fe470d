"""Whether the files of a study's folder can be used, and agree with each other. Reads files; imports no engine.

The records are the truth, and what a resume cannot trust it must not begin anew: each check names the file and the way
out. What follows from the records (tables, MLflow, Optuna's storage) is made again and needs no check.
"""

import csv
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from study.errors import RecordError
from study.records.folder import StudyFolder
from study.records.ledger import Ledger
from study.records.records import RESTORE, Line, read_lines
from study.records.table import read_table

_ENDED = ("finished", "failed")
_SHOWN = 5
"""Most trials in a message."""


def check_files(folder: StudyFolder) -> None:
    """Refuse a folder in which something cannot be read and written: before anything starts, all of it at once.

    Raises:
        RecordError: Something else is in the place of a file, or its permissions forbid it.
    """
    faults = [fault for file in folder.files if (fault := _fault_of(file))]
    for part in (folder.checkpoints, folder.tensorboard):
        if os.path.lexists(part) and not part.is_dir():
            faults.append(f"{part.name} must be a folder")
    if not os.access(folder.path, os.R_OK | os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):
        faults.append("the folder itself must be readable and writable")
    if faults:
        raise RecordError(
            where=str(folder.path),
            rule="a study reads and writes its files",
            got="; ".join(faults),
            fix="Correct the permissions, or move away what is in a file's place and restore the file from a backup "
            "(study.json, records.jsonl; the others are made anew).",
        )


def ledger_of(records: Path) -> Ledger:
    """Return the state that a records file leads to.

    Raises:
        RecordError: A line cannot be trusted, or cannot follow on those before it.
    """
    return fold_lines(read_lines(records), records)


def fold_lines(lines: Iterable[Line], records: Path, ledger: Ledger | None = None) -> Ledger:
    """Return the state that the lines of a records file lead to, from `ledger` on or from the beginning.

    Raises:
        RecordError: A line cannot follow on those before it.
    """
    ledger = Ledger() if ledger is None else ledger
    for line in lines:
        try:
            ledger.apply(line.record, line.time)
        except RecordError as error:
            where, parts = f"{records}: line {line.seq + 1}", {"rule": error.rule, "got": error.got, "fix": error.fix}
            raise RecordError(where=where, **parts) from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            where = f"{records}: line {line.seq + 1}"
            rule = f"a {line.record.kind} record must follow on the lines before it"
            raise RecordError(where=where, rule=rule, got=f"{type(error).__name__}: {error}", fix=RESTORE) from error
    return ledger


def check_not_cut(folder: StudyFolder, ledger: Ledger, *, num_mirrored: int = 0) -> None:
    """Refuse records that lack what other files of the folder prove: a resume would run it again as if it never was.

    Raises:
        RecordError: Trials have ended, or MLflow has records, of which the records know nothing.
    """
    for witness, evidence, missing in _witnesses(folder, ledger):
        shown = ", ".join(map(str, missing[:_SHOWN])) + ("…" if len(missing) > _SHOWN else "")
        where, got = str(folder.records), f"none of trial {shown}, which {witness}: the records were cut"
        fix = f"{RESTORE} Where the records are right, move away {evidence}."
        raise RecordError(where=where, rule="must hold every trial that was recorded", got=got, fix=fix)
    if num_mirrored > 0 and ledger.sessions == 0:
        where, rule = str(folder.records), f"must hold the {num_mirrored} records that MLflow has (mirror.json)"
        raise RecordError(where=where, rule=rule, got="none: the file was emptied", fix=RESTORE)


def _witnesses(folder: StudyFolder, ledger: Ledger) -> Iterator[tuple[str, str, list[int]]]:
    """Yield what proves that trials ran, which files those are, and the trials that are not on record."""
    ended = {number for number, row in ledger.rows.items() if row.ended}
    if missing := sorted(_ended_in(folder.table) - ended):
        yield "trials.csv shows as ended", "trials.csv", missing
    if missing := sorted(_with_policy(folder.checkpoints) - ledger.rows.keys()):
        yield "checkpoints/ holds a policy of", "the folders of these trials in checkpoints/", missing


def _ended_in(table: Path) -> set[int]:
    """Return the trials that the table of trials shows as ended; none where it is damaged and proves nothing."""
    try:
        return {int(row["trial"]) for row in read_table(table) if row["status"] in _ENDED}
    except (OSError, ValueError, LookupError, TypeError, csv.Error):
        return set()


def _with_policy(checkpoints: Path) -> set[int]:
    names = (entry.name.removeprefix("trial_") for entry in checkpoints.glob("trial_*"))
    return {int(name) for name in names if name.isdecimal()}


_EFFECTIVE = os.access in os.supports_effective_ids


def _fault_of(file: Path) -> str:
    """Return what keeps a driver from using a file; empty when nothing does, or it is not there."""
    try:
        if not os.path.lexists(file):
            return ""
        if not file.is_file():
            return f"{file.name} must be a file"
        if file.stat().st_nlink > 1:  # what is written to it would be in another file too
            return f"{file.name} must have one name, got a hard link to it (replace it by a copy)"
    except OSError as error:
        return f"{file.name} must be a file ({error.strerror})"
    if not os.access(file, os.R_OK | os.W_OK, effective_ids=_EFFECTIVE):
        return f"{file.name} must be readable and writable"
    return ""
