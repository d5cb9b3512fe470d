"""`launch oar` on a real OAR with two simulated nodes: to the end, besteffort, killed, told to end too early."""

import pytest

from tests.testbed.oar import ENDED
from tests.testbed.studies import LaunchedStudy, assert_nothing_left
from tests.waiting import until

pytestmark = pytest.mark.timeout(1800)

TWO_NODES = ("--nodes", 2, "--cpus-per-node", 2)
BESTEFFORT = ("-t", "besteffort")
RESUBMITTED = 99
"""Exit code by which a job asks OAR for another life."""


def submit(study, *options, scheduler_options=()):
    return study.launch("oar", *TWO_NODES, *options, "--", *scheduler_options)


def log_of(study):
    return "\n".join(path.read_text() for path in study.folder.parents[1].rglob("job-*.log"))


def see_the_next_job_through(oar, study, job):
    """See a job that has ended submitted again under another number, and complete the study."""
    following = until(lambda: oar.successor(job), lambda: f"job {job} resubmitted: {log_of(study)}", 60, period_s=0.5)
    assert following != job
    oar.wait_for_state(following, *ENDED, timeout_s=500)
    assert (oar.state(following), oar.exit_code(following)) == ("Terminated", 0), log_of(study)
    study.assert_whole()
    assert_nothing_left(oar.hosts.nodes)


@pytest.mark.minutes
def test_a_besteffort_study_makes_way_for_a_normal_job_and_resumes_under_another_number(oar):
    study = LaunchedStudy(oar.hosts, "preempted", num_trials=5)
    job = submit(study, "--walltime", "0:40:00", scheduler_options=BESTEFFORT)
    study.wait_until_midway()
    normal = oar.submit("-l", "/host=2/core=4,walltime=0:01:00", command="sleep 3", user="other")
    oar.wait_for_state(job, *ENDED, timeout_s=400)
    assert oar.exit_code(job) == RESUBMITTED, log_of(study)
    assert oar.events(job).count("CHECKPOINT") >= 1, oar.events(job)
    assert "BESTEFFORT_KILL" not in oar.events(job)
    assert 1 <= study.num_ended() < study.num_trials, log_of(study)
    oar.wait_for_state(normal, "Terminated", timeout_s=120)
    see_the_next_job_through(oar, study, job)


@pytest.mark.heavy
def test_a_besteffort_study_that_has_no_time_to_end_resumes(oar):
    study = LaunchedStudy(oar.hosts, "killed", num_trials=5)
    job = submit(study, "--walltime", "0:40:00", scheduler_options=[*BESTEFFORT, "--checkpoint", "0"])
    study.wait_until_midway()
    normal = oar.submit("-l", "/host=2/core=4,walltime=0:01:00", command="sleep 3", user="other")
    oar.wait_for_state(job, *ENDED, timeout_s=120)
    assert "BESTEFFORT_KILL" in oar.events(job)
    oar.wait_for_state(normal, "Terminated", timeout_s=120)
    see_the_next_job_through(oar, study, job)


@pytest.mark.heavy
def test_a_job_told_to_end_in_its_first_minute_waits_for_it_and_is_resubmitted(oar):
    study = LaunchedStudy(oar.hosts, "early", num_trials=5)
    job = submit(study, "--walltime", "0:40:00")
    oar.wait_for_state(job, "Running")
    until(lambda: "Ray's head" in log_of(study), "Ray is starting")
    oar.hosts.ctl.run("oardel", "-c", job, user="tester")
    oar.wait_for_state(job, *ENDED, timeout_s=200)
    assert oar.exit_code(job) == RESUBMITTED, log_of(study)
    see_the_next_job_through(oar, study, job)
