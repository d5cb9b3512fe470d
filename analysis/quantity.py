"""What can be estimated: every quantity with its unit, definition and source, beside the function that computes it.

A function becomes a quantity by `@quantity`: its name is that of the quantity, the first paragraph of its docstring the
definition. It takes one thing of its grain (a `Place` of measured runs, a setting, …) and returns an `Estimate`, or
None where the quantity does not exist there. `rows_of` turns all quantities of a grain into rows of the long frame.
"""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from study.errors import AnalysisError
from study.statistics import Estimate

Basis = Literal["measured", "oversubscribed", "tainted", "emulated", "predicted", "extrapolated"]
"""From runs of these runners, by the label of their clocks, or from emulated ones; by a model, between measured scales;
by a model, beyond them."""
Row = Mapping[str, Any]
"""A row of the long frame: columns of the place, `quantity`, and the `Estimate` under `estimate`."""
Compute = Callable[[Any], Estimate | None]
C = TypeVar("C", bound=Compute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a row of the long frame is an estimate of.

    Attributes:
        name: As in the column `quantity`, in tables, figures and answers.
        unit: SI-like unit; `1` for pure numbers.
        label: How people call it.
        definition: What it is.
        source: Where the formula is from; empty where it needs none.
        grain: What it is a quantity of, such as `cell`.
        to: What a ratio is relative to: the `base` (smallest scale), the scale `before`, or nothing.
        of: Computes it from one thing of its grain; None where that grain is estimated as a whole.
    """

    name: str
    unit: str
    label: str
    definition: str
    source: str = ""
    grain: str
    to: Literal["", "base", "before"] = ""
    of: Compute | None = None


QUANTITIES: dict[str, Quantity] = {}
"""Name -> quantity."""


def declare(grain: str, name: str, unit: str, label: str, definition: str, of: Compute | None = None) -> None:
    """Declare a quantity whose function needs no name of its own."""
    QUANTITIES[name] = Quantity(name=name, unit=unit, label=label, definition=definition, grain=grain, of=of)


def quantity(grain: str, unit: str, label: str, *, to: Literal["", "base", "before"] = "") -> Callable[[C], C]:
    """Make a function the quantity of its name; its docstring holds the definition, and the source after `Source:`."""

    def register(of: C) -> C:
        text, _, source = inspect.cleandoc(of.__doc__ or "").partition("Source:")
        definition = " ".join(text.partition("\n\n")[0].split())
        name, source = of.__name__, " ".join(source.split())
        QUANTITIES[name] = Quantity(
            name=name, unit=unit, label=label, definition=definition, source=source, grain=grain, to=to, of=of
        )
        return of

    return register


def row(name: str, estimate: Estimate, place: Row, **more: Any) -> Row:
    """Return a row of the long frame."""
    return {**place, "quantity": name, "estimate": estimate, **more}


def rows_of(grain: str, thing: Any, place: Row, bases: Mapping[str, str] = MappingProxyType({})) -> Iterator[Row]:
    """Yield a row for each quantity of a grain that exists for a thing.

    Args:
        grain: Of the quantities.
        thing: What they are computed from.
        place: Columns of the rows.
        bases: What ratios are relative to in words, by `Quantity.to`.
    """
    for each in QUANTITIES.values():
        if each.grain == grain and each.of is not None and (estimate := each.of(thing)) is not None:
            yield row(each.name, estimate, place, base=bases.get(each.to, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The estimates of one family, and what they rest on.

    Attributes:
        rows: Of the long frame.
        n: Runs behind them.
        n_failed: Failed runs of the study.
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

    Args:
        what: What it is the name of.
        name: What was asked for.
        known: Name -> what people call it.
    """
    asked = _letters(str(name))
    near = [each for each, label in known.items() if asked and asked in _letters(f"{each} {label}")]
    near = near or difflib.get_close_matches(str(name), known, n=1)
    fix = f"Did you mean '{near[0]}'?" if near else f"Choose one of {', '.join(known)}."
    return AnalysisError(where=what, rule="must be one that exists", got=f"{name!r}", fix=fix)


def _letters(text: str) -> str:
    """Return a text without what people write otherwise: `speedup` is `speed-up` and `speed_up`."""
    return text.lower().translate(dict.fromkeys(map(ord, " -_")))
