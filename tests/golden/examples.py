"""All that the analysis says of recorded and of invented studies."""

import csv
import hashlib
import io
import itertools
import json
from pathlib import Path

import numpy as np

from analysis.opened import Study
from tests.examples import ANALYSIS, example
from tests.planted import Truth, amdahl, planted_runs, run, study
from tests.spaces import spec

GOLDEN = Path(__file__).with_name("examples")
RECORDED = ("example_study", "example_throughput", "example_table")
INVENTED = ("scaling", "amdahl", "provisional", "search", "failing", "arms")


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


def _digest(text: str) -> str:
    return hashlib.sha256(_anywhere(text).encode()).hexdigest()[:16]


def _anywhere(text: str) -> str:
    return text.replace(f"{ANALYSIS}/", "")


def studies() -> dict[str, Study]:
    """Return recorded studies, and invented ones of each kind with faults, by name."""
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
    gone = {"status": "failed", "timing": "tainted", "score": 0.0, "final_return": None, "env_steps_to_target": None}
    failing = [tried[0], *({**row, **gone} for row in tried[6::6])]
    planted = planted_runs(truth, rng)
    return {
        **{name: example(name) for name in RECORDED},
        "scaling": Study(study(planted, kind="throughput", sheet={"space": "quickstart.yaml", "num_trials": 40})),
        "amdahl": Study(study([*amdahl(blocks=2), run(90, runners=46, timing="emulated")], kind="throughput")),
        "provisional": Study(study(busy, sheet={"space": "mine.yaml", "hardware": {"physical_cpus": 4}})),
        "search": Study(study(tried, sheet={"space": "mine.yaml", "num_trials": 30})),
        "failing": Study(study(failing, spec=spec())),
        "arms": Study(study(arms, kind="holdup", sheet={"space": "mine.yaml", "num_trials": 24})),
    }


def views_of(of: Study) -> str:
    """Return all that the analysis says of a study, numbers with nine digits: the answer, and digests of the rest."""
    texts = {"estimates": [compared(of.estimates().to_csv(index=False))]}
    for name, column in of.trials.items():
        texts[f"trials.{name}"] = [compared(column.to_csv(index=False))]
    for name, each in of.tables.items():
        texts[f"tables.{name}"] = [compared(each.to_csv()), each.to_markdown(), each.to_latex(), each.to_text(60)]
    for name, figure in of.figures.items():
        drawn = compared(figure.frame.to_csv(index=False)) if figure.drawn else ""
        texts[f"figures.{name}"] = [figure.title, figure.alt, figure.caption, figure.missing, drawn]
    digests = {name: " ".join(map(_digest, own)) for name, own in texts.items()}
    return f"{_anywhere(of.answer(price_per_cpu_hour=0.5).to_text(80))}\n{json.dumps(digests, indent=1)}\n"
