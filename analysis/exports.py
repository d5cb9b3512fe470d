"""The per-seed scores of a study in the JSON that rliable reads.

A setting at a number of runners is an algorithm there, and the environment is the one task. A failed run is one of the
runs: with a score of 0, or with the return of the environment's floor.
"""

from collections.abc import Iterable

import numpy as np

from analysis.estimates.settings import Setting
from study.errors import AnalysisError
from study.text import count


def exported(settings: Iterable[Setting]) -> dict[str, list[list[float]]]:
    """Return algorithm -> array (runs, 1 task) of scores, or of final returns where nothing is scored, by seed.

    Raises:
        AnalysisError: No run has ended with its whole budget, or a failed run has no number.
    """
    found = dict[str, list[list[float]]]()
    for each in settings:
        values = each.scores if each.scored else each.finals
        if not np.isfinite(values).all():
            rule, got = "every run must have a number", f"{each.name} has a run without one"
            fix = "Give `environment.floor`, the return of a run that failed, in the space."
            raise AnalysisError(where="export", rule=rule, got=got, fix=fix)
        order = each.runs["seed"].fillna(each.runs["trial"]).to_numpy(dtype=int).argsort()
        found[f"{each.name}, {count(each.num_env_runners, 'runner')}"] = values[order, None].tolist()
    if not found:
        rule, fix = "a run must have ended with its whole budget", "Export a search or a hold-up study that has ended."
        raise AnalysisError(where="export", rule=rule, got="none", fix=fix)
    return found
