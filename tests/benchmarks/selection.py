"""What each piece of the selection is worth: our stages at many sizes, on tables drawn from the recorded one.

    python -m tests.benchmarks.selection                    # five minutes

A table of 96 settings and 48 seeds is drawn from the recorded ones: each setting is one of the 24 recorded ones, a
little moved, and each of its runs one of the recorded 48, a little moved. 26 seeds judge. So intervals are narrow (96
settings, and 120 tables), but the settings are of one environment. Brackets are 95 % intervals over the tables.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from study.designs.holdup.replay import protocol, run, strategies, table
from study.records.folder import StudyFolder
from study.records.records import Evaluation, read_lines
from study.records.state import ledger_of
from study.space.holdup import HoldUpSpec

ANALYSIS = Path(__file__).parents[2] / "analysis"
RECORDED = (ANALYSIS / "example_table", ANALYSIS / "example_table_more")
TARGET = 46
NUM_SETTINGS, NUM_SEEDS, ROLES = 96, 48, strategies.Roles(tune=8, rank=14, judge=26)
MOVED = 0.01
"""Standard deviation between a setting and the recorded one that it is drawn from, in score."""
SIZES = {
    # settings, settings that race, blocks of the race, finalists
    "12 settings, 6 race on 1, 1, 2 seeds": (12, 6, [1, 1, 2], 1),
    "12 settings, 6 race on 1, 2, 4 seeds": (12, 6, [1, 2, 4], 1),
    "16 settings, 6 race on 1, 2, 4 seeds": (16, 6, [1, 2, 4], 1),
    "24 settings, 8 race on 1, 2, 4 seeds (default)": (24, 8, [1, 2, 4], 1),
    "the same, 2 finalists": (24, 8, [1, 2, 4], 2),
    "24 settings, 12 race on 1, 2, 4 seeds": (24, 12, [1, 2, 4], 1),
    "24 settings, 8 race on 2, 4, 8 seeds": (24, 8, [2, 4, 8], 1),
    "48 settings, 12 race on 1, 2, 4 seeds": (48, 12, [1, 2, 4], 1),
}


def drawn(recorded, rng, spread):
    """Return a table drawn from the recorded one, with a standard deviation `spread` more between the seeds."""
    setting = rng.integers(len(recorded.settings), size=NUM_SETTINGS)
    seed = rng.integers(len(recorded.seeds), size=(NUM_SETTINGS, NUM_SEEDS))
    score, last, solved, cost = (
        getattr(recorded, name)[:, setting][:, np.arange(NUM_SETTINGS)[:, None], seed]
        for name in ("score", "last_score", "solved", "cost")
    )
    moved = score + rng.normal(0, MOVED, (1, NUM_SETTINGS, 1)) + rng.normal(0, spread, score.shape)
    return replace(
        recorded,
        settings=tuple(f"{number:03d}" for number in range(NUM_SETTINGS)),
        seeds=tuple(range(NUM_SEEDS)),
        score=np.where(score > 0, np.clip(moved, 0, 1.2), 0.0),
        last_score=last,
        solved=solved,
        cost=cost,
    )


def row(recorded, name, spread, tables, replays):
    """Return P(pick holds up), regret and CPU-seconds of one size, each a mean with its half-width."""
    settings, race, blocks, finalists = SIZES[name]
    sizes = HoldUpSpec.model_validate(
        {
            "target_scale": recorded.target,
            "small_scale": recorded.small,
            "num_settings": settings,
            "race": {"num_settings": race, "blocks": blocks},
            "stress": {"num_settings": finalists, "num_seeds": 4},
            "rank_seeds": {"first": 101, "count": ROLES.rank},
        }
    )
    rng, found, ours = np.random.default_rng(1), [], {run.OURS: protocol.protocol}
    for _ in range(tables):
        one, columns = drawn(recorded, rng, spread), np.arange(NUM_SEEDS)
        outcomes = run._outcomes(one, columns, ours, ROLES, sizes, float("inf"), replays, rng)
        found.append(outcomes[:, 0].mean(axis=0))
    means, half = np.mean(found, axis=0), 1.96 * np.std(found, axis=0, ddof=1) / np.sqrt(tables)
    shown = (
        f"{means[at]:.3f} [{means[at] - half[at]:.3f}, {means[at] + half[at]:.3f}]" for at in (run.PASSES, run.REGRET)
    )
    return [f"{spread:g}", name, *shown, f"{means[run.SPENT]:,.0f}"]


def rank_correlation(share):
    """Return Spearman's correlation of the evaluation at a share of the budget with the final score, at the target."""
    early, late = [], []
    for folder in map(StudyFolder, RECORDED):
        ledger, found = ledger_of(folder.records), {}
        final = {row.trial: row.summary["score"] for row in ledger.rows.values() if row.num_env_runners == TARGET}
        for line in read_lines(folder.records):
            each = line.record
            if isinstance(each, Evaluation) and each.trial in final and each.progress <= share + 0.05:
                found[each.trial] = sum(each.returns)
        early, late = [*early, *(found[trial] for trial in final)], [*late, *final.values()]
    return stats.spearmanr(early, late).statistic


def main():
    """Print what an early evaluation tells, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=120)
    parser.add_argument("--replays", type=int, default=20, help="Replays of each table.")
    arguments = parser.parse_args()
    recorded = table.score_table(*RECORDED, target=46, small=10)
    print(f"Rank correlation of the third of ten evaluations with the final score: {rank_correlation(0.3):.2f}")
    print("| spread added | stages | P(pick holds up) | regret (score) | CPU-s of selection |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for spread in (0.0, 0.03, 0.08):
        for name in SIZES:
            print(
                "| " + " | ".join(row(recorded, name, spread, arguments.tables, arguments.replays)) + " |", flush=True
            )


if __name__ == "__main__":
    main()
