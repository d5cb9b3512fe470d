"""The plans of the shipped spaces are the recorded ones; after a wanted change: python -m tests.golden write."""

import json

import pytest

from tests.golden import plans


@pytest.mark.parametrize("name", plans.names())
def test_the_plan_of_a_shipped_space_is_the_recorded_one(name: str) -> None:
    recorded = json.loads((plans.GOLDEN / f"{name}.json").read_text())
    found = json.loads(plans.to_text(plans.plan(name)))
    assert found["clusters"] == recorded["clusters"]
    assert found["trials"] == recorded["trials"]


def test_every_recorded_plan_is_of_a_shipped_space() -> None:
    assert sorted(path.stem for path in plans.GOLDEN.glob("*.json")) == plans.names()
