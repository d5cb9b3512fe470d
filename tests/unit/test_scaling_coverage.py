"""Do the intervals hold the planted truth about as often as they claim, and does a sham show nothing?

How often exactly is in the table of `study/statistics/README.md` (`python -m tests.benchmarks.coverage`).
"""

from collections import Counter

import numpy as np

from analysis.scaling.phases import phases
from analysis.scaling.speed_up import strong_scaling
from tests.planted import Truth, planted_runs, sham

CELLS = ((2, 2048), (8, 2048), (2, 8192), (8, 8192))
TRUTH = Truth(cells=CELLS, blocks=3)
LEVEL = 0.90


def covered(truth, repetitions):
    """Return the share of studies whose interval holds the truth, by quantity."""
    hits, rng = Counter(), np.random.default_rng(20_261)
    first, second = (2, 2048), (8, 8192)
    for _ in range(repetitions):
        runs = planted_runs(truth, rng)
        result = strong_scaling(runs, level=LEVEL)
        group = next(group for group in result.groups if '"train_batch_size":2048' in group.fingerprint)
        row = group.rows[1]
        split = result.refusals[0].decomposition
        cell = next(each for each in phases(runs, level=LEVEL).rows if each.fingerprint == group.fingerprint)
        rate = group.rows[0].env_steps_per_s
        quantities = {
            "speed-up": (row.speed_up, truth.speed_up(8, 2, 2048)),
            "efficiency per runner": (row.efficiency_n, truth.speed_up(8, 2, 2048) / 4),
            "efficiency per CPU": (row.efficiency_p, truth.speed_up(8, 2, 2048) * 3 / 9),
            "Karp-Flatt": (row.karp_flatt, truth.karp_flatt(8, 2, 2048)),
            "parallel part": (split.parallel_log, truth.parallel_log(first, second)),
            "batch part": (split.batch_log, truth.batch_log(first, second)),
            "load balance": (cell.load_balance, 1 / truth.straggler),
            "throughput": (rate, truth.rate(2, 2048)),
        }
        hits.update({name: est.low <= expected <= est.high for name, (est, expected) in quantities.items()})
    return {name: count / repetitions for name, count in hits.items()}


def test_intervals_cover_what_is_planted_in_a_few_repetitions():
    shares = covered(TRUTH, 20)
    # 20 at 90 %: fewer than 13 in less than 1 of 1,000 such tests.
    assert all(share >= 13 / 20 for share in shares.values()), shares


SCALES = ((2, 2048), (4, 2048), (8, 2048), (16, 2048))


def silent(truth, repetitions):
    """Return the share of sham studies whose interval of ln S holds 0: scales permuted within the blocks."""
    rng, quiet = np.random.default_rng(7), 0
    for _ in range(repetitions):
        runs = sham(planted_runs(truth, rng), rng)
        row = strong_scaling(runs, level=LEVEL).groups[0].rows[-1]
        quiet += row.speed_up.low <= 1 <= row.speed_up.high
    return quiet / repetitions


def test_a_sham_shows_no_effect_in_a_few_repetitions():
    assert silent(Truth(cells=SCALES, blocks=5), 20) >= 13 / 20
