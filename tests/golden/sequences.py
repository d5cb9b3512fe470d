"""What studies of all kinds write down from their first to their last record, with trials that are invented.

The driver is the program's own, entered by its command: plan, queue, admission, proposals, decisions, ledger, records,
certificate. Each study is one text: a record a line, without what differs between machines and days.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.machine.load import NodeLoad
from tests.golden import entry
from tests.golden.engine import FAILED, LOST_NODE, LOST_PROCESS, Clock, Engine, Killed, Script, Trouble
from tests.values import replace

GOLDEN = Path(__file__).with_name("sequences")
VOLATILE = {"schema", "seq", "time", "provenance", "last_seen", "effective", "placement", "node_loads"}
"""Fields that say when, where and with what a study ran, and those that repeat what the invented trials said."""
PROSE = {"reason", "detail", "timing_reason"}
"""Sentences: their numbers alone are compared, as those of any text of more than three words but `NAMES`."""
NAMES = {"anchor", "name"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A study."""

    space: str
    nodes: tuple[entry.Node, ...]
    script: Callable[[], Script] = Script
    kills: tuple[int, ...] = ()
    """Results of each session after which it is killed; a last session goes on to the end."""


# --- running -------------------------------------------------------------------------------------------------------


def command(folder: Path) -> list[str]:
    """Return the words that run the study of a folder."""
    words = ["run", "--space", str(folder / "space.yaml"), "--out", str(folder / "studies"), "--name", "demo"]
    return [*words, "--address", "described", "--tracking-uri", f"sqlite:///{folder}/mlflow.db"]


def run(case: Case, folder: Path) -> Path:
    """Run a study in an empty folder, as often as it is killed and resumed; return the study's folder."""
    space, out = folder / "space.yaml", folder / "studies"
    space.write_text(case.space)
    study, kept, clock = out / "demo", folder / "kept", Clock()
    words = command(folder)
    for number, kill_after in enumerate((*case.kills, 0)):
        script = case.script()
        script.kill_after = kill_after
        script.on_kill = lambda: _copy(study, kept)
        resume, engine = ["--resume"] if number else [], Engine.of(clock, script, folder)
        try:
            with entry.on_cluster(case.nodes, engine), clock.installed():
                code, text = entry.run_command(*words, *resume)
            assert engine.mistake is None, engine.mistake
            assert code in (0, 1), text
        except Killed:
            _put_back(kept, study)
            clock.now += 3600.0  # until somebody notices
    return study


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _put_back(kept: Path, study: Path) -> None:
    """Take back what the driver wrote after it was killed, within the files that are there."""
    for path in sorted(study.rglob("*"), reverse=True):
        if not (kept / path.relative_to(study)).exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in kept.rglob("*"):
        target = study / path.relative_to(kept)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(path.read_bytes())


# --- what is compared ----------------------------------------------------------------------------------------------


def records_of(study: Path) -> list[dict[str, Any]]:
    """Return the records of a study, as they are in the file."""
    return [json.loads(line) for line in (study / "records.jsonl").read_text().splitlines()]


