"""Draws studies from a table, lets every strategy choose, and counts how often its pick holds up. Pure NumPy and SciPy.

**A replay** draws a study from the table: the order in which the search proposes the settings, and the role of every
seed: `tune` and `rank` seeds, which choosing may use, and `judge` seeds, which no strategy has seen. The judge seeds of
a replay are the same for all strategies: more seeds left over would mean a harder test.

**Holds up**: on the judge seeds the pick's mean score at the target scale is at most `tolerance` below the best
setting's mean score at the small scale, and the share of solved runs is at least `solved_share` (with two judge seeds:
both). The best setting's mean is over all seeds of the table. The same test on all seeds of the table, those of the
choice included, is reported beside it: there a setting passes or not, whatever the replay.

**Regret**: the best setting's mean score at the target over all seeds, minus the pick's mean on the judge seeds. The
largest of many means is a little optimistic, by the same amount for all strategies.

**Limits.** A table is small: the search sees nearly all of it, so a clever order of proposals (TPE) changes little, and
strategies that run each setting a fixed number of times come to its end before they come to the end of the money; the
report says which. With a hundred times as many settings than the money pays for, the comparison may be another.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from scipy import stats

from study.designs.holdup.replay.protocol import protocol
from study.designs.holdup.replay.report import ReplayResult, StrategyResult, notes
from study.designs.holdup.replay.strategies import RIVALS, Purse, Roles, Strategy, draw_study, roles_of
from study.designs.holdup.replay.table import SMALL, TARGET, ScoreTable, score_table
from study.errors import AnalysisError
from study.space.holdup import HoldUpSpec
from study.statistics import Estimate, FloatArray

OURS = "our protocol"
STRATEGIES: Mapping[str, Strategy] = MappingProxyType({OURS: protocol, **RIVALS})
"""In the order of the report."""
NUM_TABLES = 40
"""Resampled tables: the standard error between them is then known to about 11 %."""
NATURAL_REPLAYS = 200
"""Replays without a limit that the default budget is taken from."""
LEVEL = 0.95
METHOD = "seed bootstrap and Monte Carlo"
PASSES, PASSES_ALL, REGRET, SPENT = range(4)
"""What a replay says of a strategy."""


def replay(
    *studies: str | Path,
    target: int,
    small: int,
    num_replays: int = 2000,
    seed: int = 0,
    complete_seeds_only: bool = False,
) -> ReplayResult:
    """Replay all strategies on the complete table of a study, or of several that asked the same with other seeds.

    Args:
        studies: Folders, such as those of `search_spaces/acrobot_table.yaml`; at least one.
        target: Runners at the target scale.
        small: Runners at the small scale.
        num_replays: Replays on the table, and again on resampled tables, >= `2 * NUM_TABLES`.
        seed: Seed of everything that chance decides.
        complete_seeds_only: Leave out seeds with a trial that has not ended, instead of refusing the table.

    Raises:
        AnalysisError: The table is not complete, has fewer than 3 seeds, or an argument is out of range.
        RecordError: The records cannot be trusted.
    """
    table = score_table(*studies, target=target, small=small, complete_seeds_only=complete_seeds_only)
    return replay_table(table, num_replays=num_replays, seed=seed)


def replay_table(
    table: ScoreTable,
    *,
    num_replays: int = 2000,
    seed: int = 0,
    budget_cpu_s: float | None = None,
    strategies: Mapping[str, Strategy] = STRATEGIES,
    holdup: HoldUpSpec | None = None,
) -> ReplayResult:
    """Replay strategies on a table; see `replay`.

    Intervals hold for other seeds and the same settings. Their standard error adds the spread between tables with
    resampled seeds, less what the few replays of each put into it, to the Monte Carlo error of the replays; the
    quantile is Student's for the seeds of the table, and the spread is widened by n / (n - 1) as in
    `study.statistics` (expanded). That of a probability is never narrower than for as many runs as there are seeds.
    On tables of 24 settings and 8 seeds, of which some miss the target now and then, a nominal 95 % covers
    98-100 % for probabilities, 90-94 % for their ratio and 80-92 % for regret, least where the strategy is good and
    misses are rare (`test_intervals_cover_as_the_docstring_says`).

    Args:
        table: The table.
        num_replays: As in `replay`.
        seed: As in `replay`.
        budget_cpu_s: CPU-seconds for each strategy in each replay, > 0; None: the most that our protocol spends.
        strategies: Name -> strategy; the ratio compares them with `OURS`, if it is among them.
        holdup: Sizes of our protocol, tolerance and solved share; None: the defaults of a space.

    Raises:
        AnalysisError: The table has fewer than 3 seeds, or an argument is out of range.
    """
    holdup = holdup or HoldUpSpec.model_validate({"target_scale": table.target, "small_scale": table.small})
    roles = roles_of(len(table.seeds), holdup)
    if num_replays < 2 * NUM_TABLES:
        rule = f"must be at least {2 * NUM_TABLES}, two for each of {NUM_TABLES} resampled tables"
        fix = "Leave it at 2000."
        raise AnalysisError(where="num_replays", rule=rule, got=num_replays, fix=fix, code="too-few-replays")
    # Streams of their own: the budget and the number of replays leave the draws as they are.
    for_budget, for_table, for_resampling = (
        np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(3)
    )
    whole = np.arange(len(table.seeds))
    if budget_cpu_s is None:
        ours = {OURS: STRATEGIES[OURS]}
        natural = _outcomes(table, whole, ours, roles, holdup, float("inf"), NATURAL_REPLAYS, for_budget)
        budget_cpu_s = float(natural[..., SPENT].max())
    observed = _outcomes(table, whole, strategies, roles, holdup, budget_cpu_s, num_replays, for_table)
    resampled = np.stack(
        [
            _outcomes(
                table, columns, strategies, roles, holdup, budget_cpu_s, num_replays // NUM_TABLES, for_resampling
            )
            for columns in _resamples(len(table.seeds), for_resampling)
        ]
    )
    results = _summarise(list(strategies), observed, resampled, len(table.seeds))
    return ReplayResult(
        strategies=results,
        target=table.target,
        small=table.small,
        num_settings=len(table.settings),
        seeds=table.seeds,
        roles=roles,
        budget_cpu_s=budget_cpu_s,
        num_replays=num_replays,
        num_tables=NUM_TABLES,
        notes=tuple(notes(table, holdup, roles, results, budget_cpu_s)),
    )


# Replays


def _outcomes(
    table: ScoreTable,
    columns: npt.NDArray[np.int64],
    strategies: Mapping[str, Strategy],
    roles: Roles,
    holdup: HoldUpSpec,
    limit: float,
    num_replays: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Return what every replay on a table of the given columns says: shape (replays, strategies, 4)."""
    drawn = table.resampled(columns)
    means, solved = drawn.score.mean(axis=-1), drawn.solved[TARGET].mean(axis=-1)
    bar, best = means[SMALL].max() - holdup.tolerance, means[TARGET].max()
    passes_all = (means[TARGET] >= bar) & (solved >= holdup.solved_share)
    outcomes = np.empty((num_replays, len(strategies), 4))
    for number in range(num_replays):
        draw = draw_study(drawn, columns, roles, holdup, rng)
        judged = drawn.score[TARGET][:, draw.judge].mean(axis=-1)
        passes = (judged >= bar) & (drawn.solved[TARGET][:, draw.judge].mean(axis=-1) >= holdup.solved_share)
        for place, strategy in enumerate(strategies.values()):
            purse = Purse(limit=limit)
            pick = strategy(draw, purse)
            outcomes[number, place] = passes[pick], passes_all[pick], best - judged[pick], purse.spent
    return outcomes


