"""Which training scripts of others can be studied unedited: RLlib's own examples, or those of given folders.

    python -m tests.benchmarks.adopt_examples [--read-only] [--emulate 46] [--out studies/adopted] [FILE or FOLDER ...]

Without a path: every example script in the installed wheel of Ray that trains with PPO, APPO or IMPALA on the new API
stack; not those that learn from recorded data alone. Each is read, and a study of it runs two trials of two iterations
with one environment runner, by `run_study.py --config SCRIPT`. A script is given `--num-agents=2` where its own
documentation says so, and nothing else. With `--emulate 46` one trial of two iterations has 46 emulated runners.
The table says for each script that it runs, or the line by which it was refused. The last line is JSON. A script whose
study is in the folder already is not run again.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from study.adopted.loading import read_script
from study.errors import SpaceError
from study.space.spec import ScriptFacts
from tests.scripts import forked_readings

ROOT = Path(__file__).resolve().parents[2]
NOT_SCRIPTS = {"_old_api_stack", "classes", "utils", "utils.py", "__init__.py"}
"""Folders and files of RLlib's examples that are parts of scripts, or belong to the old API stack."""
TRAINS = re.compile(r"\b(PPO|APPO|IMPALA)(Config)?\b|\bget_trainable_cls\b")
OFFLINE = re.compile(r"\b(BC|MARWIL|CQL)Config\b")
DOCUMENTED = re.compile(r"\.py (--num-agents=\d+)")
SMALL = (
    "budget.env_steps=null",
    "budget.time_s=null",
    "budget.iterations=2",
    "evaluation.episodes=1",
    "evaluation.num_evaluations=1",
    "evaluation.max_episode_steps=500",
)
"""Changes of the written space: two iterations, and one short evaluation."""
MINUTES = 30


def examples() -> Path:
    """Return the folder of RLlib's examples."""
    spec = find_spec("ray")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "rllib" / "examples"


def scripts_in(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield the scripts of a folder that train, with their names below it; a file is itself one."""
    if place.is_file():
        yield place, place.name
        return
    for file in sorted(place.rglob("*.py")):
        if NOT_SCRIPTS & set(file.relative_to(place).parts):
            continue
        text = file.read_text(errors="replace")
        if TRAINS.search(text) and not OFFLINE.search(text):
            yield file, str(file.relative_to(place))


def arguments_of(script: Path) -> str:
    """Return the number of agents with which the script's own documentation says to run it."""
    found = DOCUMENTED.search(script.read_text(errors="replace"))
    return found[1] if found else ""


def tried(script: Path, name: str, *, out: Path, read_only: bool, emulate: int | None) -> dict[str, str | float]:
    """Read a script, and run its study: `runs`, `read`, `refused` before anything started, or `failed` in a trial."""
    began, arguments = time.monotonic(), arguments_of(script)
    try:
        facts = read_script(str(script), args=arguments.split(), where="--config").facts
    except SpaceError as error:
        fault = error.faults[0]
        outcome, line = "refused", f"{fault.where.removeprefix('--config: ')}: {fault.problem}"
    except Exception as error:  # noqa: BLE001 (a fault of this program)
        outcome, line = "failed", f"{type(error).__name__}: {error}"
    else:
        outcome, line = ("read", "") if read_only else run(script, name, arguments, out, emulate)
        line = "; ".join(filter(None, [described(facts), line]))
    return {"script": name, "outcome": outcome, "line": line, "seconds": round(time.monotonic() - began, 1)}


def described(facts: ScriptFacts) -> str:
    """Return in words what a script trains."""
    agents = f", {len(facts.agents)} policies" if facts.agents else ""
    settings = f", sets {', '.join(facts.settings)}" if facts.settings else ""
    return f"{facts.algorithm} on {facts.environment}{agents}{settings}"


def run(script: Path, name: str, arguments: str, out: Path, emulate: int | None) -> tuple[str, str]:
    """Run two trials of a script, or one with emulated runners; return the outcome and why not."""
    trials = 1 if emulate else 2
    study = re.sub(r"[^A-Za-z0-9]+", "-", name.removesuffix(".py"))
    command = [sys.executable, "run_study.py", "--config", str(script), "--runners", str(emulate or 1)]
    command += ["--name", study, "--out", str(out), "--tracking-uri", f"sqlite:///{out / 'mlflow.db'}"]
    command += ["--trials", str(trials), *(["--set", "execution=emulated"] if emulate else [])]
    command += [f"--config-args={arguments}"] if arguments else []
    for change in SMALL:
        command += ["--set", change]
    table, said = out / study / "trials.csv", [""]
    if not table.exists():
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * MINUTES)
        except subprocess.TimeoutExpired:
            return "failed", f"not done after {MINUTES} minutes"
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        if not table.exists():
            return ("refused" if done.returncode == 2 else "failed"), said[-1]
    rows = pd.read_csv(table).fillna("")
    failed = rows[rows["status"] != "finished"]
    if len(rows) == trials and failed.empty:
        return "runs", ""
    if len(failed):
        return "failed", " ".join((failed.iloc[0]["reason"] or failed.iloc[0]["status"]).split())
    return "failed", f"{len(rows)} of {trials} trials: {said[-1]}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, help="files or folders; RLlib's examples by default")
    parser.add_argument("--read-only", action="store_true", help="read the scripts and train nothing")
    parser.add_argument("--emulate", type=int, metavar="N", help="one trial with N emulated runners for each script")
    parser.add_argument("--out", type=Path, default=Path("studies/adopted"), help="folder of the studies")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    print("| script | outcome | what it is, or why not |\n|---|---|---|")
    with forked_readings():  # RLlib is imported once
        for place in options.places or [examples()]:
            for script, name in scripts_in(place.resolve()):
                row = tried(script, name, out=out, read_only=options.read_only, emulate=options.emulate)
                rows.append(row)
                print(f"| {name} | {row['outcome']} | {str(row['line'])[:240].replace('|', '/')} |", flush=True)
    good = sum(row["outcome"] in ("runs", "read") for row in rows)
    print(f"\n{good} of {len(rows)} {'can be read' if options.read_only else 'run'}.")
    print(json.dumps({"good": good, "scripts": len(rows), "rows": rows}))


if __name__ == "__main__":
    main()
