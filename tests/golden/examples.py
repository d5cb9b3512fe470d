"""The recorded studies that come with the project: certificate, table of trials, frame, and what their reports hold."""

import csv
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from tests.golden import entry

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
GOLDEN = Path(__file__).with_name("examples")
WHOLE = ("answer.csv", "trials.csv")
"""CSVs of a report that are compared as they are; of the others a digest is."""
NAMES = ("example_study", "example_throughput", "example_table")


def certificate_anew(name: str, folder: Path) -> dict[str, bytes]:
    """Return the files of a recorded hold-up study's certificate, written from its records in an empty folder."""
    study = folder / name
    shutil.copytree(ANALYSIS / name, study)
    names = ("certificate.json", "certificate.md")
    for name in names:
        (study / name).unlink()
    code, text = entry.run_command("certificate", "write", str(study))
    assert code == 0, text
    return {name: (study / name).read_bytes() for name in names}


def report_of(name: str, folder: Path) -> dict[str, str]:
    """Return what is compared of an example's report, by file: CSVs with numbers of nine digits, digests of most."""
    code, text = entry.run_command("report", str(ANALYSIS / name), "--format", "csv", "--out", str(folder))
    assert code == 0, text
    files = sorted(folder.rglob("*.csv"))
    texts = {path.name: compared(path.read_text().replace(f"{ANALYSIS}/", "")) for path in files}
    digests = {
        file: f"{len(text.splitlines())} lines: {_digest(text)}" for file, text in texts.items() if file not in WHOLE
    }
    whole = {file: text for file, text in texts.items() if file in WHOLE}
    return {**whole, "report.json": json.dumps(digests, indent=1) + "\n"}


def compared(text: str) -> str:
    """Return a CSV with numbers of nine digits, without the sentences above it."""
    buffer = io.StringIO()
    rows = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
    csv.writer(buffer, lineterminator="\n").writerows([_rounded(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _rounded(cell: str) -> str:
    try:
        return f"{float(cell):.9g}"
    except ValueError:
        return cell


def frame_of(name: str) -> str:
    """Return, for each column of an example's frame of trials, how many values it has and a digest of them."""
    frame, columns = entry.frame_of(ANALYSIS / name), {}
    for column in frame.columns:
        values = [_written(value) for value in frame[column]]
        filled, digest = sum(value != "" for value in values), _digest("\n".join(values))
        columns[str(column)] = f"{filled} of {len(values)}: {digest}"
    return json.dumps(columns, indent=1) + "\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _written(value: object) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.9g}"
    return "" if value is None or value is pd.NA else str(value)


def files(wanted: Callable[[str], bool]) -> Iterator[tuple[Path, str]]:
    """Yield the golden files of the examples with what they should hold."""
    for name in filter(lambda name: wanted(f"examples/{name}"), NAMES):
        yield GOLDEN / name / "frame.json", frame_of(name)
        with tempfile.TemporaryDirectory() as folder:
            for file, text in report_of(name, Path(folder)).items():
                yield GOLDEN / name / file, text
