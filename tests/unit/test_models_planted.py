import numpy as np

from analysis.models.observations import Cells, Observations
from analysis.models.phases import INDEX, UNKNOWNS, design, phase_times

TRUTH = {
    "alpha": 2.0e-4,
    "beta": 5.0e-5,
    "gamma": 1.0e-6,
    "cv": 0.05,
    "d0": 8.0e-4,
    "d1": 2.0e-6,
    "c0": 5.0e-3,
    "c1": 8.0e-6,
    "c2": 3.0e-5,
    "a": 9.0e-4,
    "b": 1.6e-6,
    "r": 0.0,
    "s0": 2.0e-3,
    "s1": 3.0e-4,
    "r0": 1.0e-3,
    "r1": 5.0e-5,
}
SCALES = (1, 2, 4, 8, 16, 24, 32, 40, 46)


def vector(truth):
    coefficients = np.zeros(len(UNKNOWNS))
    for name, value in truth.items():
        coefficients[INDEX[name]] = value
    return coefficients


def cells_of(**given):
    """Return cells from numbers and arrays that are broadcast against each other."""
    usual = {"num_envs_per_env_runner": 1, "num_learners": 1, "learner_threads": 1}
    usual |= {"episode_len": float("nan"), "step_wait_s": 0.0}
    given = usual | given
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, dtype=float)) for each in given.values()))
    return Cells(**{name: np.array(each) for name, each in zip(given, arrays, strict=True)})


def grid(
    scales=SCALES, settings=((1, 4000, 128, 10), (4, 4000, 256, 4), (8, 8000, 512, 10), (2, 2000, 128, 4)), **rest
):
    """Cells of a small throughput study: each scale in each (k, B, m, E)."""
    rows = np.array([(n, *setting) for n in scales for setting in settings], dtype=float)
    n, k, batch, size, epochs = rows.T
    given = {"episode_len": 200.0, "step_wait_s": 0.002} | rest
    return cells_of(
        num_env_runners=n,
        num_envs_per_env_runner=k,
        train_batch_size=batch,
        minibatch_size=size,
        num_epochs=epochs,
        **given,
    )


def planted(rng, *, cells=None, runs=3, noise=0.03, truth=TRUTH, runner_times=True):
    """Runs with known coefficients: every phase's time is lognormal about its truth, which is the mean."""
    cells = grid() if cells is None else cells
    cells = cells.take(np.repeat(np.arange(len(cells)), runs))
    times = phase_times(vector(truth), design(cells))

    def noisy(values):
        return values * np.exp(rng.normal(-(noise**2) / 2, noise, values.shape))

    disturbed = noisy(np.ones(len(cells)))
    runner, slowest = times["mean_runner"] * disturbed, times["slowest_runner"] * disturbed
    # The two clocks of one iteration share its disturbance; their ratio scatters less.
    slowest = np.maximum(slowest * np.exp(rng.normal(0, noise / 10, len(cells))), runner)
    sampling = slowest + noisy(times["sampling"] - times["slowest_runner"])
    phases = {name: noisy(times[name]) for name in ("learning", "sync", "rest")}
    unknown = np.full(len(cells), np.nan)
    return Observations(
        cells=cells,
        iteration_time_s=sampling + sum(phases.values()),
        sampling_time_s=sampling,
        learning_time_s=phases["learning"],
        sync_time_s=phases["sync"],
        rest_time_s=phases["rest"],
        slowest_runner_time_s=slowest if runner_times else unknown,
        mean_runner_time_s=runner if runner_times else unknown,
    )
