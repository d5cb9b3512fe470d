"""What is particular to one scheduler, beside the contract that all launchers keep."""

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import SpaceError
from study.launch.job import Host, parse_hosts
from study.launch.schedulers import clock, expand_counts
from study.options import seconds
from tests.launching import install, launcher


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def directives(launcher):
    mark = f"{launcher.scheduler.mark} "
    return [line.removeprefix(mark) for line in launcher.script().splitlines() if line.startswith(mark)]


def test_whole_nodes_are_asked_for_where_no_cpus_are_given_and_a_folder_is_quoted_as_sbatch_unquotes_it():
    assert "-l /host=2,walltime=2:00:00" in directives(launcher("oar", nodes=2))
    lines = directives(launcher("slurm", nodes=2, folder="/w/my studies"))
    assert {"--exclusive", "--output='/w/my studies/job-'%j.log"} <= set(lines)


def test_two_sizes_would_be_alternatives_for_oar():
    own = launcher("oar", "-p", "cluster='gros' and wattmeter='YES'", "-l", "{cluster='x'}/host=2,walltime=1")
    assert not any(line.startswith("-l") for line in directives(own))
    assert own.submission()[:3] == ["oarsub", "-S", "-p"]


@given(st.integers(1, 10**6))
def test_clock_is_read_back(duration):
    assert seconds(clock(duration), "--walltime") == duration


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 3)), min_size=1, max_size=30))
def test_counts_are_expanded_as_slurm_shortens_them(runs):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert expand_counts(text) == [count for count, times in runs for _ in range(times)]


def test_a_cancelled_job_of_slurm_is_told_from_a_preempted_one(place):
    for state, resumes in (("CANCELLED", False), ("PREEMPTED", True)):
        install(place, {"scontrol": f"#!/bin/bash\necho JobId=17 JobState={state}\n"})
        slurm = launcher("slurm", environment={"SLURM_JOB_ID": "17"})
        assert slurm.may_resume("SIGTERM") is resumes
        assert slurm.may_resume("SIGUSR1")


@pytest.mark.parametrize(
    ("begun", "restarts", "submitted"),
    [
        pytest.param("0", 1, False, id="SLURM requeues it"),
        pytest.param("1", 2, False, id="SLURM requeues it once more"),
        pytest.param("0", 0, True, id="the site lets no job be requeued"),
        pytest.param("1", 1, True, id="nor once more"),
        pytest.param("0", None, True, id="SLURM does not answer"),
    ],
)
def test_a_job_that_slurm_requeues_by_itself_is_not_submitted_a_second_time(place, begun, restarts, submitted):
    refuses = 'if [ "$1" = requeue ]; then echo Job is pending execution >&2; exit 1; fi'
    shows = f"echo JobId=17 JobState=COMPLETING Requeue=1 Restarts={restarts} BatchFlag=1"
    shows = "exit 1" if restarts is None else shows
    asked = place / "asked"
    install(place, {"scontrol": f"#!/bin/bash\n{refuses}\n{shows}\n", "sbatch": f"#!/bin/bash\necho $* > {asked}\n"})
    environment = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": begun}
    launcher("slurm", "-p", "low", folder=place, environment=environment).resubmit(0)
    assert (asked.read_text() if asked.exists() else "") == (
        f"--parsable --dependency=afterany:17 -p low {place}/job.sh\n" if submitted else ""
    )


def test_a_scheduler_may_speak_in_another_encoding(place):
    """After a submission nothing may be raised, which would invite another one."""
    latin_1 = "printf 'soumis \\340 demain' >&2"  # à
    install(place, {"sbatch": f"#!/bin/sh\nprintf '17\\n'; {latin_1}\n"})
    (place / "job.sh").touch()
    assert launcher("slurm", folder=place).submit() == "17"


@pytest.mark.parametrize("name", ["oar", "pbs"])
def test_the_head_needs_no_remote_shell(name):
    here = Host(f"{socket.gethostname().partition('.')[0]}.site.example")
    assert launcher(name, environment={"PBS_JOBID": "17"}).remote_shell(here, "true") == ["bash", "-c", "true"]


@pytest.mark.parametrize("hosts", ["", "-oProxyCommand=touch no", "-o@a", "a b", "a:0", "a,a:3", "a;b"])
def test_hosts_that_are_none(hosts):
    assert parse_hosts("lab-1:16, me@lab-2.site") == (Host("lab-1", 16), Host("me@lab-2.site"))
    with pytest.raises(SpaceError, match="--hosts"):
        parse_hosts(hosts)


@pytest.mark.parametrize("text", ["", "soon", "2:00", "0s", "-1h", "1:75:00"])
def test_durations_that_are_none(text):
    assert seconds("1-00:00:00", "--walltime") == 24 * 3600  # as SLURM writes it
    with pytest.raises(SpaceError):
        seconds(text, "--walltime")
