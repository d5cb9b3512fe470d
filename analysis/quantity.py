"""What can be estimated, each quantity beside the function that computes it, and the long frame of all estimates.

A function becomes a quantity by `@quantity`: its name is that of the quantity, the first paragraph of its docstring the
definition. It takes one thing of its grain (a `Place` of measured runs, a setting, …) and returns an `Estimate`, or
None where the quantity does not exist there. Tables, figures and sentences select from the frame.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd

from analysis.scaling.blocks import BY_DEFINITION, in_frame
from study.errors import AnalysisError
from study.statistics import Estimate

Basis = Literal["measured", "oversubscribed", "tainted", "emulated", "predicted", "extrapolated"]
"""From runs of these runners, by the label of their clocks, or from emulated ones; by a model, between measured scales;
by a model, beyond them."""
Row = Mapping[str, Any]
"""A row of the long frame: columns of the place, `quantity`, and the `Estimate` under `estimate`."""
Compute = Callable[[Any], Estimate | None]
C = TypeVar("C", bound=Compute)
To = Literal["", "base", "before"]
"""What a ratio is relative to: the smallest scale, the scale before, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a row of the long frame is an estimate of.

    Attributes:
        name, label: As in the column `quantity`, in tables, figures and answers; as people call it.
        unit: SI-like unit; `1` for pure numbers.
        definition: What it is.
        grain, to: What it is a quantity of, such as `cell`, and what a ratio is relative to.
        of: Computes it from one thing of its grain; None where that grain is estimated as a whole.
    """

    name: str
    unit: str
    label: str
    definition: str
    grain: str
    to: To = ""
    of: Compute | None = None


QUANTITIES: dict[str, Quantity] = {}
"""Name -> quantity."""


_GRAINS = (
    *("certificate", "setting", "square", "cell", "price", "strong", "weak", "phases", "bound", "target", "model"),
    "given",
)
"""What quantities are of, in the order of the frame: whatever module was imported first."""


def declare(grain: str, name: str, unit: str, label: str, definition: str, of: Compute | None = None) -> None:
    """Declare a quantity whose function needs no name of its own."""
    QUANTITIES[name] = Quantity(name=name, unit=unit, label=label, definition=definition, grain=grain, of=of)


def quantity(grain: str, unit: str, label: str, *, to: To = "") -> Callable[[C], C]:
    """Make a function the quantity of its name; the first paragraph of its docstring is the definition."""

    def register(of: C) -> C:
        said = " ".join(inspect.cleandoc(of.__doc__ or "").partition("\n\n")[0].split())
        named = {"name": of.__name__, "definition": said}
        QUANTITIES[of.__name__] = Quantity(**named, unit=unit, label=label, grain=grain, to=to, of=of)
        return of

    return register


def row(name: str, estimate: Estimate, place: Row, **more: Any) -> Row:
    """Return a row of the long frame."""
    return {**place, "quantity": name, "estimate": estimate, **more}


def rows_of(grain: str, thing: Any, place: Row, bases: Mapping[str, str] = MappingProxyType({})) -> Iterator[Row]:
    """Yield a row for each quantity of a grain that exists for a thing, with the columns of its place.

    `bases` says what ratios are relative to in words, by `Quantity.to`.
    """
    for each in QUANTITIES.values():
        if each.grain == grain and each.of is not None and (estimate := each.of(thing)) is not None:
            yield row(each.name, estimate, place, base=bases.get(each.to, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The estimates of one family, and what they rest on.

    Attributes:
        n, n_failed: Runs behind the rows, and failed ones of the study.
        excluded: Reason -> runs that are in no row.
        notes: What must be said with them, in sentences.
        refusals: Comparisons that are not made, see `analysis.scaling.guard`.
    """

    rows: tuple[Row, ...] = ()
    n: int = 0
    n_failed: int = 0
    excluded: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refusals: tuple[Any, ...] = ()


def unknown(what: str, name: object, known: Mapping[str, str]) -> AnalysisError:
    """Return the error for a name that does not exist, with what was probably meant.

    `known` is name -> what people call it, which they may have typed.
    """

    def letters(text: str) -> str:
        return text.lower().translate(dict.fromkeys(map(ord, " -_")))

    asked = letters(str(name))
    near = [each for each, label in known.items() if asked and asked in letters(f"{each} {label}")]
    near = near or difflib.get_close_matches(str(name), known, n=1)
    fix = f"Did you mean '{near[0]}'?" if near else f"Choose one of {', '.join(known)}."
    return AnalysisError(where=what, rule="must be one that exists", got=f"{name!r}", fix=fix)


