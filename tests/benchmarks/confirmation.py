"""How often the confirmation of a hold-up study is right, and what it costs: version 1 of the protocol and version 4.

    python -m tests.benchmarks.confirmation                 # the table of the protocol's page

Both versions judge the same invented runs: 20 seeds at the target scale and at two unseen ones, and two references at
the small scale, of which version 4 runs the second half only where it is needed. A sound run scores 1 with the given
standard deviation and is solved. Brackets are 95 % intervals of the simulation (Wilson's).
"""

import argparse
import math

import numpy as np

from study.designs.holdup.certificate.verdict import LEVEL_1, Arm, Arms, Run, halfway, judge
from study.designs.holdup.phases import first_half

SEEDS, SCALES, SMALL = 20, (46, 23, 64), 10
LAWS = {"target": 46, "tolerance": 0.05, "solved_share": 0.95, "env_steps": None}
SPREADS = (0.03, 0.05, 0.1)
CASES = {
    "sound": {},
    "loses 0.05 of its score at every scale": {"loss": 0.05},
    "loses 0.05 at one scale": {"loss": 0.05, "scales": 1},
    "misses the target in 10 % of runs": {"misses": 0.1},
    "fails in 5 % of runs": {"fails": 0.05},
    "fails in 10 % of runs": {"fails": 0.1},
}


def study(rng, spread, *, loss=0.0, misses=0.0, fails=0.0, scales=3):
    """Return the arms of a study: the winner, not sound at the first `scales` scales, and two references."""

    def arm(name, scale, bad):
        score = rng.normal(1 - loss * bad, spread, SEEDS)
        failed, missed = rng.random(SEEDS) < fails * bad, rng.random(SEEDS) < misses * bad
        runs = [
            Run(
                seed=seed, score=None if failed[seed] else float(score[seed]), solved=not (failed[seed] or missed[seed])
            )
            for seed in range(SEEDS)
        ]
        return Arm(name=name, scale=scale, runs=tuple(runs))

    winner = {scale: arm("winner", scale, place < scales) for place, scale in enumerate(SCALES)}
    return Arms(winner=winner, references=(arm("best_small", SMALL, False), arm("winner", SMALL, False)))


def cut(arm):
    """Return the first half of an arm."""
    return Arm(name=arm.name, scale=arm.scale, runs=arm.runs[: first_half(SEEDS)])


def version_4(arms):
    """Return whether the setting holds up, the runs that it took, and whether it was given up after the first half."""
    references = tuple(map(cut, arms.references))
    half = Arms(winner={scale: cut(arm) for scale, arm in arms.winner.items()}, references=references)
    found = halfway(half, num_seeds=SEEDS, **LAWS)
    last = (
        half if found.lost else Arms(winner=arms.winner, references=references if found.references else arms.references)
    )
    runs = sum(len(arm.runs) for arm in (*last.winner.values(), *last.references))
    return judge(last, **LAWS).learning, runs, found.lost


def share(count, total):
    """Return a share in percent with Wilson's interval."""
    p, z = count / total, 1.96
    middle, half = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + (z / (2 * total)) ** 2)
    low, high = (100 * min(max((middle + sign * half) / (1 + z * z / total), 0), 1) for sign in (-1, 1))
    return f"{100 * p:.1f} [{low:.1f}, {high:.1f}]"


def cell(spread, case, studies, seed=0):
    """Return what one cell of the table says."""
    rng = np.random.default_rng([seed, round(1000 * spread), list(CASES).index(case)])
    found = np.empty((studies, 4))
    for number in range(studies):
        arms = study(rng, spread, **CASES[case])
        found[number] = judge(arms, level=LEVEL_1, **LAWS).learning, *version_4(arms)
    old, new, runs, lost = found.sum(axis=0)
    stopped = f", {lost / studies:.0%} stop at half" if lost else ""
    return f"{share(old, studies)} → {share(new, studies)}; {runs / studies:.0f}{stopped}".replace("%", " %")


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=400, help="Invented studies of each cell.")
    arguments = parser.parse_args()
    print("| setting | " + " | ".join(map(str, SPREADS)) + " |")
    print("| --- |" + " --- |" * len(SPREADS))
    for case in CASES:
        cells = (cell(spread, case, arguments.studies) for spread in SPREADS)
        print("| " + " | ".join([case, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
