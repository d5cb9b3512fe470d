"""More than a hundred bad spaces, made from the schema: each is refused with its place and what to write, soon.

Every key gets a value of another type, one beyond each of its bounds, another name, or goes missing; then come values
that stand twice or in each other. What wants to be large is in `tests/security/test_fuzz.py`.
"""

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from ruamel.yaml import YAML

from study.errors import SpaceError
from study.space.parameters import ALGORITHMS, NAMES, REPLACED
from study.space.parsing import FIELDS, parse_space, read_space
from study.space.sections import AXES
from tests import spaces
from tests.unit.test_space_rules import HELD_UP

LIMIT_S = 2.0
BASES: dict[str, dict[str, Any]] = {
    "holdup": HELD_UP,
    "throughput": spaces.THROUGHPUT,
    "search": {**spaces.BASE, "search": {**spaces.BASE["search"], "baselines": []}},
}


class Bad(NamedTuple):
    """A space with one mistake."""

    why: str
    place: str
    base: str
    value: Any


def base_of(place: str) -> str:
    return next((base for base in ("holdup", "throughput") if place.startswith(base)), "search")


def from_schema() -> Iterator[Bad]:
    for place, info in FIELDS.items():
        if place == "parameters" or "[]" in place:
            continue
        base, annotation = base_of(place), info.annotation
        kinds = get_args(annotation) if NoneType in get_args(annotation) else (annotation,)
        plain = {get_origin(kind) or kind for kind in kinds}
        if str not in plain:
            yield Bad("wrong type", place, base, "nonsense")
        yield Bad("wrong type", place, base, [[1]] if list not in plain else {"a": 1})
        for bound in info.metadata:
            match bound:
                case Ge(ge=least):
                    yield Bad("beyond a bound", place, base, least - 1)
                case Gt(gt=least) | Lt(lt=least):
                    yield Bad("beyond a bound", place, base, least)
                case Le(le=most):
                    yield Bad("beyond a bound", place, base, most + 1)
        yield Bad("another name", f"{place}x", base, 1)
        if info.is_required():
            yield Bad("missing", place, base, None)


def of_parameters() -> Iterator[Bad]:
    for name in ALGORITHMS["PPO"].names:
        parameter, place = NAMES[name], f"parameters.{name}"
        yield Bad("wrong type", place, "search", "nonsense")
        yield Bad("beyond a bound", place, "search", parameter.minimum - 1)
        yield Bad("nested", place, "search", [[1], [2]])
        yield Bad("twice", place, "search", [1, 1])
        yield Bad("swapped", place, "search", {"low": 1, "high": 0.5 if parameter.kind is float else 0})
        yield Bad("beyond a bound", f"search.baselines.0.parameters.{name}", "search", parameter.minimum - 1)
    for axis in AXES:
        yield Bad("twice", f"throughput.grids.strong.{axis}", "throughput", [1, 1])
    for rule in REPLACED:
        yield Bad("both of two", f"parameters.{rule}", "both", 50)


def written(bad: Bad) -> dict[str, Any]:
    """Return the content of a bad space."""
    content = copy.deepcopy(BASES.get(bad.base, BASES["search"]))
    if bad.base == "both":
        content["parameters"] |= {"train_batch_size": 400, "minibatch_size": 64}
    if bad.place.startswith("search.baselines.0"):
        name = bad.place.rpartition(".")[2]
        content["search"]["baselines"] = [{"name": "mine", "parameters": {name: bad.value}}]
        return content
    *above, last = bad.place.split(".")
    section = content
    for name in above:
        section = section.setdefault(name, {})
    section[last] = bad.value
    if bad.why == "missing":
        del section[last]
    return content


ALL = [*from_schema(), *of_parameters()]


def save(content: dict[str, Any], file: Path) -> Path:
    with file.open("w") as stream:
        YAML(typ="safe").dump(content, stream)
    return file


def test_the_spaces_that_are_changed_are_good_ones(tmp_path: Path) -> None:
    assert len(ALL) > 200
    for content in BASES.values():
        parse_space(read_space(save(content, tmp_path / "good.yaml")))


@pytest.mark.parametrize("why", sorted({bad.why for bad in ALL}))
def test_a_bad_space_is_refused_with_its_place_and_what_to_write(why: str, tmp_path: Path) -> None:
    for bad in (bad for bad in ALL if bad.why == why):
        file, begin = save(written(bad), tmp_path / "bad.yaml"), time.process_time()
        with pytest.raises(SpaceError) as caught:
            parse_space(read_space(file))
        assert time.process_time() - begin < LIMIT_S, bad
        faults = caught.value.faults
        assert all(fault.where and fault.rule and fault.fix for fault in faults), bad
        at = [fault for fault in faults if f"{fault.where}.".startswith(f"{bad.place}.")]
        assert at, (bad, faults)
        if why == "another name":
            assert any(fault.rule == "unknown key" and "Did you mean" in fault.fix for fault in at), (bad, at)
        if "." in bad.place and why in ("wrong type", "beyond a bound", "another name"):
            assert all(fault.line is not None for fault in at), (bad, at)
