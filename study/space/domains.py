"""What a space may say about one parameter: a value, a list of choices, or a range. Pure."""

import math
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, create_model, model_validator
from pydantic_core import PydanticCustomError

from study.space.parameters import PARAMETERS, RULES, SCALE, Parameter, Value

T = TypeVar("T", int, float)


class Model(BaseModel):
    """A closed, frozen, strictly typed piece of a space file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Choices(Model, Generic[T]):
    """An unordered list to choose from; a bare YAML list means the same."""

    choices: list[T] = Field(min_length=1, description="The values.")

    @model_validator(mode="after")
    def _distinct(self) -> "Choices[T]":
        if len(set(self.choices)) != len(self.choices):
            raise PydanticCustomError(
                "law",
                "every choice must differ, got {choices}.|Name each value once.",
                {"choices": self.choices},
            )
        return self


class Range(Model, Generic[T]):
    """An interval, both ends included."""

    low: T = Field(description="Smallest value.")
    high: T = Field(description="Largest value.")
    log: bool = Field(False, description="Sample the logarithm uniformly.")
    step: T | None = Field(None, description="Distance between neighbouring values; not with `log`.")

    @model_validator(mode="after")
    def _laws(self) -> "Range[T]":
        if not self.low < self.high:
            raise PydanticCustomError(
                "law",
                "`low < high` must hold, got low={low}, high={high}.|{fix}",
                {
                    "low": self.low,
                    "high": self.high,
                    "fix": "Swap the bounds." if self.low > self.high else "Give one value instead of a range.",
                },
            )
        if self.log and self.low <= 0:
            raise PydanticCustomError(
                "law",
                "`low > 0` must hold with `log: true`, got low={low}.|Raise `low` or drop `log`.",
                {"low": self.low},
            )
        if self.step is not None and (self.log or self.step <= 0):
            raise PydanticCustomError(
                "law",
                "`step > 0` without `log: true` must hold, got step={step}, log={log}.|Drop one of the two.",
                {"step": self.step, "log": self.log},
            )
        if self.step is not None and not is_multiple(self.high - self.low, self.step):
            raise PydanticCustomError(
                "law",
                "`high` must be `low` plus a whole number of steps, got low={low}, high={high}, step={step}.|"
                "Change one of the three.",
                {"low": self.low, "high": self.high, "step": self.step},
            )
        return self


def is_multiple(length: float, step: float) -> bool:
    """Return whether `length` is a whole number of steps, up to rounding."""
    steps = length / step
    return math.isfinite(steps) and abs(steps - round(steps)) < 1e-6


Domain = Value | Choices[int] | Choices[float] | Range[int] | Range[float]


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


def domain_of(parameter: Parameter, *, ranges: bool) -> Any:
    """Return the type of what a space may say about a parameter: a value or a list, where allowed a range too."""
    value = _bounded(parameter)
    choices = Choices[value]  # type: ignore[valid-type]
    short = Annotated[list[value], AfterValidator(lambda values: choices(choices=values)), Tag("list")]  # type: ignore[valid-type]
    forms: Any = Annotated[value, Tag("value")] | Annotated[choices, Tag("choices")] | short
    if ranges:
        forms = forms | Annotated[Range[value], Tag("range")]  # type: ignore[valid-type]
    return Annotated[forms, Discriminator(_form)]


class _Parameters(Model):
    """Base of `ParametersSpec`."""

    def domain(self, name: str) -> Domain:
        """Return what the space says about parameter `name`, or its default."""
        domain: Domain = getattr(self, attribute(name))
        return domain

    def rule(self, name: str) -> Domain | None:
        """Return what the space says about rule `name`; None where it is not used."""
        domain: Domain | None = getattr(self, name)
        return domain


def attribute(name: str) -> str:
    """Return the Python attribute that holds parameter `name` (`lambda` is a keyword)."""
    return f"{name}_" if name == "lambda" else name


def _field(parameter: Parameter) -> Any:
    required = parameter.default is None and parameter.name not in RULES
    default: Any = ... if required else parameter.default
    alias = parameter.name if attribute(parameter.name) != parameter.name else None
    return Field(default, description=parameter.meaning, alias=alias)


ParametersSpec: type[_Parameters] = create_model(
    "ParametersSpec",
    __base__=_Parameters,
    __doc__="Each parameter is a value (fixed), a list (choices), or {low, high, log, step} (a range).",
    **{
        attribute(name): (domain_of(parameter, ranges=name != SCALE), _field(parameter))
        for name, parameter in {**PARAMETERS, **RULES}.items()
    },
)  # type: ignore[call-overload]
