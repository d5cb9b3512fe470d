"""More than a hundred bad spaces, made from the schema: each is refused with its place and what to write, soon.

Every key gets a value of another type, one beyond each of its bounds, another name, or goes missing; then come values
that stand twice or in each other. What wants to be large is in `tests/security/test_fuzz.py`.
"""

import time
from collections.abc import Iterator
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt

from study.errors import SpaceError
from study.space.parameters import ALGORITHMS, NAMES
from study.space.parsing import FIELDS, parse_space, read_text, written
from study.space.sections import AXES
from tests import spaces
from tests.unit.test_space_rules import HELD_UP

LIMIT_S = 2.0
BASES: dict[str, dict[str, Any]] = {"holdup": HELD_UP, "throughput": spaces.THROUGHPUT}
"""Section that only such a space has -> the space that is changed there."""


class Bad(NamedTuple):
    """A space with one mistake."""

    why: str
    place: str
    value: Any
    """None: the key is taken away."""


def from_schema() -> Iterator[Bad]:
    for place, info in FIELDS.items():
        if place == "parameters" or "[]" in place:
            continue
        kinds = get_args(info.annotation) if NoneType in get_args(info.annotation) else (info.annotation,)
        plain = {get_origin(kind) or kind for kind in kinds}
        if str not in plain:
            yield Bad("wrong type", place, "nonsense")
        yield Bad("wrong type", place, [[1]] if list not in plain else {"a": 1})
        for bound in info.metadata:
            match bound:
                case Ge(ge=least):
                    yield Bad("beyond a bound", place, least - 1)
                case Gt(gt=least) | Lt(lt=least):
                    yield Bad("beyond a bound", place, least)
                case Le(le=most):
                    yield Bad("beyond a bound", place, most + 1)
        yield Bad("another name", f"{place}x", 1)
        if info.is_required():
            yield Bad("missing", place, None)


def of_parameters() -> Iterator[Bad]:
    for name in ALGORITHMS["PPO"].names:
        parameter, place = NAMES[name], f"parameters.{name}"
        yield Bad("wrong type", place, "nonsense")
        yield Bad("beyond a bound", place, parameter.minimum - 1)
        yield Bad("nested", place, [[1], [2]])
        yield Bad("twice", place, [1, 1])
        yield Bad("swapped", place, {"low": 1, "high": 0.5 if parameter.kind is float else 0})
        yield Bad("beyond a bound", f"search.baselines.0.parameters.{name}", parameter.minimum - 1)
    for axis in AXES:
        yield Bad("twice", f"throughput.grids.strong.{axis}", [1, 1])


def text_of(bad: Bad) -> str:
    """Return a bad space as YAML."""
    place, value, base = bad.place, bad.value, BASES.get(bad.place.partition(".")[0], spaces.BASE)
    if place.startswith("search.baselines.0"):
        place, value = "search.baselines", [{"name": "mine", "parameters": {place.rpartition(".")[2]: value}}]
    return written(spaces.with_changes(base, **{place.replace(".", "__"): value}))


ALL = [*from_schema(), *of_parameters()]


def test_the_spaces_that_are_changed_are_good_ones() -> None:
    assert len(ALL) > 200
    for content in (spaces.BASE, *BASES.values()):
        spaces.spec_of(content)


@pytest.mark.parametrize("why", sorted({bad.why for bad in ALL}))
def test_a_bad_space_is_refused_with_its_place_and_what_to_write(why: str) -> None:
    for bad in (bad for bad in ALL if bad.why == why):
        text, begin = text_of(bad), time.process_time()
        with pytest.raises(SpaceError) as caught:
            parse_space(read_text(text, name="bad.yaml"))
        assert time.process_time() - begin < LIMIT_S, bad
        faults = caught.value.faults
        assert all(fault.where and fault.rule and fault.fix for fault in faults), bad
        at = [fault for fault in faults if f"{fault.where}.".startswith(f"{bad.place}.")]
        assert at, (bad, faults)
        if why == "another name":
            assert any(fault.rule == "unknown key" and "Did you mean" in fault.fix for fault in at), (bad, at)
        if "." in bad.place and why in ("wrong type", "beyond a bound", "another name"):
            assert all(fault.line is not None for fault in at), (bad, at)
