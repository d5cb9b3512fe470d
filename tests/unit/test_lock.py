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
from study.records.folder import StudyFolder
from study.records.lock import Owner
from study.records.log import RecordLog
from study.records.records import read_lines
from tests.synthetic import append, closed, iteration, opened, started
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
        with StudyFolder(folder).locked():
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


def refusal(folder):
    with pytest.raises(RecordError) as error, StudyFolder(folder).locked():
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
        winners = [process for process, answer in answers if answer == "held"]
        assert len(winners) == 1
        for process, answer in answers:
            if process is not winners[0]:
                assert f"another driver, pid {winners[0].pid} on {os.uname().nodename} (" in answer
                assert "since 20" in answer
                assert "Fix: " in answer
        assert json.loads((study / "driver.json").read_text())["pid"] == winners[0].pid
        assert sorted(file.name for file in study.iterdir()) == [lock.LOCK, lock.OWNER]


@pytest.mark.parametrize("has_flock", [True, False])
def test_a_killed_owner_frees_the_study_at_once_and_a_stopped_one_does_not(study, has_flock, monkeypatch):
    if not has_flock:
        monkeypatch.setattr(lock.fcntl, "flock", no_flock)
    with drivers(study, 1, has_flock) as [(process, answer)]:
        assert answer == "held"
        os.kill(process.pid, signal.SIGSTOP)
        assert f"pid {process.pid} " in refusal(study)
        assert f"pid {process.pid} " in lock.at_work(study)
        process.kill()
        process.join()
        assert (study / "driver.json").exists()
        assert lock.at_work(study) == ""
        with StudyFolder(study).locked():
            assert f"pid {os.getpid()} " in lock.at_work(study)
    assert not (study / "driver.json").exists()


@pytest.fixture
def me():
    return Owner.of_this_process()


def elsewhere(me, **changes):
    """Return the driver of another host."""
    return replace(me, host="node7", boot="other", pid=4711, **changes)


def leave(study, who):
    (study / "driver.json").write_bytes(msgspec.json.encode(who))


def mounted(monkeypatch, *mount):
    """Let every folder be on this kind of file system, with these options."""
    monkeypatch.setattr(lock, "mount_of", lambda path: Mount(mount[0], mount[1:]))


def test_a_driver_of_another_host_is_believed_gone_only_where_its_lock_would_be_felt(study, me, monkeypatch):
    leave(study, elsewhere(me))
    mounted(monkeypatch, "nfs4", "local_lock=all")
    said = refusal(study)
    assert "pid 4711 on node7" in said
    assert "--take-over" in said
    assert "pid 4711 on node7" in lock.at_work(study)
    (study / "driver.json").unlink()
    with StudyFolder(study).locked():
        pass
    leave(study, elsewhere(me))
    mounted(monkeypatch, "nfs4", "local_lock=none")
    with monkeypatch.context() as patched:
        patched.setattr(lock.fcntl, "flock", no_flock)  # its lock would be felt here, if there were one
        assert "pid 4711 on node7" in refusal(study)
    with StudyFolder(study).locked():
        assert msgspec.json.decode((study / "driver.json").read_bytes())["pid"] == os.getpid()


