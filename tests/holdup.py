"""A hold-up study that never ran: the protocol's own decisions over invented, deterministic trials."""

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson

from study.protocol.calibration import opening
from study.protocol.machine import decide
from study.protocol.phases import phases
from study.protocol.stages import Request, digest_of
from study.space.parameters import SCALE, Value
from study.space.rules import resolve
from study.space.spec import StudySpec
from study.tracking.folder import StudyFolder, StudyIdentity
from study.tracking.ledger import Ledger
from study.tracking.records import (
    SCHEMA,
    Evaluation,
    Iteration,
    Record,
    SettingsFrozen,
    StageDecided,
    Status,
    StudyClosed,
    StudyOpened,
    Timing,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    read_lines,
)
from tests.spaces import spec as small_spec

BEGUN = 1_700_000_000.0
"""Time of the first record; every later one is a second later."""
NUM_ITERATIONS = 20
NUM_EVALUATIONS = 5
BUDGET = 2_000
"""Environment steps."""
HOLDUP: dict[str, Any] = {
    "target_scale": 6,
    "small_scale": 2,
    "unseen_scales": [3],
    "num_settings": 4,
    "num_rounds": 1,
    "calibrate": {"num_points": 3, "num_seeds": 2},
    "race": {"num_settings": 2, "blocks": [1, 1]},
    "stress": {"num_settings": 1, "num_seeds": 2},
    "confirm": {"num_seeds": 8, "num_seeds_others": 5, "num_seeds_stock": 2},
    "measure": {"scales": [1, 2], "repeats": 2, "iterations": 2},
}
PROVENANCE = {
    "time": "2026-11-21T12:00:00+00:00",
    "git": {"commit": "abcdef0123456789", "dirty": False},
    "versions": {"ray": "2.60.0"},
    "hostname": "here",
    "command": ["/home/somebody/run_study.py", "--space", "/home/somebody/space.yaml"],
    "environment": {"RAY_TMPDIR": "/home/somebody/tmp"},
}
CLUSTER = {"num_cpus": 8, "nodes": [{"address": "n0", "num_cpus": 8}]}

Outcome = Callable[[Request, Mapping[str, Value]], float | None]
"""Final return of a trial, in [0, 500]; None where it fails."""


def holdup_spec(**changes: Any) -> StudySpec:
    """Return the spec of a small hold-up study on CartPole-v1; a score is the return over 500."""
    return small_spec(
        **{
            "parameters__num_env_runners": [2, 4, 6],
            "parameters__num_envs_per_env_runner": 1,
            "parameters__train_batch_size": None,
            "parameters__steps_per_env_runner": {"low": 10, "high": 50},
            "parameters__lr_scaling_exponent": 0.5,
            "parameters__minibatch_size": 16,
            "budget__env_steps": BUDGET,
            "search": {"sampler": "random"},
            "evaluation__num_evaluations": NUM_EVALUATIONS,
            "holdup": copy.deepcopy(HOLDUP),
            **changes,
        }
    )


def luck(*words: object) -> float:
    """Return a number in [-1, 1] that depends on nothing but `words`."""
    raw = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    return int.from_bytes(raw[:4], "big") / 2**31 - 1


def outcome(request: Request, rule: Mapping[str, Value]) -> float | None:
    """Return a planted truth: what was searched reaches 480, baselines reach 300 and less."""
    baseline = request.name in ("rllib_defaults", "naive_growth") or str(request.name).startswith("best_small_")
    mean = 300.0 if baseline else 480.0 - 30 * abs(math.log10(rule["lr"]) + 3)
    return mean + 10 * luck(request.seed, digest_of(rule), request.num_env_runners)


def study_records(
    spec: StudySpec, outcome: Outcome = outcome, *, timing: Timing = "emulated", until: str | None = None
) -> list[Record]:
    """Return all records of a study, by the protocol's own decisions.

    Args:
        spec: Of a hold-up study.
        outcome: What trials come to.
        timing: Label of the trials; those of the stage `measure` are always measured.
        until: Name of the phase whose trials are the last on record.
    """
    assert spec.holdup is not None
    records: list[Record] = [StudyOpened(session=1, num_trials=9, cluster=CLUSTER, provenance=PROVENANCE)]
    ledger, asked, decisions = Ledger(), list(opening(spec)), list[StageDecided]()
    for record in records:
        ledger.apply(record, BEGUN)
    for phase in phases(spec.holdup):
        for number in range(len(ledger.rows), len(asked)):
            for record in _trial(spec, number, asked[number], outcome, timing):
                records.append(record)
                moment = BEGUN + len(records)
                ledger.apply(record, moment)
                if isinstance(record, TrialEnded):
                    row = ledger.rows[number]
                    records[-1] = replace(record, summary=row.summarise(spec, record.status, moment=moment))
                    ledger.apply(records[-1], moment)
        if phase.name == until:
            return records
        step = decide(spec, ledger.rows, decisions)
        decisions.append(step.decision)
        records += [*([step.frozen] if step.frozen else []), step.decision]
        asked += [Request.from_json(content) for content in step.decision.requests]
    return [*records, StudyClosed(session=1, reason="complete")]


