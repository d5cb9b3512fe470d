"""Our protocol in a replay: search, race and stress with the choices of `study.designs.holdup`. Pure."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from study.designs.holdup import selection
from study.designs.holdup.phases import REPEATED
from study.designs.holdup.replay.strategies import Draw, Purse, scores_of
from study.designs.holdup.replay.table import SMALL, TARGET
from study.statistics import pooled_sd

Scores = tuple[dict[str, list[float]], dict[str, list[float]]]
"""Per scale (target, small): setting -> a number for each of its trials."""


def protocol(draw: Draw, purse: Purse) -> int:
    """Search, race and stress as `study.designs.holdup` does, with its own choices of settings.

    The whole trials of the calibration are paid for, at the table's mean cost; what they tell, the spread between
    seeds, is not in the table and unknown until settings run twice. Left out are the baselines, which change no
    winner. The small scale is paid for, in search and stress, though it only
    tells how much is lost at the target. What race and stress need, at the table's mean cost, is kept back.
    """
    purse.pays(draw.holdup.calibrate.num_seeds * float(draw.table.cost[TARGET].mean()))
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
        merits = selection.bounds_of(self._searched[TARGET], self._pooled())
        if not merits:
            return self._draw.order[0]
        entering = selection.best(merits, self._costs(TARGET), self._holdup.race.num_settings)
        return self._index[self._stress(self._race(entering))]

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

    def _pooled(self) -> float | None:
        return pooled_sd([scores for each in self._searched for scores in each.values() if len(scores) > 1])

    def _search(self) -> None:
        """Run settings in rounds, three quarters of them at the target; the best third of a round twice."""
        holdup, tune = self._holdup, self._draw.tune
        proposals = (iter(self._draw.order), iter(self._draw.order_small))
        for number in range(holdup.num_rounds):
            first, last = (holdup.num_settings * part // holdup.num_rounds for part in (number, number + 1))
            fresh: tuple[dict[str, int], dict[str, int]] = ({}, {})
            for slot in range(first, last):
                # Of four: two at the target, one at the small scale, one between, for which the target stands in.
                scale = SMALL if slot % 4 == 1 else TARGET
                setting = next(proposals[scale], None)
                if setting is None:  # the table is at its end
                    continue
                name, place = self._draw.table.settings[setting], slot % len(tune)
                if not self._affords(scale, name, tune[place]):
                    return
                self._run(self._searched, scale, name, tune[place])
                fresh[scale][name] = place
            if len(tune) > 1 and not self._repeat(fresh):
                return

    def _repeat(self, fresh: tuple[dict[str, int], dict[str, int]]) -> bool:
        """Run the best third of a round again; return False once the money is needed for later stages."""
        tune, pooled = self._draw.tune, self._pooled()
        for scale in (TARGET, SMALL):
            bounds = selection.bounds_of({name: self._searched[scale][name] for name in fresh[scale]}, pooled)
            for name in selection.best(bounds, self._costs(scale), math.ceil(len(bounds) * REPEATED)):
                seed = tune[(fresh[scale][name] + 1) % len(tune)]
                if not self._affords(scale, name, seed):
                    return False
                self._run(self._searched, scale, name, seed)
        return True

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
            kept = selection.race(scores, self._costs(TARGET), pooled_sd=self._pooled(), least=least)
            ranked = [*kept, *(name for name in racing if name not in kept)]
            racing = kept
        return ranked[:least]

    def _stress(self, finalists: list[str]) -> str:
        """Return the winner among the finalists with all rank seeds at the target; the race's best if none has."""
        seeds = self._stress_seeds
        bounds = selection.bounds_of(self._searched[SMALL], self._pooled())
        small = selection.best(bounds, self._costs(SMALL), self._holdup.stress.num_settings)
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
