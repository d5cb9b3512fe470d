import itertools
import math
import time
from dataclasses import replace

import pytest

from study.errors import TrialError
from study.metrics import METRICS
from study.trial.measure import ProcessMeasurement, RunnerMeasurement, StepMeasurement, Watch, iteration_metrics

LEARNER = {"kl": 0.01, "entropy": 0.6, "policy_loss": -0.1, "vf_loss": 3.0, "vf_explained_var": 0.2}


def sample(runner: int, time_s: float, **changes: float | None) -> RunnerMeasurement:
    played = {"env_steps": 100, "episode_return_sum": 30.0, "num_episodes": 2, "episode_len_sum": 60}
    used = {"wall_time_s": time_s, "cpu_time_s": 0.5, "peak_rss_mb": 400.0, "pressure_s": 0.1}
    return RunnerMeasurement(runner=runner, **played | used | changes)  # type: ignore[arg-type]


def step(*rounds: tuple[RunnerMeasurement, ...], **learner: float) -> StepMeasurement:
    return StepMeasurement(
        used=MAIN,
        sampling_time_s=4.0,
        learning_time_s=2.0,
        sync_time_s=0.5,
        samples=tuple(itertools.chain(*rounds)),
        num_sampling_rounds=len(rounds),
        num_dropped_samples=0,
        num_restarts=3,
        num_gradient_updates=80,
        learner={**LEARNER, **learner},
    )


MAIN = ProcessMeasurement(wall_time_s=7.0, cpu_time_s=2.5, peak_rss_mb=500.0, pressure_s=0.7)


def test_every_metric_of_an_iteration_is_there_and_raw() -> None:
    found = iteration_metrics(step((sample(1, 3.0), sample(2, 2.0, episode_return_sum=90.0, num_episodes=4))))
    assert list(found) == [name for name, metric in METRICS.items() if metric.grain == "iteration"]
    assert found == {
        "iteration_time_s": 7.0,
        "sampling_time_s": 4.0,
        "slowest_runner_time_s": 3.0,
        "mean_runner_time_s": 2.5,
        "learning_time_s": 2.0,
        "sync_time_s": 0.5,
        "rest_time_s": 0.5,
        "learner_busy_time_s": None,
        "overlap_time_s": None,
        "policy_lag": None,
        "train_batch_size_actual": 200,
        "num_sampling_rounds": 1,
        "num_healthy_env_runners": 2,
        "num_dropped_samples": 0,
        "num_env_runner_restarts": 3,
        "episode_return_sum": 120.0,
        "num_episodes": 6,
        "episode_len_sum": 120,
        "num_gradient_updates": 80,
        "cpu_time_s": 3.5,
        "peak_rss_mb": 1300.0,
        "cpu_pressure": pytest.approx(0.1),
        "training_return": 20.0,  # a total over a total: not the mean of 15 and 22.5
        **LEARNER,
    }

    found = iteration_metrics(step((sample(1, 1.0), sample(2, 2.0)), (sample(1, 2.5), sample(2, 0.5))))
    values = ("slowest_runner_time_s", "mean_runner_time_s", "num_sampling_rounds", "train_batch_size_actual")
    assert [found[name] for name in (*values, "peak_rss_mb")] == [3.5, 3.0, 2, 400, 1300.0], "rounds add up"


PHASELESS = dict.fromkeys(("sampling_time_s", "learning_time_s", "sync_time_s", "num_sampling_rounds"))