def _proposed(spec: StudySpec, number: int) -> dict[str, Value]:
    lr, steps = 10 ** (-3 + luck("lr", number)), int(30 + 19 * luck("steps", number))
    return dict(spec.fixed) | {"lr": lr, "steps_per_env_runner": steps}


def _trial(spec: StudySpec, number: int, request: Request, outcome: Outcome, timing: Timing) -> Iterator[Record]:
    rule = dict(request.setting) if request.setting is not None else _proposed(spec, number)
    setting = resolve(rule, request.num_env_runners)
    folded = request.variant == "stock"
    if folded:
        lanes = int(setting[SCALE] * setting["num_envs_per_env_runner"])
        setting |= {SCALE: 1, "num_envs_per_env_runner": lanes}
    measured = request.stage == "measure"
    label: Timing = "measured" if measured else "oversubscribed" if folded else timing
    yield TrialStarted(
        trial=number,
        attempt=1,
        seed=request.seed,
        setting=setting,
        proposed={},
        iterations=request.iterations,
        anchor=request.name,
        optuna_number=None,
        num_cpus=1,
        execution="emulated" if label == "emulated" else "real",
        stage=request.stage,
        rule=rule,
        digest=digest_of(rule),
        variant=request.variant,
        scale=request.num_env_runners if folded else None,
    )
    yield TrialBuilt(
        trial=number,
        attempt=1,
        startup_time_s=1.0,
        effective={},
        processes_per_node={"n0": 1},
        timing=label,
        timing_reason="invented",
    )
    yield from _training(number, request, outcome(request, rule), label)


def _training(number: int, request: Request, final: float | None, label: Timing) -> Iterator[Record]:
    length = request.iterations or NUM_ITERATIONS
    status: Status = "finished" if final is not None else "failed"
    pace = 12.0 / request.num_env_runners  # more runners, less time
    for iteration in range(1, length + 1):
        yield _iteration(number, iteration, pace, final or 0.0)
        if iteration % (length / NUM_EVALUATIONS) == 0 and final is not None:
            # Up in a straight line to the final return at three fifths of the budget.
            mean = final * min(iteration / length / 0.6, 1.0)
            yield Evaluation(
                trial=number,
                attempt=1,
                iteration=iteration,
                env_steps=BUDGET // NUM_ITERATIONS * iteration,
                wall_time_s=pace * iteration,
                progress=iteration / length,
                returns=[mean - 1, mean + 1],
                num_cut=0,
                eval_time_s=0.1,
            )
        if final is None and iteration == length // 2:
            break
    yield TrialEnded(
        trial=number,
        attempt=1,
        status=status,
        reason="" if final is not None else "invented",
        summary={},
        checkpoint=None,
        timing="tainted" if final is None and label == "measured" else label,
        timing_reason="invented",
    )


def _iteration(number: int, iteration: int, pace: float, final: float) -> Iteration:
    steps = float(BUDGET // NUM_ITERATIONS)
    return Iteration(
        trial=number,
        attempt=1,
        iteration=iteration,
        env_steps=int(steps) * iteration,
        wall_time_s=pace * iteration,
        metrics={
            "iteration_time_s": pace,
            "sampling_time_s": pace * 0.6,
            "slowest_runner_time_s": pace * 0.6,
            "mean_runner_time_s": pace * 0.5,
            "learning_time_s": pace * 0.3,
            "train_batch_size_actual": steps,
            "episode_return_sum": final * 2,
            "num_episodes": 2.0,
            "episode_len_sum": steps,
            "cpu_time_s": 36.0,
        },
    )


def write_study(path: Path, spec: StudySpec, records: Iterable[Record], *, name: str = "demo") -> StudyFolder:
    """Write a study folder with these records, numbered and dated one after another."""
    folder = StudyFolder(path)
    folder.prepare()
    identity = StudyIdentity(
        format=1,
        study_id=f"id-{name}",
        name=name,
        created=BEGUN,
        tracking_uri="sqlite:////home/somebody/mlflow.db",
        space="/home/somebody/space.yaml",
        spec=spec.to_json(),
        digest=spec.digest(),
    )
    folder.create(identity, "environment: {}\n")
    write_records(folder, records)
    return folder


def write_records(folder: StudyFolder, records: Iterable[Record]) -> None:
    """Replace the records of a study."""
    lines = [
        orjson.dumps({"schema": SCHEMA, "seq": seq, "time": BEGUN + seq, "kind": record.kind, **asdict(record)})
        for seq, record in enumerate(records)
    ]
    folder.records.write_bytes(b"".join(line + b"\n" for line in lines))


def trials_of(records: Sequence[Record], **wanted: Any) -> list[int]:
    """Return the trials whose `trial_started` has the wanted values."""
    return [
        record.trial
        for record in records
        if isinstance(record, TrialStarted) and all(getattr(record, name) == value for name, value in wanted.items())
    ]


def winner_setting(folder: StudyFolder, scale: int) -> dict[str, Value]:
    """Return the winner's parameters at a scale."""
    frozen = next(line.record for line in read_lines(folder.records) if isinstance(line.record, SettingsFrozen))
    return resolve(frozen.settings[frozen.winner], scale)
