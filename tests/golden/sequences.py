"""What studies of all kinds write down from their first to their last record, with trials that are invented.

Plan, queue, admission, proposals, decisions, ledger and records are the driver's own; Ray Tune is left out. The clock
moves as trials report, and at no other time, so that a study comes to the same records wherever it runs.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from study.driver.conductor import Fault
from study.machine.load import NodeLoad
from study.space.spec import StudySpec
from tests.driven import Driven
from tests.holdup import holdup_spec, luck
from tests.reported import built, evaluation, iteration, report
from tests.spaces import cluster, spec, throughput_spec

GOLDEN = Path(__file__).with_name("sequences")
KEPT = {
    "study_opened": ("session", "num_trials"),
    "trial_started": ("trial", "attempt", "seed", "setting", "anchor", "num_cpus", "execution", "digest", "variant"),
    "trial_ended": ("trial", "attempt", "status", "summary", "timing"),
    "stage_decided": ("phase", "kept", "dropped", "requests"),
    "settings_frozen": ("winner", "settings"),
    "study_closed": ("reason",),
}
"""What is compared, by kind of record: decisions and labels, no prose."""
LENGTH = 4
"""Iterations of a trial that its place in the plan does not limit."""
Troubles = Mapping[tuple[int, int], Fault]
"""What befalls an attempt in its second iteration, by trial and attempt."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A study."""

    spec: StudySpec
    troubles: Troubles = field(default_factory=dict)
    loads: Mapping[int, NodeLoad] = field(default_factory=dict)
    """What else the node did, by trial."""
    kills: tuple[int, ...] = ()
    """Trials of each session after which it is killed; a last session goes on to the end."""


class Invented(Driven):
    """A session whose trials report what follows from their setting and seed."""

    def __init__(self, path: Path, case: Case, clock: list[float]) -> None:
        super().__init__(path, case.spec, cluster=cluster(n0=6))
        self._case, self._clock = case, clock

    def finish(self, trial: int, final: float | None) -> None:
        """Let a trial report, an iteration at a time, and end; what it comes to follows from its setting."""
        row = self.conductor.ledger.rows[trial]
        scale, batch, key = (
            row.num_env_runners,
            row.setting["train_batch_size"],
            (sorted(row.setting.items()), row.seed),
        )
        seconds = batch / (900 * scale**0.85) * (1 + 0.05 * luck("seconds", *key))
        peak = 480 - 90 * abs(math.log10(row.setting["lr"]) + 3) - 12 * abs(math.log2(batch / (60 * scale)))
        length = row.iterations or LENGTH
        for number in range(1, length + 1):
            self._clock[0] += seconds
            if number == 2 and (fault := self._case.troubles.get((trial, row.attempt))) is not None:
                self.conductor.fail(trial, fault)
                return
            told = [built({"host": "n0", "num_cpus": row.num_cpus})] if number == 1 else []
            told.append(one := iteration(number, steps=batch, seconds=seconds, cpu_time_s=seconds * row.num_cpus))
            if self.spec.learns and number % 2 == 0:
                mean = peak * min(number / length / 0.6, 1) + 6 * luck("return", *key, row.first_episode)
                told.append(evaluation(one, mean, progress=number / length))
            report(self.conductor, trial, *told, progress=number / length)
        self.conductor.finish(trial, None, [self._case.loads[trial]] if trial in self._case.loads else [])


def text_of(name: str, folder: Path) -> str:
    """Return what is compared of a study, from a run in an empty folder, as often as it is killed and resumed."""
    case, clock = CASES[name], [1_790_000_000.0]
    stopped = {"time": lambda: clock[0], "monotonic": lambda: clock[0], "clock_gettime": lambda _: clock[0]}
    with mock.patch.multiple(time, **stopped):
        for most in (*case.kills, None):
            session = Invented(folder, case, clock)
            session.run(most=most)
            clock[0] += 3600  # until somebody notices
    lines = (json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines())
    kept = ({name: line[name] for name in ("kind", *KEPT[line["kind"]])} for line in lines if line["kind"] in KEPT)
    return "".join(json.dumps(rounded(each), separators=(",", ":")) + "\n" for each in kept)


def rounded(value: Any) -> Any:
    """Return a value with numbers of nine digits: the last ones differ between machines."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


# --- the studies ---------------------------------------------------------------------------------------------------

TROUBLES = {
    (3, 1): Fault("its environment raised", None),
    (5, 1): Fault("its node has died", "node"),
    (7, 1): Fault("its main process has died", "process"),
    (7, 2): Fault("its main process has died", "process"),
}
BUSY = NodeLoad(host="n0", num_cores=6, seconds=1.0, foreign_cores=6.5, stolen_cores=0.0, largest="make")
HOLD_UP = holdup_spec(parameters__lr={"low": 1e-4, "high": 1e-2, "log": True}, search={"sampler": "tpe"})
CASES: dict[str, Case] = {
    "search": Case(spec=spec(search__sampler="tpe", search__num_trials=24), troubles=TROUBLES),
    "throughput": Case(
        spec=throughput_spec(throughput__grids__learners={"num_env_runners": 2, "num_learners": [1]}),
        troubles={(4, 1): TROUBLES[3, 1], (9, 1): TROUBLES[5, 1]},
        loads={2: BUSY},
    ),
    "holdup": Case(spec=HOLD_UP, troubles=TROUBLES),
    "holdup_killed": Case(spec=HOLD_UP, kills=(3, 17, 9)),
}
