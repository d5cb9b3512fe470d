"""How often the confirmation of a hold-up study is right, and what it costs.

    python -m tests.benchmarks.confirmation                 # the tables of the protocol's page on its evidence

Invented runs: 20 seeds at the target scale and at two unseen ones, and at the small scale, with two references: its
best setting and the winner. A sound run scores 1 with the given standard deviation and is solved at each of three
evaluations; a failed one scores 0 and is not. The references are sound. Then the winner against five rivals: how often
the search is said to have paid. Brackets are 95 % intervals of the simulation (Wilson's).
"""

import argparse
from collections import Counter

import numpy as np
from scipy import stats

from study.designs.holdup.verdict import HOLDS_UP, Arm, Run, compare, in_words, judge, search_paid
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
                score=None if failed[seed] else float(score[seed]),
                solved_at=(not (failed[seed] or missed[seed]),) * 3,
            )
            for seed in range(seeds)
        ]
        return Arm(name=name, scale=scale, runs=tuple(runs))

    bad = {("winner", scale): place < bad_scales for place, scale in enumerate(scales)}
    bad |= {("best_small", SMALL): False, ("winner", SMALL): False}
    return {(name, scale): arm(name, scale, is_bad) for (name, scale), is_bad in bad.items()}


def confirmed(arms):
    """Return whether the setting holds up."""
    holdup = HoldUpSpec(
        target_scale=SCALES[0],
        small_scale=SMALL,
        unseen_scales=[scale for name, scale in arms if name == "winner" and scale not in (SCALES[0], SMALL)],
        confirm={"num_seeds": len(arms["winner", SCALES[0]].runs)},
    )
    return in_words(judge(arms, holdup, None)) == HOLDS_UP


def simulated(spread, studies, *, seed=(0,), **case):
    """Return how many studies hold up."""
    rng = np.random.default_rng([*seed, round(1000 * spread)])
    return sum(confirmed(study(rng, spread, **case)) for _ in range(studies))


RIVALS = {
    "as good, the other four 0.1 worse": (0.0, 0.1, 0.1, 0.1, 0.1),
    "all five as good": (0.0,) * 5,
    "0.05 worse, the other four 0.1": (0.05, 0.1, 0.1, 0.1, 0.1),
    "all five 0.1 worse": (0.1,) * 5,
}
"""The best rival of a winner, and what each scores less."""


def paid(spread, studies, losses):
    """Return how often the search is said to have paid, not to have paid, and to be open."""
    rng, found = np.random.default_rng([0, round(1000 * spread)]), Counter()
    for _ in range(studies):
        every = [
            Arm(
                name=str(place),
                scale=SCALES[0],
                runs=tuple(Run(score=float(score), solved_at=(True,)) for score in rng.normal(1 - loss, spread, SEEDS)),
            )
            for place, loss in enumerate((0.0, *losses))
        ]
        found[search_paid(compare(every[0], every[1:], rng=rng, tolerance=0.05))[0]] += 1
    return found


def share(count, total):
    """Return a share in percent with Wilson's interval."""
    low, high = stats.binomtest(count, total).proportion_ci(method="wilson")
    return f"{100 * count / total:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=400, help="Invented studies of each cell.")
    studies = parser.parse_args().studies
    print("Share of studies that hold up, in %, by the standard deviation between seeds:\n")
    rows = {
        case: [share(simulated(spread, studies, seed=(0, place), **CASES[case]), studies) for spread in SPREADS]
        for place, case in enumerate(CASES)
    }
    written("setting", rows)
    print("Share of studies that say that the search paid / that it did not, in %, the rest that it is open:\n")
    words = {
        case: [" / ".join(share(found[word], studies) for word in ("paid", "not paid")) for found in every]
        for case, losses in RIVALS.items()
        if (every := [paid(spread, studies, losses) for spread in SPREADS])
    }
    written("the best rival is", words)


def written(first, rows):
    """Print a table, one column for each spread."""
    print(f"| {first} | " + " | ".join(map(str, SPREADS)) + " |")
    print("| --- |" + " ---: |" * len(SPREADS))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()


if __name__ == "__main__":
    main()
