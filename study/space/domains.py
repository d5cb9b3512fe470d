"""What a space is made of: closed models that report broken rules, and what it may say about one parameter. Pure."""

import json
from collections.abc import Callable, Iterable, Sequence
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

    @model_validator(mode="after")
    def _consistent(self) -> "Range":
        if not self.low < self.high:
            fix = "Swap the bounds." if self.low > self.high else "Give one value instead of a range."
            raise broken(rule="`low < high` must hold", got=f"low={self.low}, high={self.high}", fix=fix)
        if self.log and self.low <= 0:
            rule, fix = "`low > 0` must hold with `log: true`", "Raise `low` or drop `log`."
            raise broken(rule=rule, got=f"low={self.low}", fix=fix)
        return self


Domain = Value | Choices | Range


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
        return domain.low <= value <= domain.high
    return value in values(domain)


def values(domain: Domain) -> Sequence[Value]:
    """Return every value of a domain, whose range is of whole numbers."""
    if isinstance(domain, Choices):
        return domain.choices
    return range(int(domain.low), int(domain.high) + 1) if isinstance(domain, Range) else (domain,)


def _doubled(low: int, high: int) -> Iterable[int]:
    """Yield the list that a range stands for: 1 to 46 is 1, 2, 4, 8, 16, 32, 46, so few that each is run often."""
    while low < high:
        yield low
        low = max(2 * low, 1)
    yield high


def checked(parameter: Parameter, value: Value) -> Value:
    """Return a value as one of the parameter's kind, within its bounds.

    Raises:
        PydanticCustomError: It is none.
    """
    value = _as_whole(value) if parameter.kind is int else float(value)
    if not isinstance(value, parameter.kind) or not parameter.allows(value):
        kind = "a whole number" if parameter.kind is int else "a number"
        raise broken(rule=f"must be {kind} {parameter.bounds}", got=str(value), fix="Change the value.")
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
        return (
            Range(low=low, high=high, log=given.log) if sampled else Choices(choices=[*_doubled(int(low), int(high))])
        )

    return Annotated[_Written, AfterValidator(check)]


class Domains(Model):
    """Parameter -> what a space says about it; what it does not say is not written."""

    @model_serializer(mode="wrap")
    def _said(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: domain for name, domain in write(self).items() if domain is not None}


def _field(parameter: Parameter) -> Any:
    required = parameter.default is None and parameter.name not in RULES and not parameter.optional
    alias = parameter.name if attribute(parameter.name) != parameter.name else None
    return Field(... if required else parameter.default, description=parameter.meaning, alias=alias)


ParametersSpec: type[Model] = create_model(
    "ParametersSpec",
    __base__=Domains,
    __doc__="Each parameter is a value (fixed), a list (choices), or {low, high, log} (a range).",
    **{
        attribute(name): (domain_of(parameter, sampled=name != SCALE), _field(parameter))
        for name, parameter in NAMES.items()
    },
)  # type: ignore[call-overload]


def _of_kinds(given: dict[str, Value]) -> dict[str, Value]:
    """Return a setting with each number of its parameter's kind; what is no such number, `rules` refuse."""
    kinds = {name: NAMES[name].kind for name in given if name in NAMES}
    return {name: float(value) if kinds.get(name) is float else _as_whole(value) for name, value in given.items()}


Values = Annotated[dict[str, Value], AfterValidator(_of_kinds)]
"""Parameter or rule -> one value."""
