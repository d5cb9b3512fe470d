"""Trains recorded trials again: on a private Ray, as Tune would train them."""

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
    from study.trial.trainable import results_of

    with private_ray(num_cpus=max(started.num_cpus for started in trials)):
        for started in trials:
            evaluations: list[Mapping[str, Any]] = []
            try:
                for result in results_of(config_of(spec, started)):
                    evaluations += (each for each in result["records"] if each["kind"] == "evaluation")
            except TrialError as error:
                yield evaluations, str(error)
            else:
                yield evaluations, ""
