"""A copy of a study that can be published: compressed records, and no path in its command lines. No engine.

Only the words of command lines and the tracking URI lose their folders, and where a person asks for it the floats of
training iterations all but their first digits. Host names and the reasons of failures stay as they were recorded.
"""

import lzma
import re
from pathlib import Path
from typing import Any

from msgspec import structs

from study.errors import RecordError
from study.harmless import mask_arguments
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import fold_lines
from study.records.records import Iteration, Record, StudyOpened, read_lines, written_line
from study.records.table import write_table

PUBLISHED_URI = "sqlite:///mlflow.db"
"""The default; a published study is mirrored to nowhere until somebody does so."""
_FOLDERS = re.compile(r"[^\s=:]*/")
"""The folders of a path."""


def pack(folder: StudyFolder, target: Path, *, results_only: bool = False, digits: int | None = None) -> StudyFolder:
    """Copy a study to `target`, where it can be read, analysed and verified, but not resumed.

    Args:
        folder: The study.
        target: Where the copy is made.
        results_only: Leave out the training iterations, a tenth of the size: enough for tables of results, not
            for curves or a certificate. What is added up from iterations is then in trials.csv alone. The
            other records are numbered anew.
        digits: Significant digits that the floats of training iterations keep; None for all. At 7, times are exact
            to a microsecond or so and the learner's single-precision numbers whole, in half the size.

    Returns:
        The copy: study.json, space.yaml, trials.csv, and records.jsonl.xz or results.jsonl.xz.

    Raises:
        RecordError: There is no study, its records cannot be trusted or lack the iterations already, or the target
            holds something already or cannot be written: then nothing of the copy is left there.
    """
    identity = folder.identity()
    if folder.records == folder.packed_results:  # and trials.csv alone has what was added up from them
        rule, got = "must hold the training iterations", "a study that was packed with --results-only"
        fix = "Copy its folder as it is, or pack the study that it was made of."
        raise RecordError(where=str(folder.records), rule=rule, got=got, fix=fix)
    _check_secrets(identity, folder)
    lines, space = list(read_lines(folder.records)), _space_of(folder)
    ledger, packed = fold_lines(lines, folder.records), StudyFolder(target)
    packed.prepare()
    published = structs.replace(
        identity, tracking_uri=PUBLISHED_URI, optuna_storage=None, space=Path(identity.space).name
    )
    file = packed.packed_results if results_only else packed.packed_records
    kept = [line for line in lines if not (results_only and isinstance(line.record, Iteration))]
    try:
        packed.create(published, space)
        with lzma.open(file, "wb", preset=9) as sink:
            for seq, line in enumerate(kept):
                sink.write(written_line(_published(line.record, digits), seq=seq, moment=line.time))
        write_table(packed.table, ledger.rows.values())
    except (OSError, RecordError) as error:
        for written in (packed.identity_file, packed.space_file, file, packed.table):
            written.unlink(missing_ok=True)
        if isinstance(error, RecordError):
            raise
        rule, fix = f"the copy could not be written ({error.strerror})", "Free some space, then pack again."
        raise RecordError(where=str(target), rule=rule, fix=fix) from error
    return packed


def _check_secrets(identity: StudyIdentity, folder: StudyFolder) -> None:
    """Refuse a study with a secret in its space: masked, it would be another study than the certified one."""
    for name, shown in mask_arguments(identity.spec).items():
        if shown != identity.spec[name]:
            got = "one in its configuration" if name == "script" else str(shown)
            rule = f"{name} must hold no secret, because a copy is published"
            fix = (
                "Publish the study's report or certificate, or let the environment of a new study read it from a file."
            )
            raise RecordError(where=str(folder.identity_file), rule=rule, got=got, fix=fix)


def _published(record: Record, digits: int | None) -> Record:
    """Return a record without the folders of a command line, and with fewer digits."""
    if isinstance(record, StudyOpened):
        command = [_FOLDERS.sub("", word) for word in record.provenance.get("command") or []]
        return structs.replace(record, provenance={**record.provenance, "command": command})
    if isinstance(record, Iteration) and digits is not None:
        metrics = {name: _rounded(value, digits) for name, value in record.metrics.items()}
        return structs.replace(record, wall_time_s=_rounded(record.wall_time_s, digits), metrics=metrics)
    return record


def _rounded(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _space_of(folder: StudyFolder) -> str:
    try:
        if folder.space_file.stat().st_nlink > 1:  # the name of a private file, perhaps
            raise OSError(0, "it is also known by another name, a hard link")
        return folder.space_file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        rule, got = "must be the space as it was written", f"none that can be read ({error})"
        fix = "Put the space file that the study was started with in its place."
        raise RecordError(where=str(folder.space_file), rule=rule, got=got, fix=fix) from error


def unpacked(folder: StudyFolder) -> StudyFolder:
    """Return the folder if its records can be written to.

    Raises:
        RecordError: They are compressed.
    """
    if folder.records.suffix == ".xz":
        fix = f"Copy the folder, run `xz -d {folder.packed_records.name}` in the copy, and use that."
        raise RecordError(where=str(folder.records), rule="a packed study can be read only", fix=fix)
    return folder
