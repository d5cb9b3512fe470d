"""The plans of the shipped spaces are the recorded ones; after a wanted change: python -m tests.golden write."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.golden import plans
from tests.needs import needs_qt


def spaces() -> Iterator[Any]:
    for name in plans.names():
        of_procgen = "id: procgen:" in (plans.SPACES / f"{name}.yaml").read_text()
        yield pytest.param(name, marks=[needs_qt, pytest.mark.packages] if of_procgen else [])


@pytest.mark.parametrize("name", spaces())
def test_the_plan_of_a_shipped_space_is_the_recorded_one(name: str) -> None:
    recorded = json.loads((plans.GOLDEN / f"{name}.json").read_text())
    found = json.loads(plans.to_text(plans.plan(name)))
    assert found["clusters"] == recorded["clusters"]
    assert found["trials"] == recorded["trials"]


def test_every_recorded_plan_is_of_a_shipped_space() -> None:
    assert sorted(path.stem for path in plans.GOLDEN.glob("*.json")) == plans.names()
