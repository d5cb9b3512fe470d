"""What a file's content must be before it becomes a value."""

import json
from dataclasses import asdict
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from study.records.folder import StudyIdentity
from study.records.lock import Owner
from study.records.records import KINDS
from study.records.shapes import LARGEST, read
from tests.synthetic import ended, evaluation, iteration, started

HOST = {"host": "a", "num_cores": 2, "seconds": 1.0, "foreign_cores": 0.5, "stolen_cores": 0.0}


def of(record: Any, **changes: Any) -> tuple[type, dict[str, Any]]:
    return type(record), asdict(record) | changes


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (of(iteration(0, 1), env_steps=True), "env_steps"),
        (of(iteration(0, 1), env_steps=1.0), "env_steps"),
        (of(iteration(0, 1), env_steps=LARGEST + 1), "env_steps"),
        (of(iteration(0, 1), wall_time_s="1"), "wall_time_s"),
        (of(iteration(0, 1), metrics={"kl": 10**400}), "metrics"),
        (of(evaluation(0, 1), returns=[]), "returns"),
        (of(evaluation(0, 1), returns={}), "returns"),
        (of(ended(0), status="x" * 100_000), "status"),
        (of(ended(0), last_seen=-1.0), "last_seen"),
        (of(ended(0), node_loads=[HOST | {"num_cores": LARGEST + 1}]), "node_loads"),
        (of(ended(0), node_loads=[{"host": "a"}]), "node_loads"),
        (of(started(0), setting={"lr": 0.1}), "setting"),
        (of(started(0), seed=None), "seed"),
    ],
)
def test_a_value_that_cannot_be_is_named_in_a_line(content, field):
    kind, values = content
    with pytest.raises(ValueError, match=field) as raised:
        read(kind, values)
    assert len(str(raised.value)) < 500


def test_what_can_be_is_kept_as_it_is():
    kind, values = of(ended(0), node_loads=[HOST])
    (load,) = read(kind, values).node_loads
    assert (load.num_cores, load.foreign_cores, load.machine) == (2, 0.5, "")
    assert read(*of(started(0), setting={"num_env_runners": 2, "lr": 1})).setting == {"num_env_runners": 2, "lr": 1}
    whole = read(*of(evaluation(0, 1), returns=[1, 2.5])).returns
    assert whole == [1.0, 2.5]
    assert all(type(value) is float for value in whole)


def test_an_owner_with_a_number_beyond_all_is_none():
    fields = {name: "x" for name in get_type_hints(Owner)} | {"pid": 1, "restart": 0}
    assert Owner.of_text(json.dumps(fields | {"began": 1.0})) is not None
    assert Owner.of_text(json.dumps(fields | {"began": 1.0}).replace("1.0", "1" + "0" * 400)) is None


@pytest.mark.parametrize("kind", [*KINDS.values(), StudyIdentity, Owner])
def test_every_whole_number_has_a_bound(kind):
    """`Whole`, not `int`: what is read can be divided and written down again."""

    def bare(hint: Any) -> bool:
        inner = () if get_origin(hint) is Annotated else get_args(hint)
        return hint is int or any(map(bare, inner))

    hints = get_type_hints(kind, include_extras=True)
    assert [name for name, hint in hints.items() if bare(hint)] == []
    assert bare(dict[str, int | None])
