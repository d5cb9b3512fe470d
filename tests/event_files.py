"""Reads event files back, and works out from the records alone what they must hold."""

import math
import struct
from collections import defaultdict
from pathlib import Path

from tensorboardX.proto import event_pb2 as event
from tensorboardX.record_writer import masked_crc32c as checksum

from study.metrics import METRICS
from study.mirrors.tensorboard import tag_of
from study.records.folder import StudyFolder
from study.records.records import Evaluation, Iteration, TrialBuilt, TrialEnded, TrialStarted, read_lines

Points = dict[str, list[tuple[int, float, float]]]
"""Tag -> (step, value, seconds since the epoch), in the order of the file."""


def read_events(file: Path) -> list:
    """Return the events of one file; every checksum is looked at."""
    raw, found, at = file.read_bytes(), [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        assert struct.unpack_from("<I", raw, at + 8) == (checksum(raw[at : at + 8]),)
        content = raw[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", raw, at + 12 + length) == (checksum(content),)
        found.append(event.Event.FromString(content))
        at += length + 16
    assert at == len(raw)
    return found


def event_files(folder: StudyFolder) -> dict[str, Path]:
    """Return the file of each run; a run has one."""
    files = sorted(folder.tensorboard.glob("*/events.*"))
    assert len({file.parent for file in files}) == len(files), files
    return {file.parent.name: file for file in files}


def values_of(file: Path):
    """Yield (event, value) of every summary."""
    for each in read_events(file):
        for value in each.summary.value:
            yield each, value


def scalars(file: Path) -> Points:
    points: Points = defaultdict(list)
    for each, value in values_of(file):
        if value.WhichOneof("value") == "simple_value":
            points[value.tag].append((each.step, value.simple_value, each.wall_time))
    return dict(points)


def expected(folder: StudyFolder) -> dict[str, Points]:
    """Return the points of every run: those of the last attempt of each trial, and one for each tag and step."""
    runs: dict[int, tuple[str, int, Points]] = {}
    steps: dict[int, int] = {}
    last: dict[int, int] = {}
    for line in read_lines(folder.records):
        record, values, step, moment = line.record, {}, 0, round(line.time * 1000)
        if isinstance(record, TrialStarted):
            runners = record.scale or record.setting["num_env_runners"]
            name = f"trial_{record.trial:05d}_r{runners}_s{record.seed}"
            runs[record.trial] = (name, record.attempt, defaultdict(list))
            steps[record.trial], last[record.trial] = 0, 0
            continue
        if not isinstance(record, TrialBuilt | Iteration | Evaluation | TrialEnded):
            continue
        _, attempt, points = runs[record.trial]
        assert record.attempt == attempt
        if isinstance(record, TrialBuilt):
            values = {"startup_time_s": record.startup_time_s}
        elif isinstance(record, TrialEnded):
            step, moment = steps[record.trial], max(moment, last[record.trial] + 1)
            values = {name: value for name, value in record.summary.items() if not is_said(points, name, step, value)}
        else:
            step, last[record.trial] = record.env_steps, moment
            steps[record.trial] = step
            if isinstance(record, Evaluation):
                values = {"eval_return": math.fsum(record.returns) / len(record.returns)}
            else:
                values = {name: value for name, value in record.metrics.items() if METRICS[name].mirrored}
                if episodes := record.metrics.get("num_episodes"):
                    values["training_return"] = record.metrics["episode_return_sum"] / episodes
                values |= {"wall_time_s": record.wall_time_s, "env_steps": record.env_steps}
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                points[name].append((step, single(value), moment / 1000))
    return {name: {tag_of(metric): values for metric, values in points.items()} for name, _, points in runs.values()}


def is_said(points: Points, name: str, step: int, value: float | None) -> bool:
    return value is not None and (step, single(value)) in {point[:2] for point in points.get(name, [])}


def single(value: float) -> float:
    """Return a number as event files hold it."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def assert_files_follow(folder: StudyFolder) -> None:
    """The event files hold every point of the records, once, and no other."""
    assert {name: scalars(file) for name, file in event_files(folder).items()} == expected(folder)
