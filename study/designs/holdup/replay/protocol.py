"""Our protocol in a replay: search, race and stress with the choices of `study.designs.holdup`. Pure."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from study.designs.holdup import selection
from study.designs.holdup.replay.strategies import Draw, Purse, scores_of
from study.designs.holdup.replay.table import SMALL, TARGET

Scores = tuple[dict[str, list[float]], dict[str, list[float]]]
"""Per scale (target, small): setting -> a number for each of its trials."""


def protocol(draw: Draw, purse: Purse) -> int:
    """Search, race and stress as `study.designs.holdup` does, with its own choices of settings.

    The whole trial of the calibration is paid for, at the table's mean cost; its setting is not in the table. Left out
    are the baselines, which change no winner. What race and stress need, at the table's mean cost, is kept back.
    """
    purse.pays(float(draw.table.cost[TARGET].mean()))
    return _Staged(draw, purse).pick()


class _Staged:
    """Our protocol in one replay. Settings go by their names, as the protocol's functions want them."""

    def __init__(self, draw: Draw, purse: Purse) -> None:
        self._draw, self._purse, self._holdup = draw, purse, draw.holdup
        self._index = {name: number for number, name in enumerate(draw.table.settings)}
        self._searched: Scores = ({}, {})  # on tune seeds
        self._ranked: Scores = ({}, {})  # on rank seeds, in their order
        self._paid: Scores = ({}, {})
        ends = np.cumsum([0, *self._holdup.race.blocks])
        blocks = [draw.rank[start:end] for start, end in itertools.pairwise(ends)]
        self._blocks = [block for block in blocks if block]
        self._stress_seeds = draw.rank[: self._holdup.stress.num_seeds]
        self._later = self._later_cpu_s()

    def pick(self) -> int:
        self._search()
        places = selection.places(self._means)
        if not places:
            return self._draw.order[0]
        entering = selection.best(places, self._costs(TARGET), self._holdup.race.num_settings)
        return self._index[self._stress(self._race(entering))]

    @property
    def _means(self) -> list[dict[str, float]]:
        """Setting -> mean score in the search, for each scale."""
        return [{name: sum(each) / len(each) for name, each in scores.items()} for scores in self._searched]

    def _run(self, into: Scores, scale: int, name: str, seed: int) -> bool:
        """Run one trial; return False where it is not paid for."""
        setting = self._index[name]
        scores = scores_of(self._draw, self._purse, setting, [seed], scale=scale)
        if scores:
            into[scale].setdefault(name, []).extend(scores)
            self._paid[scale].setdefault(name, []).append(float(self._draw.table.cost[scale, setting, seed]))
        return bool(scores)

    def _costs(self, scale: int) -> dict[str, float]:
        return {name: sum(paid) / len(paid) for name, paid in self._paid[scale].items()}

    def _search(self) -> None:
        """Run settings once each: of four, one at the small scale; for those between, the target stands in."""
        tune, proposals = self._draw.tune, iter(self._draw.order)
        for slot, setting in zip(range(self._holdup.num_settings), proposals, strict=False):
            scale = SMALL if self._holdup.role_of(slot) == "small" else TARGET
            name, seed = self._draw.table.settings[setting], tune[slot % len(tune)]
            if not self._affords(scale, name, seed):
                return
            self._run(self._searched, scale, name, seed)

    def _affords(self, scale: int, name: str, seed: int) -> bool:
        """Return whether a trial of the search leaves what race and stress need."""
        later = self._later if self._searched[TARGET] else 0.0
        cost = self._draw.table.cost[scale, self._index[name], seed]
        return bool(self._purse.spent + cost + later <= self._purse.limit)

    def _later_cpu_s(self) -> float:
        """Return the CPU-seconds that race and stress need, at the table's mean costs."""
        stress, seeds = self._holdup.stress, len(self._stress_seeds)
        entering, target = min(self._holdup.race.num_settings, len(self._index)), 0
        for block in self._blocks:
            target += entering * len(block)
            entering = min(max(math.ceil(entering / 2), stress.num_settings), entering)
        finalists = min(stress.num_settings, len(self._index))
        target += finalists * max(seeds - sum(map(len, self._blocks)), 0)
        means = self._draw.table.cost.mean(axis=(1, 2))
        return float(target * means[TARGET] + 2 * finalists * seeds * means[SMALL])

    def _race(self, racing: list[str]) -> list[str]:
        """Return the finalists, best first; a block that is not paid for in full ends the race."""
        least, ranked = self._holdup.stress.num_settings, list(racing)
        for block in self._blocks:
            if not all(self._run(self._ranked, TARGET, name, seed) for seed in block for name in racing):
                break
            scores = {name: self._ranked[TARGET][name] for name in racing}
            kept = selection.race(scores, self._costs(TARGET), least=least)
            ranked = [*kept, *(name for name in racing if name not in kept)]
            racing = kept
        return ranked[:least]

    def _stress(self, finalists: list[str]) -> str:
        """Return the winner among the finalists with all rank seeds at the target; the race's best if none has."""
        seeds = self._stress_seeds
        small = selection.best(self._means[SMALL], self._costs(SMALL), self._holdup.stress.num_settings)
        for name in finalists:
            done = len(self._ranked[TARGET].get(name, ()))
            if not self._run_all(TARGET, name, seeds[done:]):
                break
        for name in dict.fromkeys([*finalists, *small]):
            if not self._run_all(SMALL, name, seeds):
                break
        holds = {
            name: sum(scores) / len(scores)
            for name in finalists
            if len(scores := self._ranked[TARGET].get(name, [])) >= len(seeds)
        }
        return selection.winner(holds, self._costs(TARGET)) if holds else finalists[0]

    def _run_all(self, scale: int, name: str, seeds: Sequence[int]) -> bool:
        return all(self._run(self._ranked, scale, name, seed) for seed in seeds)
