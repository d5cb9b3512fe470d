"""Numbers as people read them, in tables, sentences and figures: significant digits that fit the interval."""

import math
from typing import Any

import pandas as pd

from study.statistics import Estimate

DIGITS = 3
"""Significant digits that people see; CSVs have all."""
MOST_DECIMALS = 8
FURTHER_DECIMALS = 2
"""Decimals that a narrow interval may add: an interval still narrower is one of rounding errors."""
NOTHING = 1e-9
"""What is smaller is 0 but for rounding: no quantity of a table is that small."""
TINY = 1e-5
"""What is smaller is written with an exponent."""


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


def decimals_of(value: float) -> int:
    """Return the decimals that show the significant digits of `value`; 0 for large numbers, as for 1.00 at 0."""
    if not math.isfinite(value):
        return 0
    if abs(value) < NOTHING:
        return DIGITS - 1
    # Of the rounded value: 0.9996 to three digits is 1.00.
    exponent = int(f"{abs(value):.{DIGITS - 1}e}".split("e")[1])
    return min(max(DIGITS - 1 - exponent, 0), MOST_DECIMALS)


def fixed(value: float, decimals: int) -> str:
    """Return `value` with so many decimals and commas between thousands; no minus before a zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def significant(value: float) -> str:
    """Return a number to its significant digits: whole digits in full, tiny numbers with an exponent."""
    if math.isnan(value):
        return "unknown"
    if abs(value) < NOTHING:
        return "0"
    return f"{value:.{DIGITS - 1}e}" if abs(value) < TINY else fixed(value, decimals_of(value))


def plain(value: Any) -> str:
    """Return a value that is no estimate: integers in full, other numbers to their significant digits, words as is."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        return str(value)
    return f"{int(value):,}" if hasattr(value, "__index__") else significant(float(value))


def is_missing(value: Any) -> bool:
    """Return whether a value of a frame is None, NA or NaN."""
    return value is None or bool(pd.isna(value))