# --- the long frame -------------------------------------------------------------------------------------------------

DTYPES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("kind", "engine", "workload", "arm"), "string"),
        **dict.fromkeys(("num_env_runners", "num_cpus", "train_batch_size"), "Int64"),
        "quantity": "string",
        **dict.fromkeys(("value", "low", "high", "level"), "Float64"),
        "n": "Int64",
        **dict.fromkeys(("method", "basis"), "string"),
        **dict.fromkeys(("num_nodes", "n_failed", "n_censored"), "Int64"),
        **dict.fromkeys(("base", "fingerprint"), "string"),
    }
)
"""Columns and types, in order.

`workload`: what tells the comparable runs from others; equal workloads have equal texts. `arm`: the setting in plain
words, where the quantity is of one. `low`, `high`: ends of the interval; both NA where there is none, and infinite
where one end is open. `n`: runs (or blocks, where ratios are paired) behind it; NA for what holds by definition.
`n_failed`: failed runs of the cell, NA where they are not counted by cell. `n_censored`: runs that never reached the
target; above 0 a mean to it is a lower bound. `base`: what a ratio is relative to; empty where it is relative to
nothing. `fingerprint`: workload of the runs, by which studies are compared; empty where they are of several.
"""
_USUAL: Row = {"workload": "", "arm": "", "basis": "measured", "n_censored": 0, "base": "", "fingerprint": ""}


def frame_of(rows: Iterable[Row], *, kind: str, engine: str) -> pd.DataFrame:
    """Return the frame of all estimates: quantities by what they are of, each in the order of its rows."""
    names = sorted(QUANTITIES, key=lambda name: _GRAINS.index(QUANTITIES[name].grain))
    place = {name: number for number, name in enumerate(names)}
    columns: dict[str, list[Any]] = {name: [] for name in DTYPES}
    for each in sorted(rows, key=lambda each: place[each["quantity"]]):
        value, low, high, n = in_frame(each["estimate"])
        numbers = {"value": value, "low": low, "high": high, "n": n, "kind": kind}
        numbers |= {"level": each["estimate"].level, "method": each["estimate"].method}
        whole = {**_USUAL, **each, **numbers, "engine": each.get("engine") or engine}
        for name, values in columns.items():
            values.append(whole.get(name))
    return _with_units(pd.DataFrame(columns, dtype=object).astype(dict(DTYPES)))


def _with_units(frame: pd.DataFrame) -> pd.DataFrame:
    frame.attrs["units"] = {name: QUANTITIES[name].unit for name in frame["quantity"].unique()}
    return frame


def estimate_of(row: Any) -> Estimate:
    """Return the estimate of a row of the frame; what holds by definition has an interval of width 0 and n = 1."""
    low, high = (
        row["value"] if row["method"] == BY_DEFINITION else open_ if pd.isna(row[end]) else row[end]
        for end, open_ in (("low", -np.inf), ("high", np.inf))
    )
    n, ends = 1 if pd.isna(row["n"]) else int(row["n"]), {"low": float(low), "high": float(high)}
    return Estimate(value=float(row["value"]), **ends, n=n, level=float(row["level"]), method=str(row["method"]))


def select(frame: pd.DataFrame, quantity: str | Iterable[str] | None = None, **selection: Any) -> pd.DataFrame:
    """Return some rows of a frame of estimates: of one quantity, of several, or of all.

    `selection` is column -> value, or values, such as `num_env_runners=46` or `basis=["measured", "predicted"]`.

    Raises:
        AnalysisError: There is no such quantity or column.
    """
    names = [quantity] if isinstance(quantity, str) else [*(quantity or ())]
    for name in names:
        if name not in QUANTITIES:
            raise unknown("quantity", name, {each.name: each.label for each in QUANTITIES.values()})
    kept = frame if quantity is None else frame[frame["quantity"].isin(names)]
    for column, wanted in selection.items():
        if column not in DTYPES:
            raise unknown("column", column, dict.fromkeys(DTYPES, ""))
        several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
        kept = kept[kept[column].isin([*wanted] if several else [wanted])]
    return _with_units(kept.reset_index(drop=True))
