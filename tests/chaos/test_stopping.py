"""SIGTERM at any moment of a session: it is answered within ten seconds, nothing is left running, nothing is lost."""

import contextlib
import os
import random
import signal
import statistics
import sys
import time
import uuid

import psutil
import pytest

from study.driver.opening import take_up
from study.records.folder import StudyFolder
from study.records.records import StudyClosed
from tests.e2e.commands import SPACE, assert_whole, command, environment, records

MOMENTS = 20
LIMIT_S, LARGEST_S = 10.0, 30.0
"""What is promised on a quiet machine, and what SLURM allows on any."""
CLEARED_S = 5.0
"""Within which the kernel has ended the processes of a Ray whose driver has gone."""


def marked(mark):
    """Return the processes that carry `mark` in their environment: a driver with all that it started."""
    found = []
    for process in psutil.process_iter(["pid", "name"]):
        try:
            if process.environ().get("STUDY_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.info['name']} ({process.info['pid']})")
        except psutil.Error:
            continue
    return found


def session(place, log, mark):
    place.mkdir(exist_ok=True)
    (place / "space.yaml").write_text(SPACE)
    words = command("--space", "space.yaml", "--resume-or-start", "--set", "search.num_trials=3")
    env = environment() | {"STUDY_TEST_MARK": mark}
    return psutil.Popen(words, cwd=place, env=env, stdout=log, stderr=log, start_new_session=True)


def finish(place):
    """Run the study to its end; return the seconds that took."""
    began = time.monotonic()
    with (place.parent / f"{place.name}.log").open("a") as log:
        assert session(place, log, "none").wait(600) == 0, (place.parent / f"{place.name}.log").read_text()
    assert_whole(place / "studies" / "space", f"sqlite:///{place}/mlflow.db", 3)
    return time.monotonic() - began


def how_far(folder):
    """Return what was recorded last, for people."""
    return records(folder.path)[-1].kind if folder.records.exists() and records(folder.path) else "no record"


@pytest.mark.heavy
@pytest.mark.timeout(5400)
def test_sigterm_is_answered_at_every_moment_of_a_session(tmp_path, capsys):
    def say(line):
        with capsys.disabled():
            sys.stdout.write(f"\n{line}")
            sys.stdout.flush()

    rng = random.Random(int(os.environ.get("STOP_SEED", "15")))
    (tmp_path / "whole").mkdir()
    length = finish(tmp_path / "whole")
    answers, lines = [], []
    for index in range(MOMENTS):
        place, mark = tmp_path / f"study{index}", uuid.uuid4().hex
        moment = (index + rng.random()) / MOMENTS * length
        with (tmp_path / f"study{index}.log").open("w") as log:
            process = session(place, log, mark)
            time.sleep(moment)
            over = process.poll() is not None
            sent = time.monotonic()
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        answer = time.monotonic() - sent
        busy = max(os.getloadavg()[0] / os.cpu_count(), 1.0)
        said = (tmp_path / f"study{index}.log").read_text()
        while (left := marked(mark)) and time.monotonic() < sent + answer + CLEARED_S:
            time.sleep(0.1)
        folder = StudyFolder(place / "studies" / "space")
        reached = how_far(folder)
        lines.append(
            f"{moment:6.1f} s: answered in {answer:4.1f} s, exit code {code}, {reached}, load {os.getloadavg()[0]:.1f}"
        )
        say(lines[-1])
        assert not left, f"left running after {lines[-1]}: {left}\n{said}"
        assert "Traceback" not in said or "Exception ignored in" in said, said  # where the interpreter swallows it
        assert code in (0, 75, -signal.SIGTERM), said
        assert answer < min(LIMIT_S * busy, LARGEST_S), f"{lines[-1]}\n{said}"
        if code == 75 and reached != "no record":
            assert isinstance(records(folder.path)[-1], StudyClosed), said
        if folder.records.exists():
            rows = take_up(folder.identity().parse(), folder)[1].rows
            assert code != 75 or not [row for row in rows.values() if row.status == "running"]
        if not over:
            answers.append(answer)
        if index % 7 == 6:
            finish(place)
    assert len(answers) >= MOMENTS - 3, "too many sessions ended before their moment"
    quantiles = [min(answers), *statistics.quantiles(answers, n=4), max(answers)]
    say(f"session of {length:.0f} s; answers, min to max by quarters: {[round(each, 1) for each in quantiles]}")
