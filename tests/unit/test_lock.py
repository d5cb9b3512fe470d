"""One driver at a time: real processes that race, die, stop, and leave their names behind."""

import errno
import fcntl
import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager

import pytest

from study.errors import RecordError
from study.records.files import LOCK, at_work, held

FORK = multiprocessing.get_context("forkserver")  # a fork of this process may wait for a lock of its other threads


def drive(folder, go, answers):
    """Hold a study until the end of the process, or say why not."""
    go.wait()
    try:
        with held(folder):
            answers.send("held")
            signal.pause()
    except RecordError as error:
        answers.send(str(error))


@contextmanager
def drivers(folder, count):
    """Start processes that all ask for the study at the same moment; end them afterwards."""
    go, pipes = FORK.Event(), [FORK.Pipe(duplex=False) for _ in range(count)]
    processes = [FORK.Process(target=drive, args=(folder, go, sender)) for _, sender in pipes]
    try:
        for process in processes:
            process.start()
        go.set()
        yield [(process, reader.recv()) for process, (reader, _) in zip(processes, pipes, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.join()


def refused(folder, match, **options):
    with pytest.raises(RecordError, match=match), held(folder, **options):
        pass


def test_of_processes_that_race_one_wins_dead_it_frees_the_study_and_stopped_it_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # a forkserver's socket has a path of at most 107 bytes
    monkeypatch.setattr(sys, "argv", ["run_study.py", "--tracking-uri", "postgresql://me:secret@db/mlflow"])
    assert at_work(tmp_path) == ""
    with drivers(tmp_path, 4) as answers:
        ((winner, _),) = [each for each in answers if each[1] == "held"]
        others = [answer for process, answer in answers if process is not winner]
        assert all(f"another driver, pid {winner.pid} on {os.uname().nodename} (since " in each for each in others)
        assert [(file.name, file.stat().st_mode & 0o077) for file in tmp_path.iterdir()] == [(LOCK, 0)]
        os.kill(winner.pid, signal.SIGSTOP)
        for options in ({}, {"take_over": True}):  # of a driver of this host nobody is wrong
            refused(tmp_path, f"pid {winner.pid} .*Fix: ", **options)
        assert f"pid {winner.pid} " in at_work(tmp_path)
        winner.kill()
        winner.join()
        assert at_work(tmp_path) == ""
        with held(tmp_path):
            assert at_work(tmp_path).startswith(f"pid {os.getpid()} ")
            assert at_work(tmp_path).endswith("run_study.py --tracking-uri 'postgresql://***@db/mlflow'")
        assert at_work(tmp_path) == ""


def test_a_driver_of_another_host_whose_lock_a_server_keeps_is_passed_over_on_request(tmp_path):
    with (tmp_path / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("pid 4711 on node7 (since yesterday): run_study.py")
        file.flush()
        refused(tmp_path, r"pid 4711 on node7.*Fix: .*--take-over")
        with held(tmp_path, take_over=True):
            refused(tmp_path, f"pid {os.getpid()} ")


def test_a_file_system_without_locks_leaves_it_to_the_records(tmp_path, monkeypatch):
    def no_flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    with held(tmp_path), held(tmp_path):
        assert at_work(tmp_path) == ""