def _resamples(num_seeds: int, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Return the columns of `NUM_TABLES` resampled tables; one seed alone cannot both choose and judge."""
    found: list[npt.NDArray[np.int64]] = []
    while len(found) < NUM_TABLES:
        columns = np.sort(rng.integers(num_seeds, size=num_seeds))
        if columns[0] != columns[-1]:
            found.append(columns)
    return found


# Estimates


def _summarise(
    names: Sequence[str], observed: FloatArray, resampled: FloatArray, num_seeds: int
) -> tuple[StrategyResult, ...]:
    """Return the results: `observed` has shape (replays, strategies, 4), `resampled` that per table."""

    def values(name: str, what: int) -> tuple[FloatArray, FloatArray]:
        place = names.index(name)
        return observed[:, place, what], resampled[:, :, place, what]

    results = []
    for name in names:
        ratio = None
        if OURS in names and name != OURS:
            ratio = _ratio(values(OURS, PASSES), values(name, PASSES), num_seeds)
        spent = values(name, SPENT)[0]
        results.append(
            StrategyResult(
                strategy=name,
                holds_up=_share(*values(name, PASSES), num_seeds),
                holds_up_on_all=_share(*values(name, PASSES_ALL), num_seeds),
                regret=_mean(*values(name, REGRET), num_seeds),
                ratio=ratio,
                spent_cpu_s=float(spent.mean()),
                most_spent_cpu_s=float(spent.max()),
            )
        )
    return tuple(results)


def _half_width(values: FloatArray, resampled: FloatArray, num_seeds: int) -> float:
    """Return half the width of the interval for the mean of `values`.

    Args:
        values: One number per replay on the table, shape (replays,).
        resampled: The same on resampled tables, shape (tables, replays).
        num_seeds: Seeds of the table.
    """
    chance = resampled.var(axis=1, ddof=1).mean() / resampled.shape[1]
    between = max(float(resampled.mean(axis=1).var(ddof=1) - chance), 0.0)
    squared = num_seeds / (num_seeds - 1) * between + float(values.var(ddof=1)) / len(values)
    return float(stats.t.ppf((1 + LEVEL) / 2, num_seeds - 1) * np.sqrt(squared))


def _mean(values: FloatArray, resampled: FloatArray, num_seeds: int) -> Estimate:
    value, half = float(values.mean()), _half_width(values, resampled, num_seeds)
    return Estimate(value=value, low=value - half, high=value + half, n=num_seeds, level=LEVEL, method=METHOD)


def _share(values: FloatArray, resampled: FloatArray, num_seeds: int) -> Estimate:
    """Return a probability; its interval is never narrower than Clopper-Pearson's for as many runs as seeds.

    Resampled seeds know nothing of misses that the table happens not to hold: they alone would call a probability
    near 1 certain. The share of successes need not be a whole number here, which the beta quantiles allow.
    """
    value, half = float(values.mean()), _half_width(values, resampled, num_seeds)
    successes, tail = value * num_seeds, (1 - LEVEL) / 2
    failures = num_seeds - successes
    least = float(stats.beta.ppf(tail, successes, failures + 1)) if value > 0 else 0.0
    most = float(stats.beta.ppf(1 - tail, successes + 1, failures)) if value < 1 else 1.0
    low, high = max(min(value - half, least), 0.0), min(max(value + half, most), 1.0)
    return Estimate(value=value, low=low, high=high, n=num_seeds, level=LEVEL, method=METHOD)


def _ratio(
    ours: tuple[FloatArray, FloatArray], rival: tuple[FloatArray, FloatArray], num_seeds: int
) -> Estimate | None:
    """Return P(ours) / P(rival) with an interval on its logarithm, paired by replays; None where the rival's is 0."""
    above, below = float(ours[0].mean()), float(rival[0].mean())
    if below == 0:
        return None
    low, high = float("-inf"), float("inf")
    if above > 0:
        # To first order the logarithm of the ratio moves as the mean of these.
        moves, resampled = (one / above - other / below for one, other in zip(ours, rival, strict=True))
        if (half := _half_width(moves, resampled, num_seeds)) > 0:
            low, high = (above / below * float(np.exp(sign * half)) for sign in (-1, 1))
    return Estimate(value=above / below, low=low, high=high, n=num_seeds, level=LEVEL, method=METHOD)
