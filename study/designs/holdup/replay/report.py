"""What a replay found, as values and as Markdown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from study.designs.holdup.replay.strategies import FREE, Roles
from study.designs.holdup.replay.table import LAST_EPISODES, SMALL, TARGET, ScoreTable
from study.space.holdup import HoldUpSpec
from study.statistics import Estimate

IDLE = 0.9
"""A strategy that spends less than this share of the budget in every replay is said to have no use for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyResult:
    """What the replays say of one strategy."""

    strategy: str
    holds_up: Estimate
    """Probability that the pick holds up on seeds that no strategy has seen, in [0, 1]."""
    holds_up_on_all: Estimate
    """The same, judged on all seeds of the table, in [0, 1]."""
    regret: Estimate
    """Score lost against the best setting of the table, on seeds that no strategy has seen."""
    ratio: Estimate | None
    """`holds_up` of our protocol over that of this strategy; None where this strategy's is 0, and for our protocol."""
    spent_cpu_s: float
    """Mean CPU-seconds."""
    most_spent_cpu_s: float
    """CPU-seconds of the dearest replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The report of a replay."""

    strategies: tuple[StrategyResult, ...]
    """In the order of `STRATEGIES`."""
    target: int
    small: int
    num_settings: int
    seeds: tuple[int, ...]
    roles: Roles
    budget_cpu_s: float
    """CPU-seconds that no strategy exceeds in any replay."""
    num_replays: int
    """On the table as it is; as many again are spread over resampled tables."""
    num_tables: int
    notes: tuple[str, ...]
    """What a reader has to know beside the numbers."""


def notes(
    table: ScoreTable, holdup: HoldUpSpec, roles: Roles, results: Sequence[StrategyResult], budget: float
) -> list[str]:
    """Return what a reader has to know beside the numbers."""
    means, solved = table.score.mean(axis=-1), table.solved[TARGET].mean(axis=-1)
    costs = table.cost.mean(axis=(1, 2))
    passing = (means[TARGET] >= means[SMALL].max() - holdup.tolerance) & (solved >= holdup.solved_share)
    said = [
        f"{passing.sum()} of {len(table.settings)} settings hold up on all {len(table.seeds)} seeds; the best mean "
        f"score is {means[TARGET].max():.3f} at {table.target} runners and {means[SMALL].max():.3f} at {table.small}.",
        f"A trial takes {costs[TARGET]:.2g} CPU-s at {table.target} runners and {costs[SMALL]:.2g} at {table.small}, "
        "on the mean.",
        f"{table.num_failed} of {table.score.size} trials failed; each is a score of 0.",
    ]
    said.append(
        "Our protocol pays for its calibration too, at the mean cost of a trial, and not for baselines: they choose "
        "nothing, and every strategy would need them for its certificate."
    )
    if table.left_out:
        said.append(f"Seeds left out, since not all of their trials have ended: {', '.join(map(str, table.left_out))}.")
    if roles.rank < min(sum(holdup.race.blocks), holdup.rank_seeds.count):
        said.append(f"Our protocol asks for more rank seeds than there are: {roles.rank}. It is replayed on fewer.")
    for result in results:
        if result.strategy not in FREE and result.most_spent_cpu_s < IDLE * budget:
            said.append(
                f"`{result.strategy}` never spends more than {result.most_spent_cpu_s / budget:.0%} of the budget: it "
                "comes to the end of the table and has no use for more."
            )
    return said


def to_markdown(result: ReplayResult) -> str:
    """Return the report as a table with its definitions and notes."""
    roles = result.roles
    header = (
        "strategy",
        f"P(pick holds up), {roles.judge} unseen seeds",
        f"the same on all {len(result.seeds)} seeds",
        "regret (score)",
        "CPU-s spent",
        "P ours / P other",
    )
    lines = [header, ("---", *["---:"] * (len(header) - 1))]
    for each in result.strategies:
        cells: list[str] = [each.strategy, *map(_said, (each.holds_up, each.holds_up_on_all, each.regret))]
        lines.append((*cells, f"{each.spent_cpu_s:,.0f}", _said(each.ratio)))
    text = [
        f"{result.num_settings} settings, {len(result.seeds)} seeds, {result.small} -> {result.target} runners; "
        f"{result.num_replays} replays; at most {result.budget_cpu_s:,.0f} CPU-s for each strategy in each replay.",
        "",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
        f"- In brackets: {result.strategies[0].holds_up.level:.0%} intervals for other seeds and the same settings "
        f"({result.num_tables} tables of resampled seeds, and the error of the replays); a "
        "probability's is never narrower than for as many runs as there are seeds.",
        f"- Of the seeds {roles.tune} tune, {roles.rank} rank and {roles.judge} judge, drawn anew in every replay; the "
        f"last evaluation is judged by its first {LAST_EPISODES} episodes.",
        *(f"- {note}" for note in result.notes),
    ]
    return "\n".join(text) + "\n"


def _said(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    if not estimate.has_interval:
        return f"{estimate.value:z.2f}"
    return f"{estimate.value:z.2f} [{estimate.low:z.2f}, {estimate.high:z.2f}]"
