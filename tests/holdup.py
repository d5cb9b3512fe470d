"""A hold-up study that never ran: the protocol's own decisions over invented, deterministic trials."""

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from study.designs.base import start_of
from study.designs.holdup.stages import decide, phases, requests_of
from study.metrics import WARMUP_ITERATIONS
from study.planning import evaluation_due, num_cpus, progress_of
from study.records.folder import StudyFolder
from study.records.ledger import Ledger
from study.records.records import (
    Record,
    StageDecided,
    StudyClosed,
    StudyOpened,
    TrialEnded,
    TrialRequest,
    digest_of,
    written_line,
)
from study.space.parameters import Value
from study.space.settings import spec_of
from study.space.spec import StudySpec
from tests import reported
from tests.spaces import cluster as cluster_of
from tests.spaces import spec as small_spec
from tests.synthetic import make_folder
from tests.values import replace

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
    "race": {"num_settings": 2, "blocks": [1, 1]},
    "confirm": {"num_seeds": 8, "num_seeds_rllib": 5},
    "seed": 7,
}
PROVENANCE = {
    "time": "2026-11-21T12:00:00+00:00",
    "git": {"commit": "abcdef0123456789", "dirty": False},
    "versions": {"ray": "2.60.0"},
    "hostname": "here",
    "command": ["/home/somebody/run_study.py", "--space", "/home/somebody/space.yaml"],
    "environment": {"RAY_TMPDIR": "/home/somebody/tmp"},
}
CLUSTER = cluster_of(n0=4, memory_mb=8000)
"""Too small for six real runners."""

Outcome = Callable[[TrialRequest, Mapping[str, Value]], float | None]
"""Final return of a trial, in [0, 500]; None where it fails."""


def holdup_spec(**changes: Any) -> StudySpec:
    """Return the spec of a small hold-up study on CartPole-v1, its seeds made of 7; a score is the return over 500."""
    asked = small_spec(
        **{
            "parameters__num_env_runners": [2, 4, 6],
            "parameters__num_envs_per_env_runner": 1,
            "parameters__train_batch_size": None,
            "parameters__steps_per_env_runner": {"low": 10, "high": 50},
            "parameters__lr_scaling_exponent": 0.5,
            "parameters__minibatch_size": 16,
            "budget__env_steps": BUDGET,
            "execution": "emulated",
            "evaluation__episodes": 2,
            "search": {"sampler": "random"},
            "evaluation__num_evaluations": NUM_EVALUATIONS,
            "holdup": copy.deepcopy(HOLDUP),
            **changes,
        }
    )
    return asked.with_seed(7)


def luck(*words: object) -> float:
    """Return a number in [-1, 1] that depends on nothing but `words`."""
    raw = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    return int.from_bytes(raw[:4], "big") / 2**31 - 1


def outcome(request: TrialRequest, rule: Mapping[str, Value]) -> float | None:
    """Return a planted truth: what was searched reaches 480, rivals reach 300."""
    is_rival = request.name == "naive_growth" or str(request.name).endswith(("unchanged", "grown"))
    mean = 300.0 if is_rival else 480.0 - 30 * abs(math.log10(rule["lr"]) + 3)
    return mean + 10 * luck(request.seed, digest_of(rule), request.num_env_runners)


def study_records(spec: StudySpec, outcome: Outcome = outcome, *, until: str | None = None) -> list[Record]:
    """Return all records of a study, by the protocol's own decisions.

    Args:
        spec: Of a hold-up study.
        outcome: What trials come to.
        until: Name of the phase whose trials are the last on record.
    """
    assert spec.holdup is not None
    digest, cluster = spec.digest(), CLUSTER.to_json()
    records: list[Record] = []
    ledger, asked, decisions = Ledger(), requests_of(spec, ()), list[StageDecided]()

    def add(record: Record) -> None:
        if isinstance(record, TrialEnded):
            summary = ledger.rows[record.trial].summarise(spec, record.status, moment=BEGUN + len(records) + 1)
            record = replace(record, summary=summary)
        records.append(record)
        ledger.apply(record, BEGUN + len(records))

    add(StudyOpened(session=1, num_trials=9, cluster=cluster, provenance=PROVENANCE, space_digest=digest))
    for _, phase in phases(spec.holdup):
        for number in range(len(ledger.rows), len(asked)):
            for record in _trial(spec, number, asked[number], outcome):
                add(record)
        if phase == until:
            return records
        decision, frozen = decide(spec, ledger.rows, decisions)
        decisions.append(decision)
        records += [*([frozen] if frozen else []), decision]
        asked += decision.requests
    return [*records, StudyClosed(session=1, reason="complete")]


