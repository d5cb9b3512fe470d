"""What a space is made of: closed models, what it may say about one parameter, and how a mistake is told. Pure."""

import difflib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NotRequired, Required

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, JsonValue
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from study.errors import Fault
from study.space.parameters import MAX_WHOLE, NAMES, SCALE, Parameter, Value

MAX_SHOWN = 200
"""Characters of a value in a message."""


def meant_by(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """Return the one of the known names that a misspelt one stands for; `cutoff`: how alike, as `difflib` counts."""
    near = difflib.get_close_matches(name.lower().replace("-", "_").strip("_ "), known, n=1, cutoff=cutoff)
    return near[0] if near else None


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return what to write in place of a name that is none of the known ones."""
    near = meant_by(name, known)
    return f"Did you mean '{near}'?" if near else f"Use one of: {', '.join(known)}."


def fault(where: str, rule: str, got: object, fix: str) -> Fault:
    """Return a fault; `got` as YAML has it, text as it is."""
    return Fault(where=where, rule=rule, got=got if isinstance(got, str) else as_yaml(got), fix=fix)


def as_yaml(value: object) -> str:
    """Return a value in a message as its YAML says it, a long one in part."""
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)[:MAX_SHOWN]


def broken(*, rule: str, got: object, fix: str, where: str = "") -> PydanticCustomError:
    """Return the error by which a validator reports the parts of a `Fault`; `where` if not at its own field."""
    return PydanticCustomError(
        "rule", "{rule}, got {got}", {"rule": rule, "got": str(got), "fix": fix, **({"where": where} if where else {})}
    )


class Section(BaseModel):
    """A closed, frozen, strictly typed block of a space file; the text below each field is its description."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def mapping_of(name: str, types: Mapping[str, Any]) -> Any:
    """Return the type of a mapping, a plain dict, closed and strict as a `Model`: key -> type of its value."""
    make: Any = TypedDict
    kind = make(name, dict(types))
    kind.__pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return kind


def _as_whole(value: Any) -> Any:
    whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE
    return int(value) if whole else value


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise broken(rule="must be distinct", got=values, fix="Name each once.")
    return values


Whole = Annotated[int, BeforeValidator(_as_whole)]
"""A whole number, which may be written as `1e6`: a float for YAML."""
Distinct = AfterValidator(_distinct)
"""For lists that name nothing twice."""
Arguments = dict[str, JsonValue]
"""Arguments of somebody else's function. What a trial is sent is JSON, without infinity and NaN."""


class Choices(Section):
    """An unordered list to choose from."""

    choices: list[Value]


class Range(Section):
    """An interval, both ends included; with `log` its logarithm is sampled uniformly."""

    low: Value
    high: Value
    log: bool = False


Domain = Value | Choices | Range


def smallest(domain: Domain) -> Value:
    """Return the least value that `domain` can take."""
    return domain.low if isinstance(domain, Range) else min(values(domain))


def largest(domain: Domain) -> Value:
    """Return the greatest value that `domain` can take."""
    return domain.high if isinstance(domain, Range) else max(values(domain))


def values(domain: Domain) -> Sequence[Value]:
    """Return every value of a domain, whose range is of whole numbers."""
    if isinstance(domain, Choices):
        return domain.choices
    return range(int(domain.low), int(domain.high) + 1) if isinstance(domain, Range) else (domain,)


def checked(parameter: Parameter, value: Any) -> Value:
    """Return a value as one of the parameter's kind, within its bounds, or raise what a validator raises."""
    number = _as_whole(value)
    if parameter.kind is float and type(number) is int:
        number = float(number)
    if type(number) is not parameter.kind or not math.isfinite(number) or not parameter.allows(number):
        kind = "a whole number" if parameter.kind is int else "a number"
        raise broken(rule=f"must be {kind} {parameter.bounds}", got=value, fix="Change the value.")
    return number


def _domain(parameter: Parameter, sampled: bool, said: Any) -> Domain:
    """Return what a space says about a parameter; a range that is not sampled stands for a list.

    That of 1 to 46 is 1, 2, 4, 8, 16, 32, 46: so few that each is run often.
    """
    said = said.model_dump() if isinstance(said, Section) else said
    said = said["choices"] if isinstance(said, dict) and said.keys() == {"choices"} else said  # as records have it
    if isinstance(said, list) and said:
        return Choices(choices=_distinct([checked(parameter, value) for value in said]))
    if isinstance(said, (int, float)) and not isinstance(said, bool):
        return checked(parameter, said)
    is_range = isinstance(said, dict) and {"low", "high"} <= said.keys() <= {"low", "high", "log"}
    if not is_range or not isinstance(log := said.get("log", False), bool):
        fix = "Write 1, [1, 2] or a range such as {low: 1, high: 46}, with log: true to sample its logarithm."
        raise broken(rule="must be a number, a list or a range", got=said, fix=fix)
    low, high = (checked(parameter, said[end]) for end in ("low", "high"))
    if not low < high:
        fix = "Swap the bounds, or give one value instead of a range."
        raise broken(rule="`low < high` must hold", got=f"low={low}, high={high}", fix=fix)
    if log and low <= 0:
        fix = "Raise `low` or drop `log`."
        raise broken(rule="`low > 0` must hold with `log: true`", got=f"low={low}", fix=fix)
    if sampled:
        return Range(low=low, high=high, log=log)
    scales = [int(low)]
    while (following := max(2 * scales[-1], 1)) < high:
        scales.append(following)
    return Choices(choices=[*scales, int(high)])


def domain_of(parameter: Parameter, *, sampled: bool) -> Any:
    """Return the type of what a space may say about a parameter: a value, a list, or a range.

    `sampled`: whether a sampler may choose any value of a range; else the range stands for a list.
    """
    return Annotated[Any, AfterValidator(partial(_domain, parameter, sampled))]


ParametersSpec = mapping_of(
    "ParametersSpec",
    {
        name: (Required if name == SCALE else NotRequired)[domain_of(parameter, sampled=name != SCALE)]
        for name, parameter in NAMES.items()
    },
)
"""Parameter or rule -> a value (fixed), a list (choices), or {low, high, log} (a range); what a space says."""
Values = mapping_of(
    "Values",
    {name: NotRequired[Annotated[Any, AfterValidator(partial(checked, each))]] for name, each in NAMES.items()},
)
"""Parameter or rule -> one value."""
