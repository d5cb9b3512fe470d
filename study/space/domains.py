"""What a space may say about one parameter: a value, a list of choices, or a range. Pure."""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from study.space.parameters import PARAMETERS, RULES, SCALE, Parameter, Value, attribute
from study.space.plain import MAX_WHOLE

T = TypeVar("T", int, float)

MAX_LISTED = 200
"""Values of a range that is dealt as a list: scales, and the axes of a throughput grid."""


class Model(BaseModel):
    """A closed, frozen, strictly typed piece of a space file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any, info: ValidationInfo) -> Any:
        """Read `1e6`, a float for YAML, as an integer in the fields that are integers."""
        return _as_whole(value) if _is_whole(cls, info.field_name or "") else value


@functools.cache
def _is_whole(model: type[BaseModel], field: str) -> bool:
    """Return whether the numbers of a field are whole ones."""
    kinds = set(_kinds(model.model_fields[field].annotation))
    return int in kinds and not kinds & {float, str, bool, Any}


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the plain types of an annotation; those inside another model are that model's own."""
    if get_origin(annotation) is Literal or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return
    parts = get_args(annotation)[-1 if get_origin(annotation) is dict else 0 :]
    if not parts:
        yield annotation if isinstance(annotation, type) or annotation is Any else None
    for part in parts:
        yield from _kinds(part)


def _as_whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_whole(each) for each in value]
    if isinstance(value, dict):
        return {name: _as_whole(each) for name, each in value.items()}
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE:
        return int(value)
    return value


def _with_whole(parameters: Any) -> Any:
    if not isinstance(parameters, dict):
        return parameters
    whole = {name for name, parameter in {**PARAMETERS, **RULES}.items() if parameter.kind is int}
    return {name: _as_whole(value) if name in whole else value for name, value in parameters.items()}


ParameterValues = Annotated[dict[str, float | int], BeforeValidator(_with_whole)]
"""Parameter -> its value. A float comes first, so that the message for text asks for a number, not for a whole one."""


class Section(Model):
    """A block of a space file; the text below each field is its description in the schema and the field reference."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def broken(*, rule: str, got: str, fix: str) -> PydanticCustomError:
    """Return the error by which a validator reports the parts of a `Fault`."""
    return PydanticCustomError("rule", "{rule}, got {got}", {"rule": rule, "got": got, "fix": fix})


class Choices(Model, Generic[T]):
    """An unordered list to choose from; a bare YAML list means the same."""

    choices: list[T] = Field(min_length=1, description="The values.")

    @model_validator(mode="after")
    def _distinct(self) -> "Choices[T]":
        if len(set(self.choices)) != len(self.choices):
            raise broken(rule="every choice must differ", got=str(self.choices), fix="Name each value once.")
        return self


class Range(Model, Generic[T]):
    """An interval, both ends included."""

    low: T = Field(description="Smallest value.")
    high: T = Field(description="Largest value.")
    log: bool = Field(False, description="Sample the logarithm uniformly.")
    step: T | None = Field(None, description="Distance between neighbouring values; not with `log`.")

    @model_validator(mode="before")
    @classmethod
    def _spelling(cls, content: Any) -> Any:
        """Refuse what YAML makes of `{low:1, high:46}`, of `{low: 0,1}` and of `{1, 2, 4}`: keys without values."""
        bare = [str(key) for key, value in content.items() if value is None] if isinstance(content, dict) else []
        keys = ", ".join(map(str, content)) if bare else ""
        if any(":" in key for key in bare):
            fix = "Write a space behind each colon."
        elif bare and len(bare) == len(content):
            fix = f"Write [{keys}]."
        elif any(key.isdigit() for key in bare):
            fix = "Write decimals with a point: a comma separates keys."
        else:
            return content
        raise broken(rule="must be a value, a list or a range {low: …, high: …}", got=f"{{{keys}}}", fix=fix)

    @model_validator(mode="after")
    def _consistent(self) -> "Range[T]":
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


def _listed(given: Range[int]) -> list[int]:
    """Return the values of a range that is dealt as a list: those of its `step`, else each twice the one before.

    Without a step 1 to 46 is 1, 2, 4, 8, 16, 32, 46: both ends, and so few between that each is run often.
    """
    if given.step is not None:
        count = (given.high - given.low) // given.step + 1
        if count > MAX_LISTED:
            fix = "Raise `step`, or leave it out: each value is then twice the last."
            raise broken(rule=f"at most {MAX_LISTED} values", got=str(count), fix=fix)
        return list(range(given.low, given.high + 1, given.step))
    values, value = [], given.low
    while value < given.high:
        values.append(value)
        value = max(2 * value, 1)
    return [*values, given.high]


def is_multiple(length: float, step: float) -> bool:
    """Return whether `length` is a whole number of steps, up to rounding."""
    steps = length / step
    return math.isfinite(steps) and abs(steps - round(steps)) < 1e-6


Domain = Value | Choices[int] | Choices[float] | Range[int] | Range[float]


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
    if isinstance(domain, Choices):
        return value in domain.choices
    if isinstance(domain, Range):
        on_step = domain.step is None or is_multiple(value - domain.low, domain.step)
        return on_step and domain.low <= value <= domain.high
    return value == domain


def values(domain: Domain) -> Iterable[Value]:
    """Return every value of a whole-number domain."""
    if isinstance(domain, Choices):
        return domain.choices
    if isinstance(domain, Range):
        return range(int(domain.low), int(domain.high) + 1, int(domain.step or 1))
    return (domain,)


def _form(value: Any) -> str:
    if isinstance(value, Choices) or (isinstance(value, dict) and "choices" in value):
        return "choices"
    if isinstance(value, (dict, Range)):
        return "range"
    return "list" if isinstance(value, list) else "value"


def _bounded(parameter: Parameter) -> Any:
    bound: dict[str, float] = {"gt" if parameter.open_minimum else "ge": parameter.minimum}
    if parameter.maximum is not None:
        bound["le"] = parameter.maximum
    return Annotated[parameter.kind, Field(**bound)]  # type: ignore[call-overload]


def domain_of(parameter: Parameter, *, sampled: bool) -> Any:
    """Return the type of what a space may say about a parameter: a value, a list or a range.

    Args:
        parameter: The parameter.
        sampled: Whether a sampler may choose any value of a range; else the range stands for a list.
    """
    value = _bounded(parameter)
    choices = Choices[value]  # type: ignore[valid-type]
    short = Annotated[list[value], AfterValidator(lambda values: choices(choices=values)), Tag("list")]  # type: ignore[valid-type]
    forms: Any = Annotated[value, Tag("value")] | Annotated[choices, Tag("choices")] | short
    spread: Any = Range[value]  # type: ignore[valid-type]
    if not sampled:
        spread = Annotated[spread, AfterValidator(lambda given: choices(choices=_listed(given)))]
    return Annotated[forms | Annotated[spread, Tag("range")], Discriminator(_form)]


def _field(parameter: Parameter) -> Any:
    required = parameter.default is None and parameter.name not in RULES
    default: Any = ... if required else parameter.default
    alias = parameter.name if attribute(parameter.name) != parameter.name else None
    return Field(default, description=parameter.meaning, alias=alias)


ParametersSpec: type[Model] = create_model(
    "ParametersSpec",
    __base__=Model,
    __doc__="Each parameter is a value (fixed), a list (choices), or {low, high, log, step} (a range).",
    **{
        attribute(name): (domain_of(parameter, sampled=name != SCALE), _field(parameter))
        for name, parameter in {**PARAMETERS, **RULES}.items()
    },
)  # type: ignore[call-overload]