def _trial(spec: StudySpec, number: int, request: TrialRequest, outcome: Outcome) -> Iterator[Record]:
    """Yield the records of an emulated trial, which fails half way where its outcome is None."""
    asked: tuple[dict[str, Value], int | None] = {}, None
    if request.setting is None:
        lr, batch = 10 ** (-3 + luck("lr", number)), int(30 + 19 * luck("steps", number))
        asked = {"lr": lr, "steps_per_env_runner": batch}, number
    cpus = num_cpus(spec_of(spec, request.variant), request.num_env_runners, "emulated")
    request = replace(request, trial=number)
    started = start_of(spec, request, *asked, attempt=1, num_cpus=cpus, execution="emulated")
    yield started
    label: dict[str, Any] = {"timing": "emulated", "timing_reason": "invented"}
    built = replace(reported.built(), trial=number, attempt=1, effective={**started.setting, "hostnames": ["h0"]})
    yield replace(built, processes_per_node={"n0": cpus}, **label)
    final, length = outcome(request, started.rule), request.iterations or NUM_ITERATIONS
    steps, pace = BUDGET // NUM_ITERATIONS, 12.0 / request.num_env_runners  # more runners, less time
    times = {"sampling_time_s": pace * 0.6, "learning_time_s": pace * 0.3, "cpu_time_s": 36.0}
    episodes = {"episode_return_sum": (final or 0.0) * 2, "num_episodes": 2.0, "episode_len_sum": float(steps)}
    for iteration in range(1, length + 1 if final is not None else max(length // 2, 1) + 1):
        rate = steps / pace if iteration > WARMUP_ITERATIONS else None
        whose = {"trial": number, "attempt": 1, "steps": steps, "seconds": pace}
        one = reported.iteration(iteration, **whose, env_steps_per_s=rate, **times, **episodes)
        yield one
        before, progress = (
            progress_of(spec.budget, request.iterations, env_steps=steps * done, iterations=done, time_s=pace * done)
            for done in (iteration - 1, iteration)
        )
        if evaluation_due(before, progress, spec.evaluation.num_evaluations):
            # Up in a straight line to the final return at three fifths of the budget.
            mean = (final or 0.0) * min(iteration / length / 0.6, 1.0)
            yield reported.evaluation(one, *[mean] * spec.evaluation.episodes, progress=progress)
    yield TrialEnded(
        trial=number,
        attempt=1,
        status="failed" if final is None else "finished",
        reason="invented" if final is None else "",
        summary={},
        checkpoint=None if final is None else f"checkpoints/trial_{number:05d}",
        **label,
    )


def write_study(path: Path, spec: StudySpec, records: Iterable[Record]) -> StudyFolder:
    """Write a study folder with these records, numbered and dated one after another."""
    home = "/home/somebody"
    usual: dict[str, Any] = {"text": written_space(spec.to_json()), "created": BEGUN, "space": f"{home}/space.yaml"}
    folder = make_folder(path, f"sqlite:///{home}/mlflow.db", spec, **usual)
    write_records(folder, records)
    return folder


def written_space(content: Mapping[str, Any]) -> str:
    """Return the space file of a spec; YAML reads JSON."""
    return json.dumps({name: each for name, each in content.items() if name != "script"})


def write_records(folder: StudyFolder, records: Iterable[Record]) -> None:
    """Replace the records of a study, as a driver writes them."""
    lines = [written_line(record, seq=seq, moment=BEGUN + seq) for seq, record in enumerate(records)]
    folder.records.write_bytes(b"".join(lines))
