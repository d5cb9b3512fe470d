"""Which runs did equal work, in strong and in weak scaling. Imports pandas and pure parts."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import pandas as pd

from analysis.scaling.fingerprint import BATCH, replaced

Minibatch = Literal["fixed", "grown"]
GROWING: Mapping[Minibatch, tuple[str, ...]] = {
    "fixed": (BATCH,),
    "grown": (BATCH, "minibatch_times_learners", "lr"),
}
"""Fields that weak scaling lets grow. The learning rate may follow the minibatch: it costs no time."""


def workload_keys(runs: pd.DataFrame, growing: tuple[str, ...]) -> "pd.Series[Any]":
    """Return, per run, the JSON text that runs of equal workload share; NA without a fingerprint or a batch.

    Strong scaling (nothing `growing`): the fingerprint. Weak: that without the growing fields, with the env steps per
    runner and, where the minibatch grows, with the number of minibatches.
    """
    fingerprints = runs["fingerprint"].astype(object)
    if not growing or not len(runs):
        return fingerprints
    grown_minibatch = "minibatch_times_learners" in growing

    @cache
    def key(fingerprint: str, batch: int, scale: int, size: int) -> str:
        shares = {"env_steps_per_runner": round(batch / scale, 6)}
        if grown_minibatch:
            shares["num_minibatches"] = round(batch / size, 6)
        return replaced(fingerprint, growing, shares)

    names = [BATCH, "num_env_runners", "minibatch_size"] if grown_minibatch else [BATCH, "num_env_runners"] * 2
    known = fingerprints.notna() & runs[names].notna().all(axis=1)
    result = pd.Series(pd.NA, index=runs.index, dtype=object)
    parts = [fingerprints[known], *(runs.loc[known, name] for name in (BATCH, "num_env_runners", names[2]))]
    result[known] = [key(str(text), int(b), int(n), int(m)) for text, b, n, m in zip(*parts, strict=True)]
    return result
