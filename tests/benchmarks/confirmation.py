"""How often the confirmation of a hold-up study is right, and what it costs.

    python -m tests.benchmarks.confirmation                 # the tables of the protocol's page on its evidence

Invented runs: 20 seeds at the target scale and at two unseen ones, and at the small scale, with two references: its
best setting and the winner. Their second half runs only where it is needed. A sound run scores 1 with the given
standard deviation and is solved; a failed one scores 0 and is not. The references are sound. Brackets are 95 %
intervals of the simulation (Wilson's).
"""

import argparse
import math
from dataclasses import replace

import numpy as np

from study.designs.holdup.arms import ArmPlan
from study.designs.holdup.verdict import Arm, Run, halfway, judge
from study.space.sections import HoldUpSpec

SEEDS, SCALES, SMALL = 20, (46, 23, 64), 10
SPREADS = (0.03, 0.05, 0.1)
CASES = {
    "sound": {},
    "loses 0.05 of its score at every scale": {"loss": 0.05},
    "loses 0.05 at one scale": {"loss": 0.05, "bad_scales": 1},
    "misses the target in 10 % of runs": {"misses": 0.1},
    "fails in 5 % of runs": {"fails": 0.05},
    "fails in 10 % of runs": {"fails": 0.1},
}


def study(rng, spread, *, loss=0.0, misses=0.0, fails=0.0, bad_scales=3, seeds=SEEDS, scales=SCALES):
    """Return the arms of a study: the winner, not sound at the first `bad_scales` scales, and two references."""

    def arm(name, scale, bad):
        score = rng.normal(1 - loss * bad, spread, seeds)
        failed, missed = rng.random(seeds) < fails * bad, rng.random(seeds) < misses * bad
        runs = [
            Run(
                seed=seed, score=None if failed[seed] else float(score[seed]), solved=not (failed[seed] or missed[seed])
            )
            for seed in range(seeds)
        ]
        return Arm(name=name, scale=scale, runs=tuple(runs))

    bad = {("winner", scale): place < bad_scales for place, scale in enumerate(scales)}
    bad |= {("best_small", SMALL): False, ("winner", SMALL): False}
    return {(name, scale): arm(name, scale, is_bad) for (name, scale), is_bad in bad.items()}


def confirmed(arms):
    """Return whether the setting holds up, and the runs that it took: half of them where it is given up by then."""
    seeds = len(arms["winner", SCALES[0]].runs)
    first_half = ArmPlan(name="", setting={}, scale=SMALL, num_seeds=seeds).first_half
    half = {place: replace(arm, runs=arm.runs[:first_half]) for place, arm in arms.items()}
    holdup = HoldUpSpec(
        target_scale=SCALES[0],
        small_scale=SMALL,
        unseen_scales=[scale for name, scale in arms if name == "winner" and scale not in (SCALES[0], SMALL)],
        confirm={"num_seeds": seeds},
    )
    stopped = halfway(half, holdup, None, seed=0)
    last = half if stopped is None else {**arms, **{place: half[place] for place in stopped}}
    return judge(last, holdup, None).learning, sum(len(arm.runs) for arm in last.values())


def simulated(spread, studies, *, seed=(0,), **case):
    """Return how many studies hold up and their mean number of runs."""
    rng = np.random.default_rng([*seed, round(1000 * spread)])
    held, runs = np.sum([confirmed(study(rng, spread, **case)) for _ in range(studies)], axis=0)
    return int(held), runs / studies


def share(count, total):
    """Return a share in percent with Wilson's interval."""
    p, z = count / total, 1.96
    middle, half = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + (z / (2 * total)) ** 2)
    low, high = (100 * min(max((middle + sign * half) / (1 + z * z / total), 0), 1) for sign in (-1, 1))
    return f"{100 * p:.1f} [{low:.1f}, {high:.1f}]"


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=400, help="Invented studies of each cell.")
    studies = parser.parse_args().studies
    table = {
        (case, spread): simulated(spread, studies, seed=(0, place), **CASES[case])
        for place, case in enumerate(CASES)
        for spread in SPREADS
    }
    shown = {
        "Share of studies that hold up, in %": lambda cell: share(cell[0], studies),
        "Mean number of runs": lambda cell: f"{cell[1]:.0f}",
    }
    for title, text in shown.items():
        print(f"{title}, by the standard deviation between seeds:\n")
        print("| setting | " + " | ".join(map(str, SPREADS)) + " |")
        print("| --- |" + " ---: |" * len(SPREADS))
        for case in CASES:
            print(f"| {case} | " + " | ".join(text(table[case, spread]) for spread in SPREADS) + " |")
        print()


if __name__ == "__main__":
    main()
