"""Which settings go on: the protocol's choices as functions of scores. Pure; the study and the replay share them.

Racing only allocates budget. It makes no claim of significance: with eight paired seeds no corrected test could.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from study.statistics import lower_bound, paired_lower_bounds

TIE = 0.002
"""Scores closer than this are a tie, which the lower cost decides: two thousandths of what there is to learn."""


def bounds_of(scores: Mapping[str, Sequence[float]], pooled_sd: float | None) -> dict[str, float]:
    """Return for every setting the lower confidence bound of its scores."""
    return {setting: lower_bound(each, pooled_sd) for setting, each in scores.items()}


def best(merits: Mapping[str, float], costs: Mapping[str, float], count: int) -> list[str]:
    """Return the `count` settings with the largest merits, best first; the cheaper one on equal merits.

    Args:
        merits: Setting -> bound or mean score.
        costs: Setting -> CPU-seconds of one trial.
        count: How many.
    """
    return sorted(merits, key=lambda setting: (-merits[setting], costs.get(setting, math.inf), setting))[:count]


def race(
    scores: Mapping[str, Sequence[float]],
    costs: Mapping[str, float],
    *,
    pooled_sd: float | None,
    least: int,
) -> list[str]:
    """Return the settings that survive a block, best first: the better half by paired lower bounds.

    Args:
        scores: Setting -> its scores on the rank seeds so far, the same seeds in the same order for all.
        costs: Setting -> CPU-seconds of one trial.
        pooled_sd: Spread between seeds, for the time when there is one seed.
        least: Settings that survive at the least.
    """
    table: NDArray[np.float64] = np.array(list(scores.values()), dtype=np.float64)
    bounds = dict(zip(scores, paired_lower_bounds(table, pooled_sd), strict=True))
    return best(
        {setting: float(bound) for setting, bound in bounds.items()}, costs, max(math.ceil(len(scores) / 2), least)
    )


def winner(holds: Mapping[str, float], costs: Mapping[str, float]) -> str:
    """Return the setting that holds up best; among those within `TIE` of it, the cheapest.

    Args:
        holds: Setting -> how well it holds up: the worst of its mean scores over the large scales.
        costs: Setting -> CPU-seconds of one trial at the target scale.
    """
    leading = max(holds.values())
    tied = [setting for setting, value in holds.items() if value >= leading - TIE]
    return min(tied, key=lambda setting: (costs.get(setting, math.inf), -holds[setting], setting))
