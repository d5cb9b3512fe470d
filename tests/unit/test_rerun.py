"""Trials that were trained again: what is drawn, what is refused, and what is said of each; without an engine."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.errors import RecordError
from study.evaluating import rerun
from study.evaluating.rerun import prediction, train_again
from study.records.folder import StudyFolder
from study.records.provenance import provenance
from study.records.records import Evaluation, StudyOpened, TrialBuilt, TrialStarted
from study.trial.messages import BuiltTrial
from tests import holdup

HERE = provenance({})
FUSED = {"learner_class": "Fused"}
OWN = {"host": HERE["hostname"]}


def a_study(path: Path, place: dict[str, str] | None = None, **changes: Any) -> StudyFolder:
    spec = holdup.holdup_spec()
    first, *others = holdup.study_records(spec)
    assert isinstance(first, StudyOpened)
    there = {**HERE, **{name: value for name, value in changes.items() if name != "versions"}}
    there["versions"] = {**HERE["versions"], **changes.get("versions", {})}
    opened = StudyOpened(session=1, num_trials=9, cluster=first.cluster, provenance=there)
    records = [
        replace(
            each, effective=each.effective | FUSED, placement=[own | {**OWN, **(place or {})} for own in each.placement]
        )
        if isinstance(each, TrialBuilt)
        else each
        for each in others
    ]
    return holdup.write_study(path / "demo", spec, [opened, *records])


def trained(monkeypatch: pytest.MonkeyPatch, folder: StudyFolder, shift: float, *, learner: str = "Fused") -> list[int]:
    """Let trials come out as recorded, but for a shift of every return; return the list that gets their numbers."""
    from study.records.records import read_lines

    seen: list[int] = []
    evaluations = [line.record for line in read_lines(folder.records) if isinstance(line.record, Evaluation)]

    def train(spec: Any, trials: list[TrialStarted]) -> Any:
        for started in trials:
            seen.append(started.trial)
            own = [each for each in evaluations if each.trial == started.trial]
            shifted = [replace(each, returns=[value + shift for value in each.returns]) for each in own]
            built = BuiltTrial(
                startup_time_s=None, effective={"learner_class": learner}, processes_per_node={}, placement=[]
            )
            yield [built, *shifted], ""

    monkeypatch.setattr(rerun, "train", train)
    return seen


def test_equal_runs_are_said_to_be_equal_and_the_draw_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, told = a_study(tmp_path), list[str]()
    seen = trained(monkeypatch, folder, 0.0)
    first = list(train_again(folder, 4, seed=3, tell=told.append))
    assert [each.trial for each in first] == seen == sorted(set(seen))
    assert all(each.agrees for each in first)
    assert all("all 5 evaluations, 2 episodes each, are equal to the records." in each.sentence for each in first)
    assert told == [
        f"Training 4 of 33 trials of the confirmation again, drawn with --seed 3: {', '.join(map(str, seen))}."
    ]
    assert [each.trial for each in train_again(folder, 4, seed=3)] == seen[:4]


def test_another_outcome_on_the_same_kind_of_machine_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_study(tmp_path)
    trained(monkeypatch, folder, 0.5)
    (only,) = train_again(folder, 1, seed=0)
    assert not only.agrees
    assert "DIFFERS: 0 of 5 evaluations are equal" in only.sentence


@pytest.mark.parametrize(("shift", "agrees"), [(1.0, True), (-300.0, False)])
def test_on_another_machine_a_run_must_lie_where_its_arm_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: float, agrees: bool
) -> None:
    for number, (changes, said) in enumerate(
        (
            ({"cpu_model": "another one"}, "CPU model another one, here "),
            ({"versions": {"jax": "0.1"}}, "jax 0.1, here "),
            ({"versions": {"jaxlib": "0.1"}}, "jaxlib 0.1, here "),
            (
                {"versions": {"runner-scaling-study": None}},
                "runner-scaling-study None, here ",
            ),  # recorded before 0.12.0
        )
    ):
        folder = a_study(tmp_path / str(number), **changes)
        trained(monkeypatch, folder, shift)
        for each in train_again(folder, 3, seed=0):
            assert each.agrees is agrees or "winner_stock" in each.sentence  # two runs tell nothing
            assert f"another machine ({said}" in each.sentence


@pytest.mark.parametrize(
    ("driver", "place", "said"),
    [
        (HERE["cpu_model"], {"host": "n7", "cpu_model": "Another"}, "another machine (CPU model Another, here "),
        ("Another", {"host": "n7", "cpu_model": HERE["cpu_model"]}, "DIFFERS"),
        (HERE["cpu_model"], {"host": "n7"}, "another machine (CPU model of n7 not recorded, here "),  # before 0.12.1
    ],
)
def test_the_cpu_that_counts_is_the_one_that_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, place: dict[str, str], said: str
) -> None:
    folder = a_study(tmp_path, place, cpu_model=driver)
    trained(monkeypatch, folder, 1.0)
    (only,) = train_again(folder, 1, seed=0)
    assert said in only.sentence


@pytest.mark.parametrize(
    ("learner", "said"), [("Fused", "DIFFERS"), ("Lean", "another machine (learner Fused, here Lean)")]
)
def test_another_learner_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learner: str, said: str) -> None:
    folder = a_study(tmp_path)
    trained(monkeypatch, folder, 1.0, learner=learner)
    (only,) = train_again(folder, 1, seed=0)
    assert said in only.sentence


def test_too_many_trials_and_another_engine_are_refused(tmp_path: Path) -> None:
    folder = a_study(tmp_path, versions={"ray": "1.0.0"})
    for count, code in ((37, "rerun-without-confirmation"), (1, "rerun-with-another-version")):
        with pytest.raises(RecordError) as caught:
            list(train_again(folder, count))
        assert caught.value.code == code


def test_another_run_of_an_arm_lies_in_the_interval_as_often_as_it_says() -> None:
    rng, inside = np.random.default_rng(0), 0
    for _ in range(2_000):
        *others, one = rng.normal(0.5, 0.2, size=11)
        low, high = prediction(list(others), 0.99)
        inside += low <= one <= high
    assert 0.983 <= inside / 2_000 <= 0.996
    assert prediction([0.5, 0.5], 0.99) == (-math.inf, math.inf)
    assert rerun.FALSE_ALARM == 0.01
