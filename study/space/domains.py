"""What a space is made of: closed models that report broken rules, and what it may say about one parameter. Pure."""

import json
import math
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from study.space.parameters import MAX_WHOLE, NAMES, RULES, SCALE, Parameter, Value, attribute

MAX_LISTED = 200
"""Values of a range that is dealt as a list: scales, and the axes of a throughput grid."""


def broken(*, rule: str, got: str, fix: str) -> PydanticCustomError:
    """Return the error by which a validator reports the parts of a `Fault`."""
    return PydanticCustomError("rule", "{rule}, got {got}", {"rule": rule, "got": got, "fix": fix})


class Model(BaseModel):
    """A closed, frozen, strictly typed piece of a space file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Section(Model):
    """A block of a space file; the text below each field is its description in the schema and the field reference."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def inner_model(info: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that is a section, perhaps an optional one, or a list or mapping of such."""
    parts: list[Any] = [info.annotation]
    while parts:
        part = parts.pop()
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
        parts += [*get_args(part)] if get_origin(part) in (list, dict, Union, UnionType) else []
    return None


def _as_whole(value: Any) -> Any:
    whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE
    return int(value) if whole else value


Whole = Annotated[int, BeforeValidator(_as_whole)]
"""A whole number, which may be written as `1e6`: a float for YAML."""


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise broken(rule="must be distinct", got=str(values), fix="Name each once.")
    return values


Distinct = AfterValidator(_distinct)
"""For lists that name nothing twice."""