def test_what_proves_that_a_driver_is_gone(me, tmp_path, monkeypatch):
    mounted(monkeypatch, "fuse.sshfs")

    def gone(theirs, *, free):
        return theirs.is_gone(tmp_path, is_free=free)

    assert not gone(me, free=False)
    assert gone(me, free=True)
    assert gone(replace(me, began=me.began - 60), free=False)  # its number belongs to another process now
    assert not gone(replace(me, began=me.began - 60, host="box"), free=False)  # numbers of another container
    assert not gone(elsewhere(me), free=True)
    for name, value in {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "c", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    theirs = elsewhere(me, scheduler="slurm", cluster="c", job="12", restart=0)
    assert gone(theirs, free=False)  # the same job, started again by the scheduler
    assert not gone(replace(theirs, restart=1), free=False)  # another node of the same run of the job
    assert not gone(replace(theirs, cluster="d"), free=False)


def test_the_scheduler_is_asked_about_another_job_of_its_own(me, study, tmp_path, monkeypatch):
    """A stand-in for squeue: what it prints for a job that is over is SLURM 22.05's."""
    mounted(monkeypatch, "fuse.sshfs")
    for name, value in {"SLURM_JOB_ID": "13", "SLURM_CLUSTER_NAME": "c"}.items():
        monkeypatch.setenv(name, value)
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    leave(study, elsewhere(me, scheduler="slurm", cluster="c", job="12", restart=0))
    squeue.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho RUNNING\n')
    squeue.chmod(0o755)
    assert "SLURM job 12" in refusal(study)
    assert (tmp_path / "asked").read_text() == "--noheader --format=%T --jobs 12\n"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n")
    with StudyFolder(study).locked():
        assert json.loads((study / "driver.json").read_text())["job"] == "13"


def test_the_owner_is_named_without_passwords_and_for_its_user_alone(study, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_study.py", "--tracking-uri", "postgresql://me:secret@db/mlflow"])
    with StudyFolder(study).locked():
        text = (study / "driver.json").read_text()
        assert (study / "driver.json").stat().st_mode & 0o077 == 0
    assert "secret" not in text
    assert "***@db" in text
    assert str(msgspec.json.decode(text, type=Owner)).endswith(
        "run_study.py --tracking-uri 'postgresql://***@db/mlflow'"
    )


@pytest.mark.parametrize("damage", [b"", b"garbage", b'{"pid": "x"}', b"[" * 100_000])
def test_a_damaged_name_is_replaced_where_the_lock_proves_enough_and_else_named(study, damage, monkeypatch):
    (study / "driver.json").write_bytes(damage)
    mounted(monkeypatch, "fuse.sshfs")
    said = refusal(study)
    assert "driver.json is damaged" in said
    assert "--take-over" in said
    mounted(monkeypatch, "xfs")
    with StudyFolder(study).locked():
        assert lock.at_work(study)


def test_a_person_takes_over_what_nobody_can_tell_to_be_free_but_not_what_is_held(study, me, monkeypatch):
    mounted(monkeypatch, "fuse.sshfs")
    leave(study, elsewhere(me))
    assert "--take-over" in refusal(study)
    with StudyFolder(study).locked(take_over=True):
        assert f"pid {os.getpid()} " in lock.at_work(study)
    for has_flock in (True, False):
        with drivers(study, 1, has_flock) as [(process, answer)]:
            assert answer == "held"
            with pytest.raises(RecordError, match=f"pid {process.pid} "), StudyFolder(study).locked(take_over=True):
                pass
        (study / "driver.json").unlink()


def test_a_lock_file_that_somebody_removed_leaves_the_study_held_by_name(study):
    with drivers(study, 1) as [(process, answer)]:
        assert answer == "held"
        (study / ".lock").unlink()  # the kernel's lock is on a file that is gone
        assert f"pid {process.pid} " in refusal(study)
        assert f"pid {process.pid} " in lock.at_work(study)


def test_a_driver_whose_study_was_taken_over_can_write_no_more(tmp_path):
    """However the lock was lost: the records of the next session are in the file."""
    folder = StudyFolder(tmp_path)
    append(folder, opened(1), started(0))
    with RecordLog(folder.records) as first:
        first.append(iteration(0, 1))
        with RecordLog(folder.records) as second:
            second.append(opened(2))
            for record in (iteration(0, 2), closed("stopped")):
                with pytest.raises(RecordError, match=r"another driver has taken the study over.*Fix: "):
                    first.append(record)
            second.append(closed(session=2))
    assert [line.record.kind for line in read_lines(folder.records)] == [
        *("study_opened", "trial_started", "iteration", "study_opened", "study_closed")
    ]


def test_records_that_were_exchanged_under_a_driver_are_not_written_to(tmp_path):
    folder = StudyFolder(tmp_path)
    append(folder, opened(1))
    with RecordLog(folder.records) as log:
        copy = folder.records.read_bytes()
        folder.records.unlink()
        with pytest.raises(RecordError, match="none that can be read"):
            log.append(started(0))
        folder.records.write_bytes(copy)
        with pytest.raises(RecordError, match="another file"):
            log.append(started(0))
    assert folder.records.read_bytes() == copy
