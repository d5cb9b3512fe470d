"""Numbers as a person reads them, for alt texts, captions and tick labels. Pure.

Never a number without its interval and its n, or "no interval".
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.tables.numbers import estimate, significant
from study.text import listed


def number(value: float, digits: int = 3) -> str:
    """Return a number as in tables, without zeros at the end of its decimals."""
    return significant(value, digits, trim=True)


def of_row(row: "pd.Series[Any]", *, unit: str = "") -> str:
    """Return a row of the frame of estimates: "1.93 [1.90, 1.96] env steps/s (n=5)", or "(n=1, no interval)"."""
    value, unit = float(row["value"]), f" {unit}" if unit else ""
    if pd.isna(row["n"]):
        return f"{number(value)}{unit} by definition"
    shown, interval = estimate(value, row["low"], row["high"], digits=3)
    if not interval:
        return f"{number(value)}{unit} (n={int(row['n'])}, no interval)"
    return f"{shown} {interval}{unit} (n={int(row['n'])})"


def told_apart(workloads: Sequence[str]) -> list[str]:
    """Return the names of workloads without what is the same in all of them; "" where nothing differs.

    Args:
        workloads: As the frame of estimates names them: "epochs 4, batch 384".
    """
    parts = [each.split(", ") for each in workloads]
    common = set(parts[0]).intersection(*parts) if len(parts) > 1 else set()
    return [", ".join(part for part in each if part not in common) for each in parts]


def drawn_of(scales: Sequence[int], drawn: Sequence[int]) -> str:
    """Return which numbers of runners a picture has room for; empty where it has them all."""
    few = listed([str(each) for each in drawn])
    return f"Of {len(scales)} numbers of runners {few} are drawn." if len(drawn) < len(scales) else ""


def sentence(text: str) -> str:
    """Return `text` with a capital first letter and a full stop at its end."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")