def _finite(content: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(content, allow_nan=False)
    except ValueError as error:
        raise broken(rule="must hold finite numbers", got=str(content), fix="Write finite numbers.") from error
    return content


Arguments = Annotated[dict[str, Any], AfterValidator(_finite)]
"""Arguments of somebody else's function. What a trial is sent is JSON, without infinity and NaN."""


class Choices(Model):
    """An unordered list to choose from; a bare YAML list means the same."""

    choices: Annotated[list[Value], Distinct] = Field(min_length=1, description="The values.")


class Range(Model):
    """An interval, both ends included."""

    low: Value = Field(description="Smallest value.")
    high: Value = Field(description="Largest value.")
    log: bool = Field(False, description="Sample the logarithm uniformly.")
    step: Value | None = Field(None, description="Distance between neighbouring values; not with `log`.")

    @model_validator(mode="after")
    def _consistent(self) -> "Range":
        low, high, step = self.low, self.high, self.step
        if not low < high:
            fix = "Swap the bounds." if low > high else "Give one value instead of a range."
            raise broken(rule="`low < high` must hold", got=f"low={low}, high={high}", fix=fix)
        if self.log and low <= 0:
            rule = "`low > 0` must hold with `log: true`"
            raise broken(rule=rule, got=f"low={low}", fix="Raise `low` or drop `log`.")
        if step is not None and (self.log or step <= 0):
            rule, got = "`step > 0` without `log: true` must hold", f"step={step}, log={self.log}"
            raise broken(rule=rule, got=got, fix="Drop one of the two.")
        if step is not None and not is_multiple(high - low, step):
            rule, got = "`high` must be `low` plus a whole number of steps", f"low={low}, high={high}, step={step}"
            raise broken(rule=rule, got=got, fix="Change one of the three.")
        return self


Domain = Value | Choices | Range


def is_multiple(length: float, step: float) -> bool:
    """Return whether `length` is a whole number of steps, up to rounding."""
    steps = length / step
    return math.isfinite(steps) and abs(steps - round(steps)) < 1e-6


def bounds(domain: Domain) -> tuple[Value, Value]:
    """Return the least and the greatest value of a domain."""
    if isinstance(domain, Choices):
        return min(domain.choices), max(domain.choices)
    return (domain.low, domain.high) if isinstance(domain, Range) else (domain, domain)


def smallest(domain: Domain) -> Value:
    """Return the least value that `domain` can take."""
    return bounds(domain)[0]


def largest(domain: Domain) -> Value:
    """Return the greatest value that `domain` can take."""
    return bounds(domain)[1]


def contains(domain: Domain, value: Value) -> bool:
    """Return whether `value` is one that `domain` can take."""
    if isinstance(domain, Range):
        on_step = domain.step is None or is_multiple(value - domain.low, domain.step)
        return on_step and domain.low <= value <= domain.high
    return value in values(domain)


def values(domain: Domain) -> Iterable[Value]:
    """Return every value of a domain, whose ranges are of whole numbers."""
    if isinstance(domain, Choices):
        return domain.choices
    if isinstance(domain, Range):
        return range(int(domain.low), int(domain.high) + 1, int(domain.step or 1))
    return (domain,)


def listed(given: Range) -> list[Value]:
    """Return the values of a range that is dealt as a list: those of its `step`, else each twice the one before.

    Without a step 1 to 46 is 1, 2, 4, 8, 16, 32, 46: both ends, and so few between that each is run often.
    """
    low, high = int(given.low), int(given.high)
    if given.step is not None:
        stepped = range(low, high + 1, int(given.step))
        if len(stepped) > MAX_LISTED:
            fix = "Raise `step`, or leave it out: each value is then twice the last."
            raise broken(rule=f"at most {MAX_LISTED} values", got=str(len(stepped)), fix=fix)
        return list(stepped)
    found: list[Value] = []
    value = low
    while value < high:
        found.append(value)
        value = max(2 * value, 1)
    return [*found, high]


def checked(parameter: Parameter, value: Value) -> Value:
    """Return a value as one of the parameter's kind, within its bounds.

    Raises:
        PydanticCustomError: It is none.
    """
    value = _as_whole(value) if parameter.kind is int else float(value)
    if parameter.kind is int and not isinstance(value, int):
        raise broken(rule="must be a whole number", got=str(value), fix="Write a whole number.")
    if not parameter.allows(value):
        raise broken(rule=f"must be {parameter.bounds}", got=str(value), fix="Change the value.")
    return value


def _form(value: Any) -> str:
    if isinstance(value, Choices) or (isinstance(value, dict) and "choices" in value):
        return "choices"
    if isinstance(value, (dict, Range)):
        return "range"
    return "list" if isinstance(value, list) else "value"


_List = Annotated[
    Annotated[list[Value], Field(min_length=1)], AfterValidator(lambda given: Choices(choices=_distinct(given)))
]
_Written = Annotated[
    Annotated[Value, Tag("value")]
    | Annotated[Choices, Tag("choices")]
    | Annotated[_List, Tag("list")]
    | Annotated[Range, Tag("range")],
    Discriminator(_form),
]


def domain_of(parameter: Parameter, *, sampled: bool) -> Any:
    """Return the type of what a space may say about a parameter: a value, a list or a range.

    Args:
        parameter: The parameter.
        sampled: Whether a sampler may choose any value of a range; else the range stands for a list.
    """

    def check(given: Domain) -> Domain:
        if isinstance(given, Choices):
            return Choices(choices=_distinct([checked(parameter, value) for value in given.choices]))
        if not isinstance(given, Range):
            return checked(parameter, given)
        low, high = checked(parameter, given.low), checked(parameter, given.high)
        step = given.step if given.step is None else checked(parameter, given.step)
        spread = given.model_copy(update={"low": low, "high": high, "step": step})
        return spread if sampled else Choices(choices=listed(spread))

    return Annotated[_Written, AfterValidator(check)]


class Domains(Model):
    """Parameter -> what a space says about it; what it does not say is not written."""

    @model_serializer(mode="wrap")
    def _said(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: domain for name, domain in write(self).items() if domain is not None}


def _field(parameter: Parameter) -> Any:
    required = parameter.default is None and parameter.name not in RULES
    alias = parameter.name if attribute(parameter.name) != parameter.name else None
    return Field(... if required else parameter.default, description=parameter.meaning, alias=alias)


ParametersSpec: type[Model] = create_model(
    "ParametersSpec",
    __base__=Domains,
    __doc__="Each parameter is a value (fixed), a list (choices), or {low, high, log, step} (a range).",
    **{
        attribute(name): (domain_of(parameter, sampled=name != SCALE), _field(parameter))
        for name, parameter in NAMES.items()
    },
)  # type: ignore[call-overload]


def _of_kinds(given: dict[str, Value]) -> dict[str, Value]:
    """Return a setting with each number of its parameter's kind; what is no such number, `rules` refuse."""
    found = dict(given)
    for name, value in given.items():
        if name in NAMES:
            found[name] = _as_whole(value) if NAMES[name].kind is int else float(value)
    return found


Values = Annotated[dict[str, Value], AfterValidator(_of_kinds)]
"""Parameter or rule -> one value."""
