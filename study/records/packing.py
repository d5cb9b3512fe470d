"""A copy of a study that can be published: compressed records, and no path in its command lines.

Only the words of command lines and the tracking URI lose their folders. Host names and the reasons of failures stay as
they were recorded.
"""

import lzma
import re
from pathlib import Path

from msgspec import structs

from study.errors import RecordError
from study.harmless import mask_arguments
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.records.records import StudyOpened, read_lines, written_line
from study.records.table import write_table

_FOLDERS = re.compile(r"[^\s=:]*/")
"""The folders of a path."""


def pack(folder: StudyFolder, target: Path) -> StudyFolder:
    """Copy a study to `target`, where it can be read, analysed and verified, but not resumed.

    Returns:
        The copy: study.json, space.yaml, trials.csv and records.jsonl.xz.

    Raises:
        RecordError: There is no study, its records cannot be trusted, its arguments hold a secret, or the target holds
            something already or cannot be written.
    """
    identity, packed = folder.identity(), StudyFolder(target)
    if secret := [name for name, shown in mask_arguments(identity.spec).items() if shown != identity.spec[name]]:
        # Masked, it would be another study than the certified one.
        rule = f"{secret[0]} must hold no secret, because a copy is published"
        fix = "Publish the study's report or certificate, or let the environment of a new study read it from a file."
        raise RecordError(where=str(folder.identity_file), rule=rule, fix=fix)
    rows = ledger_of(folder.records).rows.values()
    try:
        space = folder.space_file.read_text()
        if folder.space_file.stat().st_nlink > 1:  # the name of a private file, perhaps
            raise OSError(0, "a hard link")
    except (OSError, UnicodeDecodeError) as error:
        rule, got = "must be the space as it was written", f"none that can be read ({error})"
        fix = "Put the space file that the study was started with in its place."
        raise RecordError(where=str(folder.space_file), rule=rule, got=got, fix=fix) from error
    packed.prepare()
    try:
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
    except OSError as error:
        rule, fix = f"the copy could not be written ({error.strerror})", "Free some space, remove it, then pack again."
        raise RecordError(where=str(target), rule=rule, fix=fix) from error
    return packed
