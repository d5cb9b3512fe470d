"""Numbers as people read them, in tables, sentences and figures: significant digits that fit the interval. Pure."""

import math
from typing import Any

import pandas as pd

from study.statistics import Estimate

MOST_DECIMALS = 8
FURTHER_DECIMALS = 2
"""Decimals that a narrow interval may add: an interval still narrower is one of rounding errors."""
NOTHING = 1e-9
"""What is smaller is 0 but for rounding: no quantity of a table is that small."""
TINY = 1e-5
"""What is smaller is written with an exponent."""


def estimate(value: float, low: Any, high: Any, *, digits: int) -> tuple[str, str]:
    """Return the value and its interval with equal decimals; the interval is empty where both ends are missing.

    The decimals are those of `digits` significant digits of the value, or of the interval's half width where that is
    the larger number (a value near 0), and up to two more where both ends would otherwise look alike.
    """
    if is_missing(low) or is_missing(high):
        return fixed(value, decimals_of(value, digits)), ""
    low, high = float(low), float(high)
    if math.isinf(low) and math.isinf(high):
        return fixed(value, decimals_of(value, digits)), ""
    half = (high - low) / 2 if math.isfinite(high - low) else abs(value)
    decimals = decimals_of(max(abs(value), half), digits)
    for more in range(FURTHER_DECIMALS + 1):
        if fixed(low, decimals + more) != fixed(high, decimals + more):
            decimals += more
            break
    opening, closing = ("[" if math.isfinite(low) else "("), ("]" if math.isfinite(high) else ")")
    return fixed(value, decimals), f"{opening}{fixed(low, decimals)}, {fixed(high, decimals)}{closing}"


def in_words(estimate_: Estimate, *, digits: int = 3) -> str:
    """Return an estimate as it stands in a sentence: `1.93 [1.90, 1.96]`, or with the reason why it has no interval."""
    shown, interval = estimate(estimate_.value, estimate_.low, estimate_.high, digits=digits)
    return f"{shown} {interval or f'(n={estimate_.n}, no interval)'}"


def decimals_of(value: float, digits: int) -> int:
    """Return the decimals that show `digits` significant digits of `value`; 0 for large numbers, as for 1.00 at 0."""
    if not math.isfinite(value):
        return 0
    if abs(value) < NOTHING:
        return max(digits - 1, 0)
    # Of the rounded value: 0.9996 to three digits is 1.00.
    exponent = int(f"{abs(value):.{max(digits, 1) - 1}e}".split("e")[1])
    return min(max(digits - 1 - exponent, 0), MOST_DECIMALS)


def fixed(value: float, decimals: int) -> str:
    """Return `value` with so many decimals and commas between thousands; no minus before a zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def significant(value: float, digits: int = 3, *, trim: bool = False) -> str:
    """Return a number to so many significant digits: whole digits in full, tiny numbers with an exponent.

    Args:
        value: Any number; NaN becomes `unknown`.
        digits: Significant digits, >= 1.
        trim: Whether zeros at the end of the decimals are left out, as for ticks of an axis.
    """
    if math.isnan(value):
        return "unknown"
    if abs(value) < NOTHING:
        return "0"
    if abs(value) < TINY:
        return f"{value:.{digits - 1}e}"
    text = fixed(value, decimals_of(value, digits))
    return text.rstrip("0").rstrip(".") if trim and "." in text else text


def plain(value: Any, digits: int) -> str:
    """Return a value that is no estimate: integers in full, other numbers to `digits`, words as they are."""
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return "yes" if value else "no"
    if not is_number(value):
        return str(value)
    if isinstance(value, int) or hasattr(value, "__index__"):
        return f"{int(value):,}"
    return significant(float(value), digits)


def is_missing(value: Any) -> bool:
    """Return whether a value of a frame is None, NA or NaN."""
    return value is None or bool(pd.isna(value))


def is_number(value: Any) -> bool:
    """Return whether a value of a frame is a number."""
    return not isinstance(value, (str, bool)) and hasattr(value, "__float__") and type(value).__name__ != "bool_"
