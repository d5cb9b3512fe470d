"""Reads event files back, and works out from the records alone what they must hold."""

import struct
from collections import defaultdict
from pathlib import Path

import numpy as np
from tensorboardX.proto import event_pb2 as event

from study.mirrors.mirror import tag_of
from study.records.folder import StudyFolder
from study.records.records import TrialStarted, read_lines
from tests.integration.mlflow_tools import expected_points

Points = dict[str, list[tuple[int, float, float]]]
"""Tag -> (step, value, seconds since the epoch), in order."""


def read_events(file: Path) -> list:
    """Return the events of one file: a length and a checksum of four bytes before each, one of the event behind it."""
    raw, found, at = file.read_bytes(), [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        found.append(event.Event.FromString(raw[at + 12 : at + 12 + length]))
        at += length + 16
    assert at == len(raw)
    return found


def event_files(folder: StudyFolder) -> dict[str, Path]:
    """Return the file of each run; a run has one."""
    files = sorted(folder.tensorboard.glob("*/events.*"))
    assert len({file.parent for file in files}) == len(files), files
    return {file.parent.name: file for file in files}


def scalars(file: Path) -> Points:
    points: Points = defaultdict(list)
    for each in read_events(file):
        for value in each.summary.value:
            points[value.tag].append((each.step, value.simple_value, each.wall_time))
    return {tag: sorted(values) for tag, values in points.items()}


def expected(folder: StudyFolder) -> dict[str, Points]:
    """Return the points of every run: those that MLflow must hold of the last attempt of each trial."""
    runs = dict[int, TrialStarted]()
    for line in read_lines(folder.records):
        if isinstance(line.record, TrialStarted):
            runs[line.record.trial] = line.record
    points = expected_points(folder)
    return {
        f"trial_{trial:05d}_r{one.num_env_runners}_s{one.seed}": {
            tag_of(metric): sorted((step, float(np.float32(value)), moment / 1000) for moment, step, value in values)
            for metric, values in points[trial, one.attempt].items()
        }
        for trial, one in runs.items()
    }


def assert_files_follow(folder: StudyFolder) -> None:
    """The event files hold every point of the records, once, and no other."""
    assert {name: scalars(file) for name, file in event_files(folder).items()} == expected(folder)
