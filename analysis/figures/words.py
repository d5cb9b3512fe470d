"""Numbers as a person reads them, for alt texts, captions and tick labels. Pure.

Never a number without its interval and its n, or "no interval".
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.scaling.fingerprint import ENGINE, fields
from analysis.tables.numbers import estimate
from study.engine import UNKNOWN, engines_in_words


def number(value: float, digits: int = 3) -> str:
    """Return `value` with so many significant digits, with thousands separated and no exponent where it can be read.

    Args:
        value: Any number; not finite ones have names.
        digits: Significant digits, >= 1. Whole digits are never replaced by zeros below 100,000.
    """
    if np.isnan(value):
        return "unknown"
    if np.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-4 or size >= 1e9:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - int(np.floor(np.log10(size)))
    if size >= 1e5:
        value = round(value, decimals)
    text = f"{value:,.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def with_interval(value: float, low: float, high: float, n: int, *, unit: str = "") -> str:
    """Return "1.93 [1.90, 1.96] env steps/s (n=5)", or "(n=1, no interval)" where an end is not known."""
    unit = f" {unit}" if unit else ""
    if not (np.isfinite(low) and np.isfinite(high)):
        return f"{number(value)}{unit} (n={n}, no interval)"
    shown, interval = estimate(value, low, high, digits=3)
    return f"{shown} {interval}{unit} (n={n})"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return "1 run" or "3 runs"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """Return "a, b and c"."""
    words = list(words)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"


def engine_of(runs: pd.DataFrame) -> str:
    """Return the sentence that names the engine of some runs."""
    return f"Engine: {engines_in_words(runs['engine'].dropna() if 'engine' in runs else ())}."


def engine_of_workloads(fingerprints: Iterable[str]) -> str:
    """Return the same of workloads, by their fingerprints."""
    found = dict.fromkeys(fields(each).get(ENGINE) for each in dict.fromkeys(fingerprints))
    return f"Engine: {', '.join(str(each) for each in found if each) or UNKNOWN}."


def sentence(text: str) -> str:
    """Return `text` with a capital first letter and a full stop at its end."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")
