"""A hold-up study that never ran: the protocol's own decisions over invented, deterministic trials."""

import copy
import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from study.records.folder import StudyFolder
from study.records.ledger import TrialRow
from study.records.records import Record, SettingsFrozen, StageDecided, TrialEnded, digest_of, written_line
from study.space.spec import StudySpec
from tests import reported
from tests.driven import Driven, Outcome, records
from tests.spaces import cluster as cluster_of
from tests.spaces import spec as small_spec
from tests.synthetic import make_folder
from tests.values import replace

BEGUN = 1_700_000_000.0
"""Time of the first record; every later one is a second later."""
NUM_EVALUATIONS = 5
"""One after each iteration."""
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


def outcome(row: TrialRow) -> float | None:
    """Return a planted truth: what was searched reaches 480, rivals reach 300."""
    is_rival = row.anchor == "naive_growth" or str(row.anchor).endswith(("unchanged", "grown"))
    mean = 300.0 if is_rival else 480.0 - 30 * abs(math.log10(row.rule["lr"]) + 3)
    return mean + 10 * luck(row.seed, digest_of(row.rule), row.num_env_runners)


class Invented(Driven):
    """A session of a hold-up study whose trials rise to their final return in a straight line.

    One that fails does so half way, and one of more runners takes less time.
    """

    def __init__(self, path: Path, spec: StudySpec, **options: Any) -> None:
        super().__init__(path, spec, cluster=CLUSTER, provenance=PROVENANCE, **options)

    def finish(self, trial: int, final: float | None) -> None:
        row, pace, steps = self.rows[trial], 12.0 / self.rows[trial].num_env_runners, BUDGET // NUM_EVALUATIONS
        effective = {**row.setting, "hostnames": ["h0"]}
        told: list[Any] = [replace(reported.built(), effective=effective, processes_per_node={"n0": row.num_cpus})]
        times = {"sampling_time_s": pace * 0.6, "learning_time_s": pace * 0.3, "cpu_time_s": 144.0}
        episodes = {"episode_return_sum": (final or 0.0) * 2, "num_episodes": 2.0, "episode_len_sum": float(steps)}
        for number in range(1, NUM_EVALUATIONS + 1 if final is not None else NUM_EVALUATIONS // 2 + 1):
            one = reported.iteration(number, steps=steps, seconds=pace, **times, **episodes)
            mean = (final or 0.0) * min(number / NUM_EVALUATIONS / 0.6, 1.0)
            returns = [mean] * self.spec.evaluation.episodes
            told += [one, reported.evaluation(one, *returns, progress=number / NUM_EVALUATIONS)]
        reported.report(self.conductor, trial, *told, progress=1.0)
        if final is None:
            self.conductor.end(trial, "failed", "invented")
        else:
            self.conductor.finish(trial, None)


def study_records(spec: StudySpec, outcome: Outcome = outcome, *, until: str | None = None) -> list[Record]:
    """Return all records of a study.

    Args:
        spec: Of a hold-up study.
        outcome: What trials come to.
        until: Name of the phase whose trials are the last on record.
    """
    with tempfile.TemporaryDirectory() as folder:
        Invented(Path(folder), spec).run(outcome)
        found = records(Path(folder))
    for at, each in enumerate(found):
        if isinstance(each, TrialEnded) and each.status == "finished":  # to pack so many policies takes long
            found[at] = replace(each, checkpoint=f"checkpoints/trial_{each.trial:05d}")
    for at, record in enumerate(found):
        if isinstance(record, StageDecided) and record.phase == until:
            return found[: at - isinstance(found[at - 1], SettingsFrozen)]
    return found


def write_study(path: Path, spec: StudySpec, records: Iterable[Record] | None = None) -> StudyFolder:
    """Write a study folder with these records, or with all of the study, numbered and dated one after another."""
    home = "/home/somebody"
    usual: dict[str, Any] = {"text": written_space(spec.to_json()), "created": BEGUN, "space": f"{home}/space.yaml"}
    folder = make_folder(path, f"sqlite:///{home}/mlflow.db", spec, **usual)
    write_records(folder, study_records(spec) if records is None else records)
    return folder


def written_space(content: Mapping[str, Any]) -> str:
    """Return the space file of a spec; YAML reads JSON."""
    return json.dumps({name: each for name, each in content.items() if name != "script"})


def write_records(folder: StudyFolder, records: Iterable[Record]) -> None:
    """Replace the records of a study, as a driver writes them."""
    lines = [written_line(record, seq=seq, moment=BEGUN + seq) for seq, record in enumerate(records)]
    folder.records.write_bytes(b"".join(lines))