def lasting(value: Any, *, key: str = "") -> Any:
    """Return a value without what differs between machines and days; numbers with nine digits."""
    if isinstance(value, dict):
        kept = {name: lasting(each, key=name) for name, each in value.items() if name not in VOLATILE}
        return {name: each for name, each in kept.items() if each not in (None, "", [], {})}
    if isinstance(value, list):
        return [lasting(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, str) and (key in PROSE or (key not in NAMES and value.count(" ") > 2)):
        return re.findall(r"\d+(?:\.\d+)?", value)
    return value


def lines_of(study: Path) -> list[str]:
    """Return what is compared of each record; of a trial's iterations the first two and the last."""
    records = records_of(study)
    last: dict[tuple[int, int], int] = {}
    for record in records:
        if record["kind"] == "iteration":
            last[record["trial"], record["attempt"]] = record["iteration"]
    kept = [
        record
        for record in records
        if record["kind"] != "iteration" or record["iteration"] in (1, 2, last[record["trial"], record["attempt"]])
    ]
    return [json.dumps(_shortened(lasting(record)), separators=(",", ":")) for record in kept]


def _shortened(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what the invented trial alone has said."""
    if record["kind"] == "iteration":
        metrics = {"env_steps_per_s": record["metrics"].get("env_steps_per_s")}
        return {name: record[name] for name in ("kind", "trial", "attempt", "iteration")} | metrics
    if record["kind"] == "evaluation":
        return {name: record[name] for name in ("kind", "trial", "attempt", "iteration", "progress")}
    return record


def certificate_of(study: Path) -> str:
    """Return what is compared of a certificate: everything but words and days."""
    content = json.loads((study / "certificate.json").read_text())
    return json.dumps(_without_words(lasting(content)), indent=1) + "\n"


WORDS = {"law", "note", "notes", "sentence", "sentences", "meaning", "basis", "id", "space_digest"}


def _without_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_words(each) for name, each in value.items() if name not in WORDS}
    return [_without_words(each) for each in value] if isinstance(value, list) else value


def texts_of(name: str, folder: Path) -> dict[str, str]:
    """Return the golden files of a case, by name, from a run in `folder`."""
    study = run(CASES[name], folder)
    files = {f"{name}.jsonl": "\n".join(lines_of(study)) + "\n"}
    if (study / "certificate.json").exists():
        files[f"{name}.certificate.json"] = certificate_of(study)
    return files


def files(wanted: Callable[[str], bool], folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the golden files of sequences with what they should hold."""
    for name in filter(lambda name: wanted(f"sequences/{name}"), CASES):
        (own := folder / name).mkdir()
        for file, text in texts_of(name, own).items():
            yield GOLDEN / file, text


# --- the studies ---------------------------------------------------------------------------------------------------

SIX_CORES = (("n0", 6, 6, 64_000, 0.0),)

SEARCH = """
environment: {id: CartPole-v1, floor: 0, reference: 500, target: 400}
parameters:
  num_env_runners: [1, 2, 4]
  num_envs_per_env_runner: 2
  train_batch_size: {low: 200, high: 800, log: true}
  lr: {low: 1.0e-4, high: 1.0e-2, log: true}
  minibatch_size: [32, 64]
budget: {env_steps: 14000}
search:
  sampler: tpe
  num_trials: 36
  seeds: [1, 2]
  baselines:
    - {name: tutorial, parameters: {train_batch_size: 400, lr: 3.0e-4, minibatch_size: 64}}
evaluation: {episodes: 3, num_evaluations: 3}
"""

THROUGHPUT = """
kind: throughput
environment: {id: Acrobot-v1}
parameters:
  num_env_runners: 2
  num_envs_per_env_runner: 1
  train_batch_size: 400
  minibatch_size: 100
  num_epochs: 4
throughput:
  iterations: 2
  blocks: 3
  grids:
    strong: {num_env_runners: [1, 2, 4]}
    weak: {num_env_runners: [1, 2, 4], steps_per_env_runner: 200}
    epochs: {num_env_runners: [1, 4], num_epochs: [1, 8]}
    learners: {num_env_runners: 2, num_learners: [1]}
"""

HOLD_UP = """
environment: {id: CartPole-v1, floor: 0, reference: 500, target: 400}
parameters:
  num_env_runners: [2, 4, 6]
  num_envs_per_env_runner: 1
  steps_per_env_runner: {low: 20, high: 100, log: true}
  lr: {low: 1.0e-4, high: 1.0e-2, log: true}
  lr_scaling_exponent: 0.5
  minibatch_size: 16
execution: emulated
budget: {env_steps: 9000}
search: {sampler: tpe}
evaluation: {episodes: 2, num_evaluations: 4}
holdup:
  target_scale: 6
  small_scale: 2
  unseen_scales: [3]
  num_settings: 8
  race: {num_settings: 3, blocks: [1, 1]}
  rank_seeds: {first: 101, count: 4}
  confirm: {num_seeds: 6, num_seeds_others: 5, num_seeds_stock: 2}
"""


def troubled() -> Script:
    """Return a script with a trial that fails, one whose node is lost, and one that loses its process twice."""
    return Script(
        troubles={
            (3, 1): Trouble(iteration=2, error=FAILED),
            (5, 1): Trouble(iteration=2, error=LOST_NODE),
            (7, 1): Trouble(iteration=1, error=LOST_PROCESS),
            (7, 2): Trouble(iteration=2, error=LOST_PROCESS),
        }
    )


def disturbed() -> Script:
    """Return a script with foreign load beside a trial, stolen time beside another, and a failure in a pair."""
    busy = NodeLoad(host="n0", num_cores=6, seconds=1.0, foreign_cores=6.5, stolen_cores=0.0, largest="make")
    return Script(
        troubles={(4, 1): Trouble(iteration=1, error=FAILED), (9, 1): Trouble(iteration=2, error=LOST_NODE)},
        loads={
            2: [busy],
            6: [replace(busy, foreign_cores=0.0, stolen_cores=0.5)],
        },
    )


CASES: dict[str, Case] = {
    "search_tpe": Case(space=SEARCH, nodes=SIX_CORES, script=troubled),
    "throughput": Case(space=THROUGHPUT, nodes=SIX_CORES, script=disturbed),
    "holdup": Case(space=HOLD_UP, nodes=SIX_CORES, script=troubled),
    "holdup_killed": Case(space=HOLD_UP, nodes=SIX_CORES, kills=(30, 150, 90)),
}
