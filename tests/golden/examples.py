"""Certificate, trials, frame and reports of the recorded studies; all that the analysis says of invented ones."""

import csv
import hashlib
import io
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import analysis
from analysis.opened import Study
from tests.golden import entry
from tests.planted import Truth, amdahl, planted_runs, run, study

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


def invented() -> dict[str, Study]:
    """Return invented studies of each kind, with faults, and the recorded one that has a certificate, by name."""
    cells = ((1, 1024), (2, 1024), (4, 1024), (4, 4096), (8, 4096), (16, 4096), (2, 2048), (8, 8192))
    rng, truth = np.random.default_rng(34), Truth(cells=cells, blocks=4, budget_steps=40 * 1024, failed=2)
    busy = [{**row, "timing": "oversubscribed", "timing_reason": "3 on 2 cores"} for row in amdahl((1, 2, 8))]
    tried = [
        run(at, runners=n, batch=400 * n * k, seed=seed, lr=lr, final_return=90.0 * lr * k + seed, score=0.2 * k,
            env_steps=60_000, env_steps_to_target=float(7_000 * k) if seed < 3 else None, cpu_s_spent=30.0 * k,
            status="failed" if (n, k, seed) == (4, 2, 1) else "finished", wall_time_s=20.0, cpu_s_reserved=60.0)
        for at, (n, k, lr, seed) in enumerate(itertools.product((2, 4), (1, 2), (0.1, 1), (1, 2, 3)))
    ]  # fmt: skip
    arms = [
        {**row, "stage": "confirm", "variant": "stock" if at % 5 == 4 else "study", "digest": f"{at % 5}" * 6,
         "baseline": ("winner", "best_small", "naive_growth", "defaults", "winner")[at % 5]}
        for at, row in enumerate(tried)
    ]  # fmt: skip
    planted = planted_runs(truth, rng)
    return {
        "scaling": Study(study(planted, kind="throughput", sheet={"space": "quickstart.yaml", "num_trials": 40})),
        "amdahl": Study(study([*amdahl(blocks=2), run(90, runners=46, timing="emulated")], kind="throughput")),
        "provisional": Study(study(busy, sheet={"space": "mine.yaml", "hardware": {"physical_cpus": 4}})),
        "search": Study(study(tried, sheet={"space": "mine.yaml", "num_trials": 30})),
        "certified": analysis.open(ANALYSIS / "example_study"),
        "arms": Study(study(arms, kind="holdup", sheet={"space": "mine.yaml", "num_trials": 24})),
    }


def views_of(of: Study) -> str:
    """Return all that the analysis says of a study, numbers with nine digits: estimates, answer, tables, figures."""
    estimates = [compared(of.estimates().to_csv(index=False))]
    tables = [text for each in of.tables.values() for text in (each.to_markdown(), each.to_latex(), each.to_text(60))]
    figures = [f"{each.title}\n{each.alt}\n{each.caption}\n{each.missing}" for each in of.figures.values()]
    drawn = [compared(each.frame.to_csv(index=False)) for each in of.figures.values() if each.drawn]
    digests = {"estimates": estimates, "tables": tables, "figures": figures, "drawn": drawn}
    lines = {name: [_digest(each.replace(str(ANALYSIS), "")) for each in texts] for name, texts in digests.items()}
    answer = of.answer(price_per_cpu_hour=0.5).to_text(80)
    return f"{answer.replace(str(ANALYSIS), '')}\n{json.dumps(lines, indent=1)}\n"


def files(wanted: Callable[[str], bool]) -> Iterator[tuple[Path, str]]:
    """Yield the golden files of the examples with what they should hold."""
    for name in filter(lambda name: wanted(f"examples/{name}"), NAMES):
        yield GOLDEN / name / "frame.json", frame_of(name)
        with tempfile.TemporaryDirectory() as folder:
            for file, text in report_of(name, Path(folder)).items():
                yield GOLDEN / name / file, text
    for name, of in invented().items():
        if wanted(f"invented/{name}"):
            yield GOLDEN / "invented" / f"{name}.txt", views_of(of)