def test_where_sampling_and_learning_overlap_there_are_no_phases() -> None:
    """Runner 1 sent three samples, runner 2 one: they sampled 6 and 2 of the 7 seconds, the learner learnt in 4.5."""
    arrived = (sample(1, 2.5), sample(2, 2.0), sample(1, 2.5, peak_rss_mb=450.0), sample(1, 1.0, peak_rss_mb=460.0))
    spans = replace(step(arrived), **PHASELESS, learner_busy_time_s=4.5, policy_lag=1.5)  # type: ignore[arg-type]
    found = iteration_metrics(spans)
    for name in (*PHASELESS, "rest_time_s"):
        assert found[name] is None
    assert (found["mean_runner_time_s"], found["slowest_runner_time_s"]) == (4.0, 6.0)
    assert (found["learner_busy_time_s"], found["policy_lag"]) == (4.5, 1.5)
    assert (found["num_healthy_env_runners"], found["train_batch_size_actual"]) == (2, 400)
    assert found["peak_rss_mb"] == 500.0 + 460.0 + 400.0  # the last word of each runner
    # A sample of 9 s and an update of 8 s began before the iteration of 7 s: neither can overlap it for longer. With an
    # update of a second they may have taken turns.
    for expected, changes in (
        (4.0 + 4.5 - 7.0, {}),
        (3.5, {"samples": (sample(1, 9.0), sample(2, 5.0))}),
        (4.5, {"samples": (sample(1, 9.0),)}),
        (4.0, {"learner_busy_time_s": 8.0}),
        (0.0, {"learner_busy_time_s": 1.0}),
    ):
        assert iteration_metrics(replace(spans, **changes))["overlap_time_s"] == expected  # type: ignore[arg-type]
    # Of three runners, one delivers in this iteration, one did before, and one has not yet.
    earlier, now = sample(2, 2.0, peak_rss_mb=450.0), sample(1, 2.0, peak_rss_mb=430.0)
    found = iteration_metrics(replace(spans, samples=(now,), num_env_runners=3, latest=(sample(1, 1.0), earlier)))
    assert (found["num_healthy_env_runners"], found["peak_rss_mb"]) == (3, 500.0 + 430.0 + 450.0)
    assert (found["train_batch_size_actual"], found["mean_runner_time_s"]) == (100, 2.0)


def test_an_iteration_without_an_update_has_diverged_only_where_there_are_phases() -> None:
    without = replace(step((sample(1, 1.0),)), num_gradient_updates=0)
    with pytest.raises(TrialError, match="diverged"):
        iteration_metrics(without)
    found = iteration_metrics(replace(without, **PHASELESS, learner={}))  # type: ignore[arg-type]
    assert (found["num_gradient_updates"], found["policy_loss"]) == (0, None)
    quiet = sample(1, 1.0, episode_return_sum=0.0, num_episodes=0, episode_len_sum=0)
    found = iteration_metrics(step((quiet,)))
    assert (found["num_episodes"], found["episode_return_sum"], found["training_return"]) == (0, 0.0, None)


def test_a_loss_that_is_not_finite_ends_the_trial() -> None:
    for name, value in itertools.product(("kl", "entropy", "policy_loss", "vf_loss"), (math.nan, math.inf)):
        with pytest.raises(TrialError, match=f"{name}={value}"):
            iteration_metrics(step((sample(1, 1.0),), **{name: value}))
    constant_targets = iteration_metrics(step((sample(1, 1.0),), vf_explained_var=math.nan))
    assert constant_targets["vf_explained_var"] is None


def test_pressure_is_that_of_the_busiest_node_where_linux_tells_it() -> None:
    def pressure(*samples: RunnerMeasurement, main: ProcessMeasurement = MAIN) -> float | None:
        return METRICS["cpu_pressure"].of(replace(step(samples), used=main))

    remote = sample(2, 2.0, pressure_s=0.5)
    assert pressure(sample(1, 3.0), remote) == pytest.approx(0.25)
    assert pressure(sample(1, 3.0)) == pytest.approx(0.1)
    # Sampling counts by itself: a long quiet update must not hide that runners were disturbed.
    assert pressure(sample(1, 1.0, pressure_s=0.6)) == pytest.approx(0.6)
    assert pressure(replace(remote, pressure_s=3.0)) == 1.0
    # A share of all of a runner's sampling, not of its worst moment: it waited 0.4 s of 2 s.
    assert pressure(sample(1, 0.5, pressure_s=0.4), sample(1, 1.5, pressure_s=0.0)) == pytest.approx(0.2)
    silent = replace(MAIN, pressure_s=None)
    assert pressure(sample(1, 3.0, pressure_s=None), main=silent) is None
    assert pressure(sample(1, 2.0, pressure_s=0.5), main=silent) == pytest.approx(0.25)


def test_a_watch_tells_wall_from_cpu_time() -> None:
    watch = Watch()
    time.sleep(0.1)
    idle = watch.stop()
    assert 0.1 <= idle.wall_time_s < 5 and idle.cpu_time_s < 0.05
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        pass
    assert watch.stop().cpu_time_s >= 0.1
    watch.skip()
    assert watch.stop().cpu_time_s < 0.05
