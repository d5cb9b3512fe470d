"""Trains recorded trials again: on a private Ray, as Tune would train them."""

import json
from collections.abc import Iterator
from typing import get_args

from study.cluster.connection import private_ray
from study.errors import TrialError
from study.records.records import Evaluation, TrialStarted
from study.space.spec import StudySpec
from study.space.variants import Variant, spec_of
from study.trial.messages import packed_config


def train(spec: StudySpec, trials: list[TrialStarted]) -> Iterator[tuple[list[Evaluation], str]]:
    """Train trials one after another; yield the evaluations of each, and why it failed, where it did.

    Raises:
        ClusterError: Ray does not start.
    """
    from study.trial.trainable import results_of

    with private_ray(num_cpus=max(started.num_cpus for started in trials)):
        for started in trials:
            evaluations: list[Evaluation] = []
            try:
                assert started.variant in get_args(Variant)
                text = json.dumps(spec_of(spec, started.variant).to_json())
                for result in results_of(packed_config(started, text)):
                    evaluations += (each for each in result.records if isinstance(each, Evaluation))
            except TrialError as error:
                yield evaluations, str(error)
            else:
                yield evaluations, ""
