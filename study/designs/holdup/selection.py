"""Which settings go on: the protocol's choices as functions of scores. Pure.

Racing only allocates budget. It makes no claim of significance: with eight paired seeds no corrected test could.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from scipy.stats import rankdata

TIE = 0.002
"""Scores closer than this are a tie, which the lower cost decides: two thousandths of what there is to learn."""


def places(searched: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return for every setting its place among those that ran at its scale: in (0, 1), and the better the larger.

    The best of four has 7/8, the worst 1/8, one that ran alone 1/2; equal scores share the mean of their places, and a
    setting that ran at several scales has the mean of its places there. A score of 0, as of a failure, has place 0.

    Args:
        searched: For each scale, setting -> mean score.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for scores in searched:
        for setting, rank in zip(scores, rankdata(list(scores.values())), strict=True):
            found[setting].append((float(rank) - 0.5) / len(scores) if scores[setting] > 0 else 0.0)
    return {setting: sum(each) / len(each) for setting, each in found.items()}


def best(merits: Mapping[str, float], costs: Mapping[str, float], count: int) -> list[str]:
    """Return the `count` settings with the largest merits, best first; the cheaper one on equal merits.

    Args:
        merits: Setting -> place or mean score.
        costs: Setting -> CPU-seconds of one trial.
        count: How many.
    """
    return sorted(merits, key=lambda setting: (-merits[setting], costs.get(setting, math.inf), setting))[:count]


def race(scores: Mapping[str, Sequence[float]], costs: Mapping[str, float], *, least: int) -> list[str]:
    """Return the settings that survive a block, best first: the half with the better mean scores.

    Args:
        scores: Setting -> its scores on the rank seeds so far, the same seeds for all.
        costs: Setting -> CPU-seconds of one trial.
        least: Settings that survive at the least.
    """
    means = {setting: sum(each) / len(each) for setting, each in scores.items()}
    return best(means, costs, max(math.ceil(len(scores) / 2), least))


def winner(holds: Mapping[str, float], costs: Mapping[str, float]) -> str:
    """Return the setting that holds up best; among those within `TIE` of it, the cheapest.

    Args:
        holds: Setting -> how well it holds up: the worst of its mean scores over the large scales.
        costs: Setting -> CPU-seconds of one trial at the target scale.
    """
    leading = max(holds.values())
    tied = [setting for setting, value in holds.items() if value >= leading - TIE]
    return min(tied, key=lambda setting: (costs.get(setting, math.inf), -holds[setting], setting))
