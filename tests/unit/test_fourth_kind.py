"""A fourth kind of study in one file: `kind: repeat` runs one setting on every seed. Nothing else knows of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from analysis.status import read_status
from study.adopted.loading import load_space
from study.cli.display import headline, print_plan, show
from study.designs import registry
from study.designs.base import Design
from study.errors import Fault, SpaceError
from study.planning.plan import TrialKind
from study.records.records import StageDecided, TrialRequest, numbered
from study.space.parsing import RULES
from study.space.rules import COMMON, batches, fault
from study.space.spec import KINDS, StudySpec
from study.text import count
from tests.driven import CLUSTER, Session, assert_whole
from tests.synthetic import make_folder

SPACE = """
kind: repeat
environment: {id: CartPole-v1, floor: 0, reference: 500, target: 450}
parameters: {num_env_runners: 2, train_batch_size: 400, minibatch_size: 100, num_epochs: 2, lr: 0.001}
budget: {env_steps: 1000}
search: {seeds: [3, 5, 8]}
evaluation: {episodes: 2, num_evaluations: 1}
"""


class Repeat(Design):
    """How far the results of one setting lie apart."""

    name = "repeat"
    proposes = False

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return one trial for each seed."""
        scale, setting = spec.scales[0], dict(spec.fixed)
        return numbered(
            TrialRequest(num_env_runners=scale, seed=seed, setting=setting, name="again") for seed in spec.search.seeds
        )

    def kinds(self, spec: StudySpec) -> list[TrialKind]:
        """Return one kind of trial: all need the same."""
        return [TrialKind(spec=spec, num_env_runners=spec.scales[0], num_trials=len(spec.search.seeds))]


def one_setting(spec: StudySpec) -> Iterator[Fault]:
    for name in spec.tuned:
        yield fault(f"parameters.{name}", "a study that repeats has one value", "several", "Choose one.")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "repeat", True)
    monkeypatch.setitem(RULES, "repeat", (*COMMON, batches, one_setting))
    monkeypatch.setitem(registry.DESIGNS, "repeat", Repeat())


@pytest.fixture
def space(tmp_path: Path) -> StudySpec:
    (tmp_path / "repeat.yaml").write_text(SPACE)
    return load_space(tmp_path / "repeat.yaml")


def seen(show: object, *args: object, **kwargs: object) -> str:
    console = Console(width=140, force_terminal=False, record=True)
    show(console, *args, **kwargs)  # type: ignore[operator]
    return console.export_text()


def test_its_space_is_read_and_its_rule_is_kept(space: StudySpec, tmp_path: Path) -> None:
    assert (space.design, space.learns) == ("repeat", True)
    assert StudySpec.model_validate(space.to_json()) == space
    with pytest.raises(SpaceError, match=r"parameters\.lr: a study that repeats has one value, got several"):
        load_space(tmp_path / "repeat.yaml", overrides=["parameters.lr=[0.001, 0.01]"])


def test_a_kind_that_nobody_registered_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(SPACE.replace("repeat", "other"))
    with pytest.raises(SpaceError) as error:
        load_space(tmp_path / "other.yaml")
    assert "kind" in [fault.where for fault in error.value.faults]


def test_it_is_planned_and_its_plan_is_shown(space: StudySpec) -> None:
    plan = registry.make_plan(space, CLUSTER)
    assert [(each.trial, each.seed) for each in plan.requests] == [(0, 3), (1, 5), (2, 8)]
    assert plan.needs(plan.requests[0]).num_trials == 3
    assert "3 trials" in seen(print_plan, plan, space, name="again")


def test_it_runs_to_its_end_through_a_kill_and_is_shown(space: StudySpec, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "study", of=space)
    killed = Session(folder.path, space)
    killed.finish(killed.conductor.next_trial().trial, final=100.0)
    killed.conductor.next_trial()
    killed.log.close()

    session = Session(folder.path, space)
    assert "1 of 3 trials ended" in headline(session.conductor)
    assert session.run_all().reason == "complete"
    assert_whole(folder.path, 3)
    rows = session.conductor.ledger.rows
    assert [row.seed for row in rows.values()] == [3, 5, 8]
    assert {row.setting["train_batch_size"] for row in rows.values()} == {400}
    assert rows[1].attempt == 2
    assert rows[0].summary["score"] == pytest.approx(0.2)
    status = read_status(folder.path)
    assert status.counts["finished"] == 3
    assert count(2, "runner") in seen(show, status)
