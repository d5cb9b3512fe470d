"""A search: blocks of scales in which a sampler proposes settings. Pure but for the sampler, which is elsewhere.

Scale, seed and named settings of a trial are dealt here, evenly, before anything runs, so that the sampler can never
drift to the scale that learns most easily. Only the tuned parameters are left open.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from study.designs.base import Design
from study.planning import TrialKind
from study.records.ledger import TrialRow
from study.records.records import StageDecided, TrialRequest, numbered
from study.space.domains import Choices, Range
from study.space.parameters import NAMES, SCALE, Value, overlay
from study.space.spec import StudySpec


class Search(Design):
    """Which settings learn, at every scale."""

    name = "search"

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the planned trials: named settings, then blocks with one trial of every scale on the same seed.

        Within a block they are shuffled: neither seed nor time of day is confounded with scale. A longer plan begins
        with the shorter one.
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
        given = {name: value for name, value in baseline.parameters.items() if name != SCALE}
        around = default_setting(spec)
        if "lr" in given:  # that which runs
            around.pop("lr_scaling_exponent", None)
        for scale in spec.scales:
            if baseline.parameters.get(SCALE) in (None, scale):
                yield TrialRequest(
                    num_env_runners=scale,
                    iterations=limit,
                    seed=seed,
                    name=baseline.name,
                    setting=overlay(around, given),
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


def default_setting(spec: StudySpec) -> dict[str, Value]:
    """Return this project's defaults where the space allows them, else its middle."""
    chosen = {name: NAMES[name].kind(_typical(domain, NAMES[name].default)) for name, domain in spec.tuned.items()}
    return {**spec.fixed, **chosen}


def _typical(domain: Choices | Range, default: Value | None) -> Value:
    if isinstance(domain, Choices):
        ordered = sorted(domain.choices)
        return default if default is not None and default in ordered else ordered[len(ordered) // 2]
    if default is not None and domain.low <= default <= domain.high:
        return default
    if domain.log:
        return float((domain.low * domain.high) ** 0.5)
    return (domain.low + domain.high) / 2


# --- what a trial is worth --------------------------------------------------------------------------------------------


def merit(spec: StudySpec, row: TrialRow) -> float:
    """Return what a trial is worth: its score, or how soon it reached the target.

    Steps to the target become 0.5 + 0.5 / (1 + steps / budget): in (0.5, 1], and the fewer the more. A trial that never
    reached the target is worth less than half, by its score, so that the search has a slope to climb there too. Without
    scores a return takes its place, squeezed into (0, 1) in its order. A failed trial is worth 0.
    """
    score = row.summary.get("score")
    if not spec.is_scored and (final := row.summary.get("final_return")) is not None:
        score = _squeezed(final)
    if row.status != "finished" or score is None or not math.isfinite(score):
        return 0.0
    if spec.search.objective == "final_return":
        return score
    steps = row.summary.get("env_steps_to_target")
    return min(score, 1.0) * 0.49 if steps is None else 0.5 + 0.5 / (1 + steps / (spec.budget.env_steps or 10**6))


def _squeezed(final_return: float) -> float:
    """Return a number in (0, 1) that grows with the return, by its order of magnitude."""
    if not math.isfinite(final_return):
        return 0.0
    return 0.5 + math.atan(math.copysign(math.log1p(abs(final_return)), final_return) / _TYPICAL) / math.pi


_TYPICAL = 5.0
"""Logarithm of a return of about 150, around which returns differ most in worth."""
