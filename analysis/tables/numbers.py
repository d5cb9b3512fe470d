"""Numbers as people read them, in tables, sentences and figures: significant digits that fit the interval."""

import math
from typing import Any

import pandas as pd

from study.statistics import Estimate
from study.text import decimals_of, fixed, significant

FURTHER_DECIMALS = 2
"""Decimals that a narrow interval may add: an interval still narrower is one of rounding errors."""


def number(value: float | Estimate) -> str:
    """Return a number with three significant digits, an estimate with those of its table."""
    return estimate(value.value, value.low, value.high)[0] if isinstance(value, Estimate) else significant(value)


def percent(share: float) -> str:
    """Return a share of 1 as `96.9 %`."""
    return f"{number(100 * share)} %"


def in_words(value: Estimate) -> str:
    """Return an estimate as it stands in a sentence: `1.93 [1.90, 1.96]`, or with the reason why it has no interval."""
    shown, interval = estimate(value.value, value.low, value.high)
    return f"{shown} {interval or no_interval(value.n)}"


def no_interval(n: int) -> str:
    """Return why an estimate has no interval, in brackets."""
    return "(one run)" if n == 1 else f"(n={n}, no interval)"


def estimate(value: float, low: Any, high: Any) -> tuple[str, str]:
    """Return the value and its interval with equal decimals; the interval is empty where both ends are missing.

    The decimals are those of the significant digits of the value, or of the interval's half width where that is the
    larger number (a value near 0), and up to two more where both ends would otherwise look alike.
    """
    low, high = (math.inf if is_missing(end) else float(end) for end in (low, high))
    if math.isinf(low) and math.isinf(high):
        return fixed(value, decimals_of(value)), ""
    half = (high - low) / 2 if math.isfinite(high - low) else abs(value)
    decimals = decimals_of(max(abs(value), half))
    for more in range(FURTHER_DECIMALS + 1):
        if fixed(low, decimals + more) != fixed(high, decimals + more):
            decimals += more
            break
    opening, closing = ("[" if math.isfinite(low) else "("), ("]" if math.isfinite(high) else ")")
    return fixed(value, decimals), f"{opening}{fixed(low, decimals)}, {fixed(high, decimals)}{closing}"


def plain(value: Any) -> str:
    """Return a value that is no estimate: integers in full, other numbers to their significant digits, words as is."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        return str(value)
    return f"{int(value):,}" if hasattr(value, "__index__") else significant(float(value))


def is_missing(value: Any) -> bool:
    """Return whether a value of a frame is None, NA or NaN."""
    return value is None or bool(pd.isna(value))
