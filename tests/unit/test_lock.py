"""One driver at a time: real processes that race, die, stop, and leave their names behind."""

import errno
import json
import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager

import msgspec
import pytest

from study.errors import RecordError
from study.machine.host import Mount
from study.records import lock
from study.records.lock import OWNER, Owner, at_work, held
from tests.values import replace

FORK = multiprocessing.get_context("forkserver")  # a fork of this process may wait for a lock of its other threads


@pytest.fixture(autouse=True)
def short_paths(monkeypatch):
    """A forkserver listens in the temporary folder, and the path of a socket has at most 107 bytes."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp")


def no_flock(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")


def drive(folder, has_flock, go, answers):
    """Hold a study until the end of the process, or say why not."""
    if not has_flock:
        lock.fcntl.flock = no_flock
    go.wait()
    try:
        with held(folder):
            answers.send("held")
            signal.pause()
    except RecordError as error:
        answers.send(str(error))


@contextmanager
def drivers(folder, count, has_flock=True):
    """Start processes that all ask for the study at the same moment; end them afterwards."""
    go, pipes = FORK.Event(), [FORK.Pipe(duplex=False) for _ in range(count)]
    processes = [FORK.Process(target=drive, args=(folder, has_flock, go, sender)) for _, sender in pipes]
    try:
        for process in processes:
            process.start()
        go.set()
        yield [(process, reader.recv()) for process, (reader, _) in zip(processes, pipes, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.join()


def refusal(folder, **options):
    with pytest.raises(RecordError) as error, held(folder, **options):
        pass
    return str(error.value)


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("has_flock", [True, False])
def test_of_processes_that_race_one_wins_and_the_others_are_told_its_name(study, has_flock):
    with drivers(study, 4, has_flock) as answers:
        (winner,) = [process for process, answer in answers if answer == "held"]
        for process, answer in answers:
            if process is not winner:
                assert f"another driver, pid {winner.pid} on {os.uname().nodename} (since 20" in answer
                assert "Fix: " in answer
        assert json.loads((study / OWNER).read_text())["pid"] == winner.pid
        assert sorted(file.name for file in study.iterdir()) == [lock.LOCK, lock.OWNER]


@pytest.mark.parametrize("has_flock", [True, False])
def test_a_killed_owner_frees_the_study_at_once_and_one_that_is_stopped_keeps_it(study, has_flock, monkeypatch):
    if not has_flock:
        monkeypatch.setattr(lock.fcntl, "flock", no_flock)
    with drivers(study, 1, has_flock) as [(process, answer)]:
        assert answer == "held"
        os.kill(process.pid, signal.SIGSTOP)
        assert f"pid {process.pid} " in refusal(study)
        assert f"pid {process.pid} " in refusal(study, take_over=True)
        assert f"pid {process.pid} " in at_work(study)
        process.kill()
        process.join()
        assert (study / OWNER).exists()
        assert at_work(study) == ""
        with held(study):
            assert f"pid {os.getpid()} " in at_work(study)
    assert not (study / OWNER).exists()


def elsewhere(**changes):
    """Return the driver of another host."""
    return replace(Owner.of_this_process(), host="node7", boot="other", pid=4711, **changes)


def leave(study, who):
    (study / OWNER).write_bytes(msgspec.json.encode(who))


def mounted(monkeypatch, kind, *options):
    """Let every folder be on this kind of file system, with these options."""
    monkeypatch.setattr(lock, "mount_of", lambda path: Mount(kind, options))


def test_a_driver_of_another_host_is_believed_gone_only_where_its_lock_would_be_seen(study, monkeypatch):
    leave(study, elsewhere())
    mounted(monkeypatch, "nfs4", "local_lock=all")
    said = refusal(study)
    assert "pid 4711 on node7" in said
    assert "--take-over" in said
    assert "pid 4711 on node7" in at_work(study)
    with held(study, take_over=True):
        assert f"pid {os.getpid()} " in at_work(study)
    leave(study, elsewhere())
    mounted(monkeypatch, "nfs4", "local_lock=none")
    with monkeypatch.context() as patched:
        patched.setattr(lock.fcntl, "flock", no_flock)  # its lock would be seen here, if there were one
        assert "pid 4711 on node7" in refusal(study)
    with held(study):
        assert msgspec.json.decode((study / OWNER).read_bytes())["pid"] == os.getpid()


def test_what_proves_that_a_driver_is_gone(tmp_path, monkeypatch):
    mounted(monkeypatch, "fuse.sshfs")
    me = Owner.of_this_process()

    def gone(theirs, *, free=False):
        return theirs.is_gone(tmp_path, is_free=free)

    assert not gone(me)
    assert gone(me, free=True)
    assert gone(replace(me, began=me.began - 60))  # its number belongs to another process now
    assert not gone(replace(me, began=me.began - 60, host="box"))  # numbers of another container
    assert not gone(elsewhere(), free=True)
    for name, value in {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "c", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    theirs = elsewhere(scheduler="slurm", cluster="c", job="12", restart=0)
    assert gone(theirs)  # the same job, started again by the scheduler
    assert not gone(replace(theirs, restart=1))  # another node of the same run of the job
    assert not gone(replace(theirs, cluster="d"))


def test_the_scheduler_is_asked_about_another_job_of_its_own(study, monkeypatch):
    mounted(monkeypatch, "fuse.sshfs")
    for name, value in {"SLURM_JOB_ID": "13", "SLURM_CLUSTER_NAME": "c"}.items():
        monkeypatch.setenv(name, value)
    leave(study, elsewhere(scheduler="slurm", cluster="c", job="12", restart=0))
    monkeypatch.setattr("study.machine.jobs.BatchJob.is_over", lambda self, other: False)
    assert "SLURM job 12" in refusal(study)
    monkeypatch.setattr("study.machine.jobs.BatchJob.is_over", lambda self, other: (self.id, other) == ("13", "12"))
    with held(study):
        assert json.loads((study / OWNER).read_text())["job"] == "13"


def test_a_damaged_name_is_replaced_where_the_lock_proves_enough_and_else_named(study, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_study.py", "--tracking-uri", "postgresql://me:secret@db/mlflow"])
    (study / OWNER).write_bytes(b'{"pid": "x"}')
    mounted(monkeypatch, "fuse.sshfs")
    said = refusal(study)
    assert "driver.json is damaged" in said
    assert "--take-over" in said
    mounted(monkeypatch, "xfs")
    with held(study):
        assert (study / OWNER).stat().st_mode & 0o077 == 0
        assert at_work(study).endswith("run_study.py --tracking-uri 'postgresql://***@db/mlflow'")
