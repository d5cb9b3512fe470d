"""How numbers, durations, intervals and lists look in text. The only formatter of `study`; imports nothing."""

import math
from collections.abc import Iterable, Sequence

MISSING = "-"
"""Stands for a number that is not known."""


def number(value: float | None, form: str = ",.1f") -> str:
    """Return a number in a format of Python's, or `MISSING`."""
    return MISSING if value is None else format(value, form)


DIGITS = 3
"""Significant digits that people see; CSVs have all."""
MOST_DECIMALS = 8
NOTHING, TINY, HUGE = 1e-9, 1e-5, 1e15
"""A number below the first is 0 but for rounding: no quantity of a table is that small. One below the second, or not
below the third, is written with an exponent."""


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
    text = f"{value:,.{decimals}f}" if abs(value) < HUGE else f"{value:.{DIGITS - 1}e}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def significant(value: float) -> str:
    """Return a number to its significant digits: whole digits in full, tiny and huge numbers with an exponent."""
    if math.isnan(value):
        return "unknown"
    if abs(value) < NOTHING:
        return "0"
    return f"{value:.{DIGITS - 1}e}" if abs(value) < TINY else fixed(value, decimals_of(value))


def count(number: float, one: str, many: str = "") -> str:
    """Return `1 runner`, `2,000 runners`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """Return a duration: `45 s`, `12 min`, `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def cpu_hours(hours: float) -> str:
    """Return CPU-hours with two significant digits; from 1 on with one decimal: `12.3 CPU-hours`, `0.034 CPU-hours`."""
    return f"{hours:,.1f} CPU-hours" if hours >= 0.995 else f"{hours:.2g} CPU-hours"


def gigabytes(megabytes: float) -> str:
    """Return memory: `1.5 GB`."""
    return f"{megabytes / 1024:.1f} GB"


def listed(items: Iterable[object]) -> str:
    """Return `1, 2 and 4`."""
    *first, last = [*map(str, items)] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def spans(numbers: Sequence[int]) -> str:
    """Return ascending whole numbers with runs shortened: `1-3, 7`; `none` where there are none."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"
