"""The first stage: a model of the CPU-seconds of a trial. Pure."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from study.designs.holdup.baselines import default_setting
from study.designs.holdup.phases import holdup_of
from study.records.ledger import TrialRow
from study.records.records import StageDecided
from study.records.request import TrialRequest
from study.space.domains import bounds
from study.space.parameters import Value
from study.space.settings import batch_domain, minibatch_bounds, overlay
from study.space.spec import StudySpec

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


def _work(setting: Mapping[str, Value], env_steps: float) -> tuple[float, float, float, float]:
    """Return steps, rows, updates and iterations of a trial, in the order of `TERMS`."""
    batch, minibatch = float(setting["train_batch_size"]), float(setting["minibatch_size"])
    iterations = math.ceil(env_steps / batch)
    rows = iterations * batch * setting["num_epochs"]
    return iterations * batch, rows, rows / minibatch, float(iterations)


ITERATIONS = 3
"""Iterations of a short trial: one of warm-up and two that count."""


def opening(spec: StudySpec) -> tuple[TrialRequest, ...]:
    """Return the trials that every study begins with."""
    holdup = holdup_of(spec)
    target, seeds, default = holdup.target_scale, holdup.tune_seeds.seeds, default_setting(spec)
    points = [
        TrialRequest(
            stage="calibrate",
            num_env_runners=target,
            seed=seeds[0],
            setting=overlay(default, point),
            name="cost point",
            iterations=ITERATIONS,
        )
        for point in _cost_points(spec, holdup.calibrate.num_points)
    ]
    whole = TrialRequest(stage="calibrate", num_env_runners=target, seed=seeds[0], setting=default, name="default")
    return (*points, whole)


def _cost_points(spec: StudySpec, count: int) -> list[dict[str, Value]]:
    """Return settings at the corners of what costs: batch, minibatch and epochs; the most different ones first."""
    target = holdup_of(spec).target_scale
    batches = [int(value) for value in bounds(batch_domain(spec, target))]
    minibatches, epochs = minibatch_bounds(spec, target), [int(value) for value in bounds(spec.domain("num_epochs"))]
    corners = list(itertools.product((0, 1), repeat=3))
    order = sorted(range(8), key=lambda index: (sum(corners[index]) % 2, index))  # a half fraction, then the other
    points: list[dict[str, Value]] = []
    for index in itertools.islice(itertools.cycle(order), count):
        first, second, third = corners[index]
        batch = batches[first]
        minibatch = min(minibatches[second], batch)
        points.append({"train_batch_size": batch, "minibatch_size": minibatch, "num_epochs": epochs[third]})
    return points


def predicted_cpu_s(
    spec: StudySpec, decisions: Sequence[StageDecided], request: TrialRequest, setting: Mapping[str, Value]
) -> float | None:
    """Return what the cost model of the first decision says a whole trial will take; None where it says nothing."""
    fitted = decisions[0].evidence.get("cost_model") if decisions else None
    steps = spec.budget.env_steps
    if fitted is None or steps is None or request.variant != "study" or request.iterations is not None:
        return None
    return CostModel(**fitted).predict(setting, steps)


def cost_model(rows: Iterable[TrialRow]) -> CostModel | None:
    """Return the model that fits the calibration's trials best; None where none of them cost anything."""
    measured = [
        (row.setting, steps, cost)
        for row in rows
        if row.stage == "calibrate" and row.status == "finished"
        if (steps := row.summary.get("env_steps") or 0) > 0 and (cost := row.summary.get("cpu_s_spent") or 0.0) > 0
    ]
    if not measured:
        return None
    work = np.array([_work(setting, steps) for setting, steps, _ in measured], dtype=np.float64)
    costs = np.array([cost for _, _, cost in measured], dtype=np.float64)
    shares, _ = nnls(work / costs[:, None], np.ones(len(measured)))
    error = float(np.median(np.abs(work @ shares / costs - 1)))
    return CostModel(**dict(zip(TERMS, map(float, shares), strict=True)), error=error)
