"""Plain words that answers share: numbers as one says them, settings as one types them, commands. Pure."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.load.study_data import StudyData
from analysis.scaling.fingerprint import IN_WORDS, value_in_words
from analysis.scaling.fingerprint import in_words as called
from analysis.tables.numbers import significant
from study.space.space_file import as_options
from study.statistics import Estimate
from study.text import count, listed

MOST_NAMED = 3
"""Values that a sentence names."""
CLOCKS: Mapping[str, str] = {
    "emulated": "emulated (few processes did the work of all runners)",
    "oversubscribed": "run with more processes than cores",
    "tainted": "disturbed (a failure, a lost runner, or other programs on the CPUs)",
}
"""Label of a clock that is not measured -> why its times say nothing about real runners."""


def runners(number: int) -> str:
    """Return `1 runner`, `46 runners`."""
    return count(number, "runner")


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def known(estimate: Estimate, *, digits: int = 3) -> str:
    """Return the value with no more digits than its interval supports, and at most `digits` of them."""
    half = (estimate.high - estimate.low) / 2
    if not (math.isfinite(half) and half > 0) or estimate.value == 0:
        return significant(estimate.value, digits)
    supported = math.floor(math.log10(abs(estimate.value))) - math.floor(math.log10(half)) + 1
    return significant(estimate.value, max(1, min(digits, supported)))


def interval(estimate: Estimate, *, digits: int = 3) -> str:
    """Return `95 % interval 0.95 to 0.98`, `at least 0.02`, or that there is none."""
    low, high = significant(estimate.low, digits), significant(estimate.high, digits)
    if not estimate.has_interval:
        return "no interval"
    if math.isinf(estimate.high):
        return f"at least {low}"
    return f"{estimate.level:.0%} interval {low} to {high}".replace("%", " %")


def percent(share: float) -> str:
    """Return a share as `96 %`, small ones with one decimal."""
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


def in_words(setting: Mapping[str, Any], *, most: int = MOST_NAMED) -> str:
    """Return `batch 1,376 and learning rate 0.00242` of the most important values."""
    order = [name for name in (*IN_WORDS, *setting) if name in setting]
    names = list(dict.fromkeys(order))
    parts = [f"{called(name)} {value_in_words(setting[name])}" for name in names[:most]]
    if len(names) > most:
        parts.append(f"{count(len(names) - most, 'value')} more below")
    return listed(parts) if parts else ""


def to_copy(setting: Mapping[str, Any]) -> str:
    """Return `num_env_runners: 4  train_batch_size: 1376  lr: 2.418e-3`, as a space file takes it."""
    return "  ".join(f"{name}: {typed(number)}" for name, number in setting.items())


def typed(number: Any) -> str:
    """Return a value as one types it: whole numbers in full, others with four significant digits."""
    number = float(number)
    if number.is_integer() and abs(number) < 1e9:
        return str(int(number))
    if abs(number) >= 0.01:
        return f"{number:.4g}"
    mantissa, exponent = f"{number:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def run_again(data: StudyData, suffix: str, changes: Sequence[str]) -> str:
    """Return the command that runs a study's space with changes; empty where its space is not known.

    Args:
        data: The study.
        suffix: What the new study's name ends with.
        changes: As `--set` takes them.
    """
    if data.space_file is None:
        return ""
    words = ["python", "run_study.py", *as_options(data.space_file), "--name", f"{data.name}_{suffix}"]
    return shlex.join([*words, *(word for each in changes for word in ("--set", each))])


def clocks_in_words(runs: pd.DataFrame) -> str:
    """Return in a sentence which scales have no measured clock, and why; empty where every run has one."""
    apart = runs[runs["timing"].notna() & (runs["timing"] != "measured")]
    parts = []
    for label, some in apart.groupby("timing", sort=True):
        scales = sorted({int(each) for each in some["num_env_runners"].dropna()})
        shown = listed(scales[:6] if len(scales) <= 6 else [*scales[:5], f"{len(scales) - 5} more"])
        parts.append(f"runs with {shown} runner{'' if scales == [1] else 's'} were {CLOCKS.get(str(label), label)}")
    return "; ".join(parts)


def clocks_counted(runs: pd.DataFrame) -> str:
    """Return `38 of 39 runs have a measured clock`, or what the clocks are instead where none is measured."""
    counts = runs["timing"].dropna().value_counts()
    total, measured = int(counts.sum()), int(counts.get("measured", 0))
    if measured or not total:
        return f"{measured:,} of {len(runs):,} runs have a measured clock"
    if int(counts.get("emulated", 0)) == total:
        how = CLOCKS["emulated"]
        return f"all {total:,} runs were {how}: their returns hold, their times do not"
    kinds = listed(f"{number:,} {label}" for label, number in counts.items())
    return f"times cannot be compared ({kinds}), returns can"


def took(data: StudyData) -> str:
    """Return what a study cost, attempts that were repeated included; empty where that is not known.

    What is counted is what trials reserved: of a node that was told to have more CPUs than cores that is too much.
    """
    spent = float(data.runs["cpu_s_reserved"].dropna().sum())
    more = data.ledger is None and bool((data.runs["attempt"] > 1).any())
    if data.ledger is not None:
        spent += sum(row.cpu_s_reserved_lost for row in data.ledger.rows.values())
    if not spent:
        return ""
    hours = f"{'more than ' if more else ''}{significant(spent / 3600, 2)} CPU-hours"
    if (data.runs["timing"] == "oversubscribed").any():
        return f"The study reserved {hours}, partly of CPUs that several processes shared"
    return f"The study took {hours}"
