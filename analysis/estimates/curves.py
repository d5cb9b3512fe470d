"""Learning curves of settings: the interquartile mean of the evaluation return along the training. Imports pandas.

A failed run stays in its curve: from its end on it counts with the floor of the environment. Where no floor is known
it is left out, and `n_failed` says of how many runs that is true.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from analysis.estimates.settings import Setting
from study.statistics import FloatArray, iqm_interval

GRID_POINTS = 24
"""Points of a curve whose runs were evaluated at different times."""
COLUMNS = ("arm", "num_env_runners", "at", "value", "low", "high", "level", "n", "n_failed", "method")


def learning_curves(
    settings: Iterable[Setting],
    evaluations: pd.DataFrame,
    *,
    floor: float | None = None,
    target: float | None = None,
) -> pd.DataFrame:
    """Return the curve of each setting: one row per setting and env step, the columns of `COLUMNS`.

    Args:
        settings: Settings with their runs.
        evaluations: One row per greedy evaluation: trial, env_steps, eval_return.
        floor: Return that a failed run counts with from its end on; None where it is not known.
        target: Return of a solved run: below five runs a curve has no interval where some are solved and others not.
    """
    rows: list[tuple[object, ...]] = []
    known = evaluations.dropna(subset=["eval_return", "env_steps"])
    for setting in settings:
        failed = set(setting.runs.loc[setting.failed, "trial"])
        tracks = []
        for trial in sorted(setting.runs["trial"]):
            here = known[known["trial"] == trial].sort_values("env_steps")
            at, values = here["env_steps"].to_numpy(float), here["eval_return"].to_numpy(float)
            if trial in failed:
                if floor is None:
                    continue
                # The evaluation after the last one is the first that the run did not live to see.
                at, values = np.append(at, np.nextafter(at[-1], np.inf) if at.size else 0.0), np.append(values, floor)
            if at.size:
                tracks.append((at, values))
        for place, values in _along(tracks):
            found = iqm_interval(values, solved=None if target is None else values >= target)
            ends = [end if np.isfinite(end) else None for end in (found.low, found.high)]
            numbers = (found.value, *ends, found.level, found.n, len(failed), found.method)
            rows.append((setting.name, setting.num_env_runners, place, *numbers))
    types = {"arm": "string", "num_env_runners": "Int64", "n": "Int64", "n_failed": "Int64", "method": "string"}
    types |= dict.fromkeys(("at", "value", "low", "high", "level"), "Float64")
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object).astype(types)


def _along(tracks: list[tuple[FloatArray, FloatArray]]) -> list[tuple[float, FloatArray]]:
    """Return (place, value of each run); a run keeps its last evaluation until the next one.

    The curve begins where every run that was evaluated more than once has a value.
    """
    if not tracks:
        return []
    living = [track for track in tracks if track[0].size > 1] or tracks
    first = max(float(at[0]) for at, _ in living)
    last = max(float(at[-1]) for at, _ in tracks)
    places = np.unique(np.concatenate([at for at, _ in tracks]))
    places = places[(places >= first) & (places <= last)]
    if places.size > GRID_POINTS:
        places = np.linspace(first, float(places[-1]), GRID_POINTS)
    return [
        (
            float(here),
            np.array([value[np.searchsorted(at, here, side="right") - 1] for at, value in tracks if at[0] <= here]),
        )
        for here in places
    ]
