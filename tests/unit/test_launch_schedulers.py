"""What is particular to one scheduler, beside the contract that all launchers keep."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import LaunchError, SpaceError
from study.launch.job import Host, parse_hosts
from study.launch.schedulers import SCHEDULERS, clock, expand_counts
from study.options import seconds
from tests.launching import install, launcher


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def directives(launcher):
    mark = f"{launcher.scheduler.mark} "
    return [line.removeprefix(mark) for line in script_of(launcher).splitlines() if line.startswith(mark)]


def script_of(launcher):
    return launcher.script(launcher.scheduler)


def test_whole_nodes_are_asked_for_where_no_cpus_are_given_and_words_are_quoted_as_sbatch_unquotes_them():
    assert "--exclusive" in directives(launcher("slurm", nodes=2))
    assert "-l /host=2,walltime=2:00:00" in directives(launcher("oar", nodes=2))
    lines = directives(launcher("slurm", "--account=rl lab", "-p", "cpu", folder="/w/my studies"))
    assert lines[-2:] == ["'--account=rl lab'", "-p cpu"]
    assert "--output='/w/my studies/job-'%j.log" in lines


OAR_WORDS = ("-p", "cluster='gros' and wattmeter='YES'", "-l", "{cluster='x'}/host=2,walltime=1", "--project=rl")


def test_oar_unquotes_nothing_so_nothing_is_quoted_and_two_sizes_would_be_alternatives():
    lines = directives(launcher("oar", *OAR_WORDS))
    assert lines[-3:] == [f"-p {OAR_WORDS[1]}", f"-l {OAR_WORDS[3]}", "--project rl"]
    assert sum(line.startswith("-l") for line in lines) == 1


SCAN = """
use OAR::Sub;
my $found = OAR::Sub::scan_script($ARGV[0], "");
print join("\n", $found->{property}, $found->{resources}[0], $found->{project}, $found->{stdout}, $found->{name});
"""


@pytest.mark.packages
@pytest.mark.skipif(
    shutil.which("perl") is None or subprocess.run(["perl", "-MOAR::Sub", "-e1"], capture_output=True).returncode != 0,
    reason="needs OAR's Perl module",
)
def test_oar_itself_reads_what_was_given(tmp_path):
    (tmp_path / "oardodo").write_text('#!/bin/sh\nexec "$@"\n')  # OAR's change of user
    (tmp_path / "oardodo").chmod(0o755)
    (tmp_path / "job.sh").write_text(script_of(launcher("oar", *OAR_WORDS, folder=tmp_path)))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OARDO_USER": "me"}
    words = ["perl", "-e", SCAN, tmp_path / "job.sh"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    read = [OAR_WORDS[1], OAR_WORDS[3], "rl", f"{tmp_path}/job-%jobid%.log", "s"]
    assert (done.stdout.splitlines(), done.stderr) == (read, "")


@pytest.mark.parametrize("folder", ["/w/my studies", "/w/it's", "/w/a;b"])
def test_a_folder_that_oar_would_not_find_is_refused(folder):
    with pytest.raises(LaunchError, match=f"^--out: must have no blanks.*, got {folder}"):
        script_of(launcher("oar", folder=folder))


def test_a_word_that_is_no_option_is_refused():
    with pytest.raises(LaunchError, match="must be options of the scheduler, got cpu"):
        script_of(launcher("slurm", "cpu"))


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
    launcher("slurm", folder=place, environment=environment).resubmit(0)
    assert (asked.read_text() if asked.exists() else "") == (
        f"--dependency=afterany:17 {place}/job.sh\n" if submitted else ""
    )


def test_a_scheduler_may_speak_in_another_encoding(place):
    """After a submission nothing may be raised, which would invite another one."""
    latin_1 = "printf 'soumis \\340 demain' >&2"  # à
    install(place, {"sbatch": f"#!/bin/sh\nprintf '17\\n'; {latin_1}\n"})
    assert launcher("slurm").submit(SCHEDULERS["slurm"], Path("job.sh")) == "17"


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
