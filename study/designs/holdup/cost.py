"""CPU-seconds of a trial, predicted from short ones: linear in steps, updates and rows. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from study.errors import AnalysisError
from study.space.parameters import Value

TERMS = ("per_step", "per_row", "per_update", "per_iteration")
"""Seconds of: an environment step sampled, a row of a minibatch learnt from, a gradient update, an iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """CPU-seconds as a sum of non-negative shares.

    Source: the iteration-time model of the analysis, T = steps + rows + updates + a constant, fitted by non-negative
    least squares on relative errors.
    """

    per_step: float
    per_row: float
    per_update: float
    per_iteration: float
    error: float
    """Median relative error on the trials that it was fitted to."""

    def predict(self, setting: Mapping[str, Value], env_steps: float) -> float:
        """Return the CPU-seconds of a trial.

        Args:
            setting: RLlib's parameters at the trial's scale.
            env_steps: Environment steps of the trial.
        """
        return float(
            sum(getattr(self, term) * count for term, count in zip(TERMS, _work(setting, env_steps), strict=True))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a trial cost."""

    setting: Mapping[str, Value]
    env_steps: float
    cpu_s: float


def fit(samples: Sequence[Sample]) -> CostModel:
    """Return the model that fits trials best.

    Raises:
        AnalysisError: There is no trial that cost anything.
    """
    usable = [sample for sample in samples if sample.cpu_s > 0 and math.isfinite(sample.cpu_s)]
    if not usable:
        raise AnalysisError("cost model: needs a trial that cost CPU time, got none. Fix: see why calibration failed.")
    work = np.array([_work(sample.setting, sample.env_steps) for sample in usable], dtype=np.float64)
    cost = np.array([sample.cpu_s for sample in usable], dtype=np.float64)
    shares, _ = nnls(work / cost[:, None], np.ones(len(usable)))
    error = float(np.median(np.abs(work @ shares / cost - 1)))
    return CostModel(**dict(zip(TERMS, map(float, shares), strict=True)), error=error)


def _work(setting: Mapping[str, Value], env_steps: float) -> tuple[float, float, float, float]:
    """Return steps, rows, updates and iterations of a trial, in the order of `TERMS`."""
    batch, minibatch = float(setting["train_batch_size"]), float(setting["minibatch_size"])
    iterations = math.ceil(env_steps / batch)
    rows = iterations * batch * setting["num_epochs"]
    return iterations * batch, rows, rows / minibatch, float(iterations)
