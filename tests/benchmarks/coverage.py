"""How often the intervals that the program prints hold the truth: simulated, at 2, 3, 4, 5, 10 and 20 runs.

Each row draws samples of n runs (or blocks, or cells) whose truth is known, calls the function that the tables and
figures call, and counts in how many samples the interval holds the truth. "none": no interval is printed there.

    python -m tests.benchmarks.coverage [--write]

Takes some minutes on one core. `--write` puts the table into `study/statistics/README.md`; the last line is JSON.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from scipy import stats

from analysis.estimates.targets import restricted
from analysis.models.iteration_time import fit_iteration_time, phase_times
from analysis.scaling.blocks import contrast, quotient_of, ratio_of_totals
from study import statistics
from study.statistics import Estimate
from tests.unit.test_models import TRUTH, design, grid, planted, vector

SIZES = (2, 3, 4, 5, 10, 20)
PAGE = Path(__file__).parents[2] / "study/statistics/README.md"
BEGIN, END = "<!-- coverage -->", "<!-- /coverage -->"
NOISE, BLOCK = 0.03, 0.05
"""Standard deviations of logarithms: of a run, and of what a block does to all its runs."""
SCORE, SPREAD = 0.97, 0.06
FAILING = (0.05, 0.1, 0.3, 0.5)
"""Shares of runs that never learn."""

Rng = np.random.Generator
Draw = Callable[[Rng, int], tuple[Estimate | None, float]]
"""Generator and n -> one interval and the truth; None for a sample that gives no estimate at all."""


@dataclass(frozen=True)
class Row:
    """One printed interval: the quantity and its population, where it is printed, one sample, samples of a cell."""

    what: str
    where: str
    draw: Draw
    repetitions: int = 2000
    level: float = 0.95


def scores(rng: Rng, n: int, failed: float) -> np.ndarray:
    """Scores near 1, a share of which is 0."""
    drawn = np.clip(rng.normal(SCORE, SPREAD, n), 0, 1.2)
    drawn[rng.random(n) < failed] = 0
    return drawn


def times(rng: Rng, n: int, mean: float, failed: float) -> np.ndarray:
    """Times to the target, up to the budget of 1."""
    drawn = mean * rng.lognormal(-0.06, 0.35, n)
    drawn[rng.random(n) < failed] = np.inf
    return np.minimum(drawn, 1.0)


def population(mean: float, failed: float) -> np.ndarray:
    return times(np.random.default_rng(1), 1_000_000, mean, failed)


def logs(rng: Rng, n: int, *effects: float) -> tuple[dict[int, float], ...]:
    """Mean logarithms by block of cells with these true logarithms, which share the effect of the block."""
    shared = rng.normal(0, BLOCK, n)
    return tuple(dict(enumerate(effect + shared + rng.normal(0, NOISE, n))) for effect in effects)


def mean(failed: float) -> Draw:
    def draw(rng: Rng, n: int) -> tuple[Estimate, float]:
        drawn = scores(rng, n, failed)
        return statistics.mean_interval(drawn, solved=drawn > 0), SCORE * (1 - failed)

    return draw


def difference(failed: float, side: statistics.Side = "both") -> Draw:
    def draw(rng: Rng, n: int) -> tuple[Estimate, float]:
        first, second = scores(rng, n, failed), scores(rng, n, 0)
        solved = first > 0, second > 0
        return statistics.difference_of_means(first, second, side=side, solved=solved), -SCORE * failed

    return draw


def fewer_resamples(estimator: Callable[..., Estimate], *samples: Any, **options: Any) -> Estimate:
    """Return an estimate by fewer resamples than the program takes, as it is made some thousand times."""
    with mock.patch.object(statistics, "NUM_RESAMPLES", 500):
        return estimator(*samples, **options)


def interquartile(failed: float) -> Draw:
    truth = float(stats.trim_mean(scores(np.random.default_rng(1), 1_000_000, failed), 0.25))

    def draw(rng: Rng, n: int) -> tuple[Estimate, float]:
        drawn = scores(rng, n, failed)
        return fewer_resamples(statistics.iqm_interval, drawn, solved=drawn > 0), truth

    return draw


def censored_ratio(failed: float) -> Draw:
    truth = float(population(0.6, failed).mean() / population(0.3, failed).mean())

    def draw(rng: Rng, n: int) -> tuple[Estimate, float]:
        slow, fast = times(rng, n, 0.6, failed), times(rng, n, 0.3, failed)
        return fewer_resamples(statistics.ratio_of_means, slow, fast), truth

    return draw


def censored_mean(failed: float) -> Draw:
    truth = float(population(0.6, failed).mean())

    def draw(rng: Rng, n: int) -> tuple[Estimate, float]:
        ends = times(rng, n, 0.6, failed)
        return restricted(ends, ends, horizon=1.0), truth

    return draw


def solved(rng: Rng, n: int) -> tuple[Estimate, float]:
    share = rng.uniform(0.5, 1.0)
    return statistics.rate_interval(int(rng.binomial(n, share)), n), share


def speed_up(rng: Rng, n: int) -> tuple[Estimate, float]:
    return contrast(logs(rng, n, 0.0, 1.0), (1.0, -1.0)), -1.0


def unpaired(rng: Rng, n: int) -> tuple[Estimate, float]:
    first, second = ({(side, block): value for block, value in logs(rng, n, 0.0)[0].items()} for side in (0, 1))
    return contrast((first, second), (1.0, -1.0)), 0.0


def decomposed(rng: Rng, n: int) -> tuple[Estimate, float]:
    return contrast(logs(rng, n, 0.0, 0.5, 0.4, 1.0), (-0.5, 0.5, -0.5, 0.5)), 0.55


def rate(rng: Rng, n: int) -> tuple[Estimate, float]:
    seconds = np.exp(rng.normal(0, np.hypot(NOISE, BLOCK), n))
    truth = 1000 / float(np.exp((NOISE**2 + BLOCK**2) / 2))
    return ratio_of_totals(np.full(n, 1000.0), seconds, range(n)), truth


def share(rng: Rng, n: int) -> tuple[Estimate, float]:
    shared = np.exp(rng.normal(0, BLOCK, n))
    one, rest = (each * shared * np.exp(rng.normal(0, NOISE, n)) for each in (0.3, 0.7))
    return ratio_of_totals(one, one + rest, range(n)), 0.3


def time_to_target(rng: Rng, n: int) -> tuple[Estimate, float]:
    speed, truth = rate(rng, n)
    steps, expected = censored_mean(0.1)(rng, n)
    return quotient_of(steps, speed), expected / truth


def slowed(seen: pd.DataFrame, rng: Rng, n: int) -> pd.DataFrame:
    """Runs of `planted`, cell by cell n runs, with what each block does to all of them."""
    blocks = np.tile(np.arange(n), len(seen) // n)
    factor = np.exp(rng.normal(0, BLOCK, n))[blocks]
    return seen.assign(block=blocks, **{name: seen[name] * factor for name in seen if name.endswith("_time_s")})


def prediction(rng: Rng, n: int) -> tuple[Estimate, float]:
    seen = slowed(planted(rng, where=grid((1, 2, 4, 8, 16), step_wait_s=0.0), runs=n), rng, n)
    target = grid((46,), ((4, 4000, 256, 4),), step_wait_s=0.0)
    truth = phase_times(vector(TRUTH), design(target))["iteration"][0]
    (found,) = fit_iteration_time(seen).predict(target)
    return found, 4000 / float(truth)


ROWS = (
    Row("mean score, no run fails", "T11, score figure, `evaluate`", mean(0.0)),
    *(Row(f"mean score, {100 * share:g} % of runs fail", "the same", mean(share)) for share in FAILING),
    Row("difference of means, none fails", "certificate", difference(0.0)),
    *(Row(f"difference of means, {100 * share:g} % of one fail", "the same", difference(share)) for share in FAILING),
    Row("lower bound of a difference, none fails", "certificate", difference(0.0, "lower")),
    *(
        Row(f"lower bound, {100 * share:g} % of the first fail", "the same", difference(share, "lower"))
        for share in FAILING
    ),
    Row("interquartile mean, none fails", "bands of return curves, T11", interquartile(0.0), 1000),
    *(
        Row(f"interquartile mean, {100 * share:g} % fail", "the same", interquartile(share), 1000)
        for share in (0.05, 0.2, 0.3, 0.5)
    ),
    Row("share solved, true share 0.5 to 1", "T11, `evaluate`", solved),
    Row("ratio of times to target", "T8, certificate", censored_ratio(0.0), 1000),
    Row("ratio of times to target, 20 % never reach it", "the same", censored_ratio(0.2), 1000),
    Row("steps to target, 20 % never reach it", "T8", censored_mean(0.2), 1000),
    Row("time to the target, 10 % never reach it", "T8", time_to_target, 1000),
    Row("speed-up, paired by block", "T2, T3, efficiencies", speed_up),
    Row("ratio without a common block", "the same", unpaired),
    Row("part of a decomposed ratio", "notes of T2", decomposed),
    Row("throughput, total over total", "T2, T4, T8", rate),
    Row("share of a phase, most that runners can give", "T5", share),
    Row("model, iteration time at 46 runners", "price list", prediction, 200),
)


def cell(row: Row, n: int, *, repetitions: int | None = None) -> float | None:
    """Return the coverage in percent; None where most samples have no interval."""
    rng = np.random.default_rng([n, *row.what.encode()])
    held = known = 0
    count = repetitions or row.repetitions
    for number in range(count):
        found, truth = row.draw(rng, n)
        if found is not None and found.has_interval:
            known += 1
            held += found.low <= truth <= found.high
        elif number == 9 and not known:
            return None
    return float(100 * held / known) if 2 * known > count else None


def table(results: dict[str, dict[int, float | None]]) -> str:
    """Return the Markdown table."""
    lines = [
        f"| interval | printed in | nominal | {' | '.join(f'n = {n}' for n in SIZES)} | ± |",
        "| --- " * 9 + "| --- |",
    ]
    for row in ROWS:
        found = [results[row.what][n] for n in SIZES]
        error = 196 * np.sqrt(row.level * (1 - row.level) / row.repetitions)
        cells = " | ".join("none" if each is None else f"{each:.0f}" for each in found)
        lines.append(f"| {row.what} | {row.where} | {row.level:.0%} | {cells} | {error:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate every cell, print the table, and write it into the page on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into study/statistics/README.md")
    write = parser.parse_args().write
    results: dict[str, dict[int, float | None]] = {}
    for row in ROWS:
        results[row.what] = {n: cell(row, n) for n in SIZES}
        print(row.what, results[row.what], flush=True)
    text = table(results)
    print(text)
    if write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
