"""What a space is made of: closed models that report broken rules, and what it may say about one parameter. Pure."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationInfo,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from study.errors import Fault
from study.space.parameters import MAX_WHOLE, NAMES, RULES, SCALE, Parameter, Value, attribute

T = TypeVar("T", int, float)

MAX_LISTED = 200
"""Values of a range that is dealt as a list: scales, and the axes of a throughput grid."""


def broken(*, rule: str, got: str, fix: str) -> PydanticCustomError:
    """Return the error by which a validator reports the parts of a `Fault`."""
    return PydanticCustomError("rule", "{rule}, got {got}", {"rule": rule, "got": got, "fix": fix})


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between sections of a space. Its texts are templates: `{s}` is the space, other names come from `when`.

    Attributes:
        where: Place of the fault; each place has at most one of a rule.
        when: Whether a space breaks the rule. An iterator in its place gives the values of the templates, once for
            each fault.
        must: What must hold.
        fix: What to do, as a sentence.
        got: What was found instead; empty where `must` says it already.
    """

    where: str
    when: Callable[[Any], object]
    must: str
    fix: str
    got: str = ""

    def faults(self, spec: Any) -> Iterator[Fault]:
        """Yield a fault for each place where the space breaks the rule."""
        found = self.when(spec)
        places: set[str] = set()
        for values in found if isinstance(found, Iterator) else [{}] if found else []:
            where, must, fix, got = (
                text.format(s=spec, **values) for text in (self.where, self.must, self.fix, self.got)
            )
            if where not in places:
                places.add(where)
                yield Fault(where=where, rule=must, got=got, fix=fix)


class Model(BaseModel):
    """A closed, frozen, strictly typed piece of a space file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any, info: ValidationInfo) -> Any:
        """Read `1e6`, a float for YAML, as an integer in the fields that are integers."""
        return _as_whole(value) if _is_whole(cls, info.field_name or "") else value


class Section(Model):
    """A block of a space file; the text below each field is its description in the schema and the field reference."""

    model_config = ConfigDict(use_attribute_docstrings=True)


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


def _distinct(values: list[T]) -> list[T]:
    if len(set(values)) != len(values):
        raise broken(rule="must be distinct", got=str(values), fix="Name each once.")
    return values


Distinct = AfterValidator(_distinct)
"""For lists that name nothing twice."""


def _finite(content: dict[str, Any]) -> dict[str, Any]:
    for place, value in _decimals(content):
        if not math.isfinite(value):
            raise broken(rule=f"{place} must be a finite number", got=str(value), fix="Write a finite number.")
    return content


def _decimals(content: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield the decimal numbers in nested mappings and lists, with their places."""
    if isinstance(content, float):
        yield place, content
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield from _decimals(value, f"{place}.{key}" if place else str(key))


Arguments = Annotated[dict[str, Any], AfterValidator(_finite)]
"""Arguments of somebody else's function. What a trial is sent is JSON, without infinity and NaN."""


class Choices(Model, Generic[T]):
    """An unordered list to choose from; a bare YAML list means the same."""

    choices: Annotated[list[T], Distinct] = Field(min_length=1, description="The values.")


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
    bound = {"gt" if parameter.open_minimum else "ge": parameter.minimum, "le": parameter.maximum}
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


class Setting:
    """Annotates a mapping from parameters to one value each: a model of them reports what is wrong."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        fields: dict[str, Any] = {
            attribute(name): (_bounded(each), Field(None, description=each.meaning, alias=name))
            for name, each in parameters.items()
        }
        self.model: type[Model] = create_model("Setting", __base__=Model, **fields)

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Validate by the model; the value is a mapping in the person's order."""

        def said(content: Any, validate: Callable[[Any], Model]) -> dict[str, Value]:
            model = validate(content)
            return {name: getattr(model, attribute(name)) for name in content}

        written = core_schema.plain_serializer_function_ser_schema(dict)
        return core_schema.no_info_wrap_validator_function(
            said, handler.generate_schema(self.model), serialization=written
        )
