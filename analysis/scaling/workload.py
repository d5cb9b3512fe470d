"""Which runs did equal work, in strong and in weak scaling. Imports pandas and pure parts."""

from functools import cache
from typing import Any

import pandas as pd

from analysis.scaling.fingerprint import BATCH, replaced

GROWING = (BATCH,)
"""Fields of the fingerprint that weak scaling lets grow."""


def workload_keys(runs: pd.DataFrame, growing: tuple[str, ...]) -> "pd.Series[Any]":
    """Return, per run, the JSON text that runs of equal workload share; NA without a fingerprint or a batch.

    Strong scaling (nothing `growing`): the fingerprint. Weak: that without the growing fields, with the env steps per
    runner.
    """
    fingerprints = runs["fingerprint"].astype(object)
    if not growing or not len(runs):
        return fingerprints

    @cache
    def key(fingerprint: str, batch: int, scale: int) -> str:
        return replaced(fingerprint, growing, {"env_steps_per_runner": round(batch / scale, 6)})

    names = [BATCH, "num_env_runners"]
    known = fingerprints.notna() & runs[names].notna().all(axis=1)
    result = pd.Series(pd.NA, index=runs.index, dtype=object)
    parts = [fingerprints[known], *(runs.loc[known, name] for name in names)]
    result[known] = [key(str(text), int(b), int(n)) for text, b, n in zip(*parts, strict=True)]
    return result
