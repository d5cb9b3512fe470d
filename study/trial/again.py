"""Trains a recorded trial again, on a private Ray and on the ordinary path of a trial. Imports Ray once it trains."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from study.cluster.connection import private_ray
from study.errors import TrialError
from study.records.records import TrialStarted
from study.space.spec import StudySpec
from study.space.variants import Variant, spec_of

OF_THE_TRIAL = ("setting", "seed", "iterations", "execution", "trial", "attempt", "first_episode")
"""What a trial is told of its record."""


def config_of(spec: StudySpec, started: TrialStarted) -> dict[str, Any]:
    """Return what a trial of a hold-up study is told, as Tune hands it over."""
    assert started.variant in get_args(Variant)
    return {
        "spec": json.dumps(spec_of(spec, started.variant).to_json()),
        "driver": (os.uname().nodename, os.getpid()),
        "company": None,
        **{name: getattr(started, name) for name in OF_THE_TRIAL},
    }


def train(spec: StudySpec, trials: list[TrialStarted]) -> Iterator[tuple[list[Mapping[str, Any]], str]]:
    """Train trials one after another; yield the evaluations of each, and why it failed, where it did.

    Raises:
        ClusterError: Ray does not start.
    """
    with private_ray(num_cpus=max(started.num_cpus for started in trials)):
        for started in trials:
            evaluations: list[Mapping[str, Any]] = []
            try:
                evaluations += _evaluations(config_of(spec, started))
            except TrialError as error:
                yield evaluations, str(error)
            else:
                yield evaluations, ""


def _evaluations(config: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    import ray
    from ray.util.placement_group import remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from study.trial.trainable import StudyTrial

    request = StudyTrial.default_resource_request(config)
    group = ray.util.placement_group(request.bundles, strategy=request.strategy)
    place = PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    main = request.bundles[0]
    actor = ray.remote(StudyTrial).options(num_cpus=main["CPU"], num_gpus=main.get("GPU", 0), scheduling_strategy=place)
    trial = actor.remote(config)
    try:
        done = False
        while not done:
            result = ray.get(trial.step.remote())
            yield from (each for each in result["records"] if each["kind"] == "evaluation")
            done = result["done"]
    except ray.exceptions.RayError as error:
        raise TrialError(str(error).strip().splitlines()[-1]) from error
    finally:
        with contextlib.suppress(ray.exceptions.RayError):  # it has died
            ray.get(trial.cleanup.remote())
        ray.kill(trial)
        remove_placement_group(group)
