"""The first stage: what trials cost here, and how far seeds lie apart. Pure."""

import itertools
from collections.abc import Iterable

from study.designs.holdup.baselines import default_setting
from study.designs.holdup.cost import CostModel, Sample, fit
from study.designs.holdup.phases import holdup_of
from study.records.ledger import TrialRow
from study.records.request import TrialRequest
from study.space.domains import bounds
from study.space.parameters import Value
from study.space.settings import batch_domain, minibatch_bounds, overlay
from study.space.spec import StudySpec

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
    noise = [
        TrialRequest(stage="calibrate", num_env_runners=target, seed=seed, setting=default, name="default")
        for seed in seeds[: holdup.calibrate.num_seeds]
    ]
    return (*points, *noise)


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


def cost_model(rows: Iterable[TrialRow]) -> CostModel | None:
    """Return the cost model of the calibration's trials; None when none of them cost anything."""
    samples = [
        Sample(
            setting=row.setting,
            env_steps=row.summary.get("env_steps") or 0,
            cpu_s=row.summary.get("cpu_s_spent") or 0.0,
        )
        for row in rows
        if row.stage == "calibrate" and row.status == "finished"
    ]
    usable = [sample for sample in samples if sample.cpu_s > 0 and sample.env_steps > 0]
    return fit(usable) if usable else None
