"""What the schema knows of the kinds of study: the values of `kind:`. Pure.

`study.designs` has everything else of a kind; a hold-up study is a search with a section `holdup`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticKnownError

from study.errors import Fault

if TYPE_CHECKING:
    from study.space.spec import StudySpec

Check = Callable[["StudySpec"], Iterator[Fault]]
"""Yields a fault for every rule between keys that a space breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of study, as far as its space is concerned."""

    learns: bool = True
    """Whether its trials are evaluated, and scored by `environment.floor` and `environment.reference`."""
    checks: Sequence[Check] = ()
    """Rules between the keys of its spaces, where `study.space.parsing` has none for it."""


KINDS: dict[str, Kind] = {"search": Kind(), "throughput": Kind(learns=False)}
"""By their names; a package that adds a kind of study adds an entry."""


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, KINDS))})
    return kind


KindName = Annotated[str, AfterValidator(_known)]
