"""A copy of a study that can be published: compressed records, and no path in its command lines. No engine.

Nothing that a figure rests on is changed: only the words of command lines and the tracking URI lose their folders. Host
names and the reasons of failures stay as they were recorded.
"""

import json
import lzma
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson

from study.errors import RecordError
from study.tracking.folder import StudyFolder
from study.tracking.ledger import fold
from study.tracking.records import StudyOpened, open_records, read_lines
from study.tracking.table import write_table

PUBLISHED_URI = "sqlite:///mlflow.db"
"""The default; a published study is mirrored to nowhere until somebody does so."""
_FOLDERS = re.compile(r"(?:[A-Za-z]:)?(?:/[^/\s=]+)*/(?=[^/\s=]*$)")
"""The folders of a path at the end of a word."""


def pack(folder: StudyFolder, target: Path) -> StudyFolder:
    """Copy a study to `target`, where it can be read, analysed and verified, but not resumed.

    Returns:
        The copy: study.json, space.yaml, records.jsonl.xz and trials.csv.

    Raises:
        RecordError: There is no study, its records cannot be trusted, or the target holds something already.
    """
    identity = folder.identity()
    lines = list(read_lines(folder.records))
    packed = StudyFolder(target)
    packed.prepare()
    content = asdict(replace(identity, tracking_uri=PUBLISHED_URI, space=Path(identity.space).name))
    packed.identity_file.write_text(json.dumps(content, indent=1))
    packed.space_file.write_text(folder.space_file.read_text())
    with open_records(folder.records) as source, lzma.open(packed.packed_records, "wb", preset=9) as sink:
        for line, raw in zip(lines, source, strict=False):
            sink.write(_without_paths(raw) if isinstance(line.record, StudyOpened) else raw)
    write_table(packed.table, fold((line.record, line.time) for line in lines).rows.values())
    return packed


def unpacked(folder: StudyFolder) -> StudyFolder:
    """Return the folder if its records can be written to.

    Raises:
        RecordError: They are compressed.
    """
    if folder.records == folder.packed_records:
        raise RecordError(
            f"{folder.packed_records}: a packed study can be read only. Fix: copy the folder, run `xz -d "
            f"{folder.packed_records.name}` in the copy, and use that."
        )
    return folder


def _without_paths(raw: bytes) -> bytes:
    content: dict[str, Any] = orjson.loads(raw)
    command = content["provenance"].get("command") or []
    content["provenance"]["command"] = [_FOLDERS.sub("", word) for word in command]
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
