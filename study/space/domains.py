"""What a space is made of: closed models that report broken rules, and what it may say about one parameter. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from study.space.parameters import MAX_WHOLE, NAMES, SCALE, Parameter, Value


def broken(*, rule: str, got: str, fix: str) -> PydanticCustomError:
    """Return the error by which a validator reports the parts of a `Fault`."""
    return PydanticCustomError("rule", "{rule}, got {got}", {"rule": rule, "got": got, "fix": fix})


class Model(BaseModel):
    """A closed, frozen, strictly typed piece of a space file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def mapping_of(name: str, types: Mapping[str, Any]) -> Any:
    """Return the type of a mapping, a plain dict, closed and strict as a `Model`: key -> type of its value."""
    make: Any = TypedDict
    kind = make(name, dict(types))
    kind.__pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return kind


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


Arguments = dict[str, JsonValue]
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


def checked(parameter: Parameter, value: Any) -> Value:
    """Return a value as one of the parameter's kind, within its bounds.

    Raises:
        PydanticCustomError: It is none.
    """
    number = _as_whole(value)
    if parameter.kind is float and type(number) is int:
        number = float(number)
    if type(number) is not parameter.kind or not parameter.allows(number):
        kind = "a whole number" if parameter.kind is int else "a number"
        raise broken(rule=f"must be {kind} {parameter.bounds}", got=str(value), fix="Change the value.")
    return number


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

    return Annotated[_Written, AfterValidator(check), Field(description=parameter.meaning)]


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
    {
        name: NotRequired[
            Annotated[Any, AfterValidator(partial(checked, parameter)), WithJsonSchema({"type": "number"})]
        ]
        for name, parameter in NAMES.items()
    },
)
"""Parameter or rule -> one value."""
