"""A search: blocks of scales in which a sampler proposes settings. Pure but for the sampler, which is elsewhere.

Scale, seed and named settings of a trial are dealt here, evenly, before anything runs, so that the sampler can never
drift to the scale that learns most easily. Only the tuned parameters are left open.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from study.designs.base import Design
from study.planning.plan import TrialKind
from study.records.records import StageDecided, TrialRequest, numbered
from study.space.domains import Choices
from study.space.parameters import SCALE
from study.space.settings import beyond_space
from study.space.spec import StudySpec


class Search(Design):
    """Which settings learn, at every scale."""

    name = "search"

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the planned trials in their order.

        Named settings (`search.baselines`) come first. Then come blocks with one trial of every scale,
        shuffled within the block, all on the same seed, so that neither seed nor time of day is confounded with scale.
        A longer plan begins with the shorter one, whatever `num_trials` is.
        """
        if spec.search.sampler == "grid":
            return numbered(_grid(spec))
        return numbered(itertools.islice(itertools.chain(_baselines(spec), _blocks(spec)), spec.search.num_trials))

    def kinds(self, spec: StudySpec) -> tuple[TrialKind, ...]:
        """Return one kind of trial for each scale."""
        trials = Counter(request.num_env_runners for request in self.requests(spec))
        return tuple(TrialKind(spec=spec, num_env_runners=scale, num_trials=trials[scale]) for scale in spec.scales)


def _baselines(spec: StudySpec) -> Iterator[TrialRequest]:
    seed, limit = spec.search.seeds[0], spec.budget.iterations
    for baseline in spec.search.baselines:
        setting = beyond_space(spec, baseline.parameters)
        given = {name: value for name, value in baseline.parameters.items() if name in spec.tuned and setting is None}
        for scale in spec.scales:
            if baseline.parameters.get(SCALE) in (None, scale):
                yield TrialRequest(
                    num_env_runners=scale,
                    iterations=limit,
                    seed=seed,
                    name=baseline.name,
                    given=given,
                    setting=setting,
                )


def _blocks(spec: StudySpec) -> Iterator[TrialRequest]:
    seeds, limit = spec.search.seeds, spec.budget.iterations
    for block in itertools.count():
        rng = np.random.default_rng([spec.search.sampler_seed, block])
        for index in rng.permutation(len(spec.scales)):
            yield TrialRequest(num_env_runners=spec.scales[index], iterations=limit, seed=seeds[block % len(seeds)])


def _grid(spec: StudySpec) -> Iterator[TrialRequest]:
    names = list(spec.tuned)
    values = [domain.choices for domain in spec.tuned.values() if isinstance(domain, Choices)]  # rules refuse ranges
    cells = list(itertools.product(spec.scales, itertools.product(*values)))
    for block, seed in enumerate(spec.search.seeds):
        rng = np.random.default_rng([spec.search.sampler_seed, block])
        for index in rng.permutation(len(cells)):
            num_env_runners, point = cells[index]
            given, iterations = dict(zip(names, point, strict=True)), spec.budget.iterations
            yield TrialRequest(num_env_runners=num_env_runners, iterations=iterations, seed=seed, given=given)
