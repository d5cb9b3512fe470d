"""Our protocol in a replay: search, race and stress with `study.designs.holdup`'s own choices of who goes on. Pure."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from study.designs.holdup import selection
from study.designs.holdup.phases import REPEATED
from study.designs.holdup.replay.draw import Draw, Purse, look
from study.designs.holdup.replay.table import SMALL, TARGET
from study.statistics import pooled_sd


def protocol(draw: Draw, purse: Purse) -> int:
    """Search, race and stress as `study.designs.holdup` does, with its own choices of who goes on.

    The whole trials of the calibration are paid for, at the table's mean cost; what they tell, the spread between
    seeds, is not in the table and unknown until settings run twice. Left out are the baselines, which change no
    winner. The small scale is paid for, in search and stress, though it only
    tells how much is lost at the target. What race and stress need, at the table's mean cost, is kept back.
    """
    return _Staged(draw=draw, purse=purse).pick()


@dataclass(slots=True, kw_only=True)
class _Staged:
    """Our protocol in one replay. Settings go by their names, as the protocol's functions want them."""

    draw: Draw
    purse: Purse
    looks: tuple[dict[str, list[float]], dict[str, list[float]]] = field(default_factory=lambda: ({}, {}))
    """Per scale: setting -> scores on tune seeds."""
    ranks: tuple[dict[str, list[float]], dict[str, list[float]]] = field(default_factory=lambda: ({}, {}))
    """Per scale: setting -> scores on rank seeds, in their order."""
    paid: tuple[dict[str, list[float]], dict[str, list[float]]] = field(default_factory=lambda: ({}, {}))
    """Per scale: setting -> CPU-seconds of its trials."""
    index: dict[str, int] = field(init=False)
    later: float = field(init=False)
    """CPU-seconds that race and stress need, at the table's mean costs."""

    def __post_init__(self) -> None:
        self.index = {name: number for number, name in enumerate(self.draw.table.settings)}
        self.later = self._later()

    def pick(self) -> int:
        calibration = self.draw.holdup.calibrate.num_seeds * float(self.draw.table.cost[TARGET].mean())
        self.purse.pays(calibration)
        self.search()
        merits = selection.bounds_of(self.looks[TARGET], self.pooled())
        if not merits:
            return self.draw.order[0]
        finalists = self.race(selection.best(merits, self.costs(TARGET), self.draw.holdup.race.num_settings))
        return self.index[self.stress(finalists)]

    def run(self, into: Sequence[dict[str, list[float]]], scale: int, name: str, seed: int) -> bool:
        """Run one trial; return False where it is not paid for."""
        setting = self.index[name]
        score = look(self.draw, self.purse, setting, seed, scale)
        if score is None:
            return False
        into[scale].setdefault(name, []).append(score)
        self.paid[scale].setdefault(name, []).append(float(self.draw.table.cost[scale, setting, seed]))
        return True

    def costs(self, scale: int) -> dict[str, float]:
        return {name: sum(paid) / len(paid) for name, paid in self.paid[scale].items()}

    def pooled(self) -> float | None:
        return pooled_sd([scores for looks in self.looks for scores in looks.values() if len(scores) > 1])

    def search(self) -> None:
        """Look at settings in rounds, three quarters of them at the target; the best third of a round twice."""
        holdup, settings = self.draw.holdup, self.draw.table.settings
        proposals = (iter(self.draw.order), iter(self.draw.order_small))
        for number in range(holdup.num_rounds):
            first, last = (holdup.num_settings * part // holdup.num_rounds for part in (number, number + 1))
            fresh: tuple[dict[str, int], dict[str, int]] = ({}, {})
            for slot in range(first, last):
                # Of four: two at the target, one at the small scale, one between, for which the target stands in.
                scale = SMALL if slot % 4 == 1 else TARGET
                setting = next(proposals[scale], None)
                if setting is None:  # the table is at its end
                    continue
                name, place = settings[setting], slot % len(self.draw.tune)
                if not self.affords(scale, setting, self.draw.tune[place]):
                    return
                self.run(self.looks, scale, name, self.draw.tune[place])
                fresh[scale][name] = place
            if len(self.draw.tune) > 1 and not self.second_looks(fresh):
                return

    def second_looks(self, fresh: tuple[dict[str, int], dict[str, int]]) -> bool:
        """Look again at the best third of a round; return False once the money is needed for later stages."""
        tune, pooled = self.draw.tune, self.pooled()
        for scale in (TARGET, SMALL):
            bounds = selection.bounds_of({name: self.looks[scale][name] for name in fresh[scale]}, pooled)
            for name in selection.best(bounds, self.costs(scale), math.ceil(len(bounds) * REPEATED)):
                seed = tune[(fresh[scale][name] + 1) % len(tune)]
                if not self.affords(scale, self.index[name], seed):
                    return False
                self.run(self.looks, scale, name, seed)
        return True

    def affords(self, scale: int, setting: int, seed: int) -> bool:
        """Return whether a trial of the search leaves what race and stress need."""
        later = self.later if self.looks[TARGET] else 0.0
        return bool(self.purse.spent + self.draw.table.cost[scale, setting, seed] + later <= self.purse.limit)

    def _later(self) -> float:
        holdup, seeds = self.draw.holdup, len(self.stress_seeds)
        entering, target = min(holdup.race.num_settings, len(self.index)), 0
        for block in self.blocks:
            target += entering * len(block)
            entering = min(max(math.ceil(entering / 2), holdup.stress.num_settings), entering)
        finalists = min(holdup.stress.num_settings, len(self.index))
        target += finalists * max(seeds - sum(map(len, self.blocks)), 0)
        means = self.draw.table.cost.mean(axis=(1, 2))
        return float(target * means[TARGET] + 2 * finalists * seeds * means[SMALL])

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """The rank seeds of each block, as far as there are any."""
        ends = np.cumsum([0, *self.draw.holdup.race.blocks])
        blocks = [self.draw.rank[start:end] for start, end in itertools.pairwise(ends)]
        return [block for block in blocks if block]

    @property
    def stress_seeds(self) -> tuple[int, ...]:
        return self.draw.rank[: self.draw.holdup.stress.num_seeds]

    def race(self, racing: list[str]) -> list[str]:
        """Return the finalists, best first; a block that is not paid for in full ends the race."""
        least = self.draw.holdup.stress.num_settings
        ranked = list(racing)
        for block in self.blocks:
            if not all(self.run(self.ranks, TARGET, name, seed) for seed in block for name in racing):
                break
            scores = {name: self.ranks[TARGET][name] for name in racing}
            kept = selection.race(scores, self.costs(TARGET), pooled_sd=self.pooled(), least=least)
            ranked = [*kept, *(name for name in racing if name not in kept)]
            racing = kept
        return ranked[:least]

    def stress(self, finalists: list[str]) -> str:
        """Return the winner among the finalists with all rank seeds at the target; the race's best if none has."""
        seeds = self.stress_seeds
        for name in finalists:
            done = len(self.ranks[TARGET].get(name, ()))
            if not all(self.run(self.ranks, TARGET, name, seed) for seed in seeds[done:]):
                break
        bounds = selection.bounds_of(self.looks[SMALL], self.pooled())
        small = selection.best(bounds, self.costs(SMALL), self.draw.holdup.stress.num_settings)
        for name in dict.fromkeys([*finalists, *small]):
            if not all(self.run(self.ranks, SMALL, name, seed) for seed in seeds):
                break
        target = self.draw.table.target
        holds = {
            name: selection.hold({target: sum(scores) / len(scores)})
            for name in finalists
            if len(scores := self.ranks[TARGET].get(name, [])) >= len(seeds)
        }
        return selection.winner(holds, self.costs(TARGET)) if holds else finalists[0]
