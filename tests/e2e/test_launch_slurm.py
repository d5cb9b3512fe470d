"""`launch slurm` on a real SLURM with two simulated nodes: to the end, preempted, out of time, cancelled."""

import math

import pytest

from tests.testbed.slurm import ENDED
from tests.testbed.studies import LaunchedStudy, assert_nothing_left, assert_nothing_runs

TWO_NODES = ("--nodes", 2, "--cpus-per-node", 2)


def submit(study, *options, scheduler_options=()):
    return study.launch("slurm", *TWO_NODES, *options, "--", "--partition=low", *scheduler_options)


def see_it_through(slurm, study, job):
    """Let a job that was requeued begin again as often as it needs, and check that its study is whole."""
    restarts = 0
    while slurm.job(job)["JobState"] not in ENDED:
        waiting = slurm.wait_for_state(job, "PENDING", *ENDED, timeout_s=500)
        if waiting["JobState"] == "PENDING":
            assert_nothing_left(slurm.hosts.nodes)
            restarts += 1
            slurm.start_now(job)
            slurm.wait_for_state(job, "RUNNING", *ENDED)
    ended = slurm.job(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", str(restarts)), slurm.log_of(job)
    assert restarts >= 1
    assert study.num_sessions() == 1 + restarts
    study.assert_whole()
    assert_nothing_left(slurm.hosts.nodes)


@pytest.mark.minutes
@pytest.mark.timeout(1800)
def test_a_preempted_study_is_requeued_and_resumes(slurm):
    study = LaunchedStudy(slurm.hosts, "preempted", num_trials=5)
    job = submit(study, "--walltime", "0:40:00")
    study.wait_until_midway()
    high = slurm.submit("--partition=high", "--nodes=2", "--exclusive", command="sleep 3")
    slurm.wait_for_state(high, "COMPLETED", timeout_s=120)
    assert 1 <= study.num_ended() < study.num_trials
    see_it_through(slurm, study, job)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_the_signal_before_the_walltime_requeues_the_study_and_it_resumes(slurm):
    study = LaunchedStudy(slurm.hosts, "walltime", num_trials=5, env_steps=30_000)
    job = submit(study, "--walltime", "0:40:00")
    study.wait_until_midway()
    minutes = math.ceil(slurm.elapsed_s(job) / 60)
    slurm.set_time_limit(job, minutes + 2)  # the signal is due two to three minutes before it
    slurm.wait_for_state(job, "PENDING", *ENDED, timeout_s=240)
    assert "Received SIGUSR1" in slurm.log_of(job)
    slurm.set_time_limit(job, 40)
    see_it_through(slurm, study, job)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_cancelled_study_leaves_nothing_and_is_resumed_by_launching_it_again(slurm):
    study = LaunchedStudy(slurm.hosts, "cancelled", num_trials=5)
    job = submit(study, "--walltime", "0:40:00")
    study.wait_until_midway()
    slurm.hosts.ctl.run("scancel", job, user="tester")
    assert slurm.wait_for_state(job, *ENDED)["JobState"] == "CANCELLED"
    assert slurm.job(job)["Restarts"] == "0"
    assert_nothing_runs(slurm.hosts.nodes)
    again = submit(study, "--walltime", "0:40:00")
    assert slurm.wait_for_state(again, *ENDED, timeout_s=500)["JobState"] == "COMPLETED", slurm.log_of(again)
    study.assert_whole()
    assert_nothing_left(slurm.hosts.nodes)
