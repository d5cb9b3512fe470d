"""Every file of a study's folder, damaged in every way, one at a time: a correct result, or an error with a way out.

Never a traceback, and never a study that begins anew as if nothing had been recorded. Without Ray: the commands' own
opening, ledger, Optuna study, cursor and tables over a small study that was killed in its middle.
"""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from analysis import load
from analysis.opened import Study
from analysis.status import read_status
from analysis.tables.learning import certificate as hold_up
from study.cli.commands import app
from study.cli.status import show
from study.designs.holdup.certificate import verify, write_certificate
from study.designs.registry import make_plan
from study.driver.conductor import Conductor
from study.driver.opening import RunOptions, is_resumed, resumed_identity, take_up
from study.errors import StudyError
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.records.lock import Owner, held
from study.records.log import RecordLog
from study.records.packing import pack
from study.records.records import TrialEnded, read_lines
from study.records.table import write_table
from tests import holdup
from tests.driven import CLUSTER, Session, policy
from tests.spaces import content, spec
from tests.synthetic import make_folder
from tests.values import replace

ROOT = Path(__file__).resolve().parents[2]
SPACE = spec(execution="real")
TRUTH = ("study.json", "records.jsonl")
"""What cannot be made again."""
DERIVED = (
    *("space.yaml", "optuna.journal", "mirror.json", "mirror.log", "trials.csv", "driver.json"),
    *(".lock", ".mlflow-mirror.lock", ".optuna-mirror.lock", ".tensorboard-mirror.lock"),
)


# --- a study that was killed -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two trials have finished, one has failed, one runs as the driver is killed; two are left."""
    path = tmp_path_factory.mktemp("whole") / "demo"
    uri = f"sqlite:///{path.parent}/mlflow.db"
    folder = make_folder(path, uri, SPACE, text=json.dumps(content(execution="real")))  # JSON is YAML
    session = Session(path, SPACE)
    conductor = session.conductor
    session.finish(conductor.next_trial().trial, policy=policy({"weights": b"abc"}))
    session.iterate(trial := conductor.next_trial().trial)
    conductor.end(trial, "failed", "planted")
    session.finish(conductor.next_trial().trial)
    started = conductor.next_trial()
    session.iterate(started.trial, 1)
    session.iterate(started.trial, 2)
    conductor.write_table()
    session.log.close()
    lines = list(read_lines(folder.records))
    MlflowMirror(folder, uri).note(experiment_id="1", parent_run_id="p", offset=lines[-2].end, seq=lines[-2].seq + 1)
    folder.mirror_log.write_text("MLflow was away\n")
    folder.optuna_journal.write_text("made anew by the mirror\n")
    gone = replace(Owner.of_this_process(), began=1.0)
    (path / "driver.json").write_text(msgspec.json.encode(gone).decode())
    for name in (".lock", ".mlflow-mirror.lock", ".optuna-mirror.lock", ".tensorboard-mirror.lock"):
        (path / name).touch()
    assert {file.name for file in path.iterdir()} == {*TRUTH, *DERIVED, "checkpoints"}
    return path


@pytest.fixture
def study(whole, tmp_path):
    return copied(whole, tmp_path / "demo")


def copied(source, target):
    shutil.copytree(source, target)
    for file in source.rglob("*"):
        (target / file.relative_to(source)).chmod(file.stat().st_mode)
    target.chmod(0o700)
    return target


class Resumed(Session):
    """A driver's way into a study, as `study.driver.run` goes it before it starts Ray."""

    def __init__(self, path):
        self.folder, self.spec = StudyFolder(path), SPACE
        options = RunOptions(name=path.name, out=path.parent, resume=True, space="space.yaml")
        assert is_resumed(self.folder, options)
        identity = resumed_identity(self.folder, SPACE, options)
        with held(self.folder.path):
            _, ledger = take_up(SPACE, self.folder)
            mirror = MlflowMirror(self.folder, identity.tracking_uri)
            assert mirror.behind >= 0
            self.folder.mirror_log.open("ab").close()
            self.log = RecordLog(self.folder.records)
            self.conductor = Conductor(
                spec=SPACE,
                plan=make_plan(SPACE, CLUSTER),
                folder=self.folder,
                log=self.log,
                ledger=ledger,
                provenance={},
            )
            assert self.run_all().reason == "complete"
            self.conductor.write_table()
            mirror.note(experiment_id="1", parent_run_id="p")


def resume(path):
    """Resume a study to its end; fails where anything is lost, doubled, or asked anew."""
    before = recorded(path)
    resumed = Resumed(path)
    after = recorded(path)
    ends = [line.record for line in read_lines(path / "records.jsonl") if isinstance(line.record, TrialEnded)]
    assert sorted(end.trial for end in ends if end.status != "interrupted") == list(range(6))
    for number, row in before.items():
        if row.ended:
            assert after[number] == row, "a trial that had ended was run again"
        else:
            assert (after[number].attempt, after[number].setting) == (row.attempt + 1, row.setting)
    assert load.from_folder(path).runs["trial"].tolist() == list(range(6))
    lines = (path / "trials.csv").read_text().splitlines()
    assert len(lines) == 7
    return resumed


def recorded(path):
    return ledger_of(path / "records.jsonl").rows


def status(path):
    now = read_status(path)
    show(Console(file=io.StringIO(), width=80), now)
    return now


def frames(path):
    data = load.from_folder(path)
    return [data.runs, data.iterations(), data.evaluations()]


def told(call, *arguments):
    """Return (result, "") or (None, what the named error says); every other exception fails the test."""
    try:
        return call(*arguments), ""
    except StudyError as error:
        said = str(error)
        assert "Fix: " in said, said
        assert "Traceback" not in said
        return None, said


# --- damage ----------------------------------------------------------------------------------------------------------

OTHERS = [None, True, -1, 2**60, 0.5, "surprise", [], {}, {"surprise": 1}, [[[]]]]
"""Values of every type."""


def with_other_value(raw: bytes, at: float, value: object) -> bytes:
    """Return JSON, or JSON lines, in which one value of an object has become another."""
    lines = raw.splitlines(keepends=True) if raw.startswith(b'{"schema"') else [raw]
    try:
        number = int(at * len(lines)) if lines else 0
        content = orjson.loads(lines[number])
        names = list(content)
        content[names[int(at * 7919) % len(names)]] = value
    except (orjson.JSONDecodeError, AttributeError, IndexError, TypeError):
        return orjson.dumps(value)
    lines[number] = orjson.dumps(content) + b"\n"
    return b"".join(lines)


def lines_of(raw: bytes, at: float, times: int) -> bytes:
    """Return the content with one line so many times."""
    lines = raw.splitlines(keepends=True)
    number = int(at * len(lines))
    return b"".join([*lines[:number], *lines[number : number + 1] * times, *lines[number + 1 :]])


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw what becomes of the content of a file."""
    at, more, value = draw(st.floats(0, 0.999)), draw(st.binary(min_size=1, max_size=40)), draw(st.sampled_from(OTHERS))

    def place(raw: bytes) -> int:
        return int(at * (len(raw) + 1))

    ways: dict[str, Callable[[bytes], bytes]] = {
        "cut": lambda raw: raw[: place(raw)],
        "its beginning lost": lambda raw: raw[place(raw) :],
        "inserted": lambda raw: raw[: place(raw)] + more + raw[place(raw) :],
        "overwritten": lambda raw: raw[: place(raw)] + more + raw[place(raw) + len(more) :],
        "zeros within": lambda raw: raw[: place(raw)] + b"\0" * 99 + raw[place(raw) + 99 :],
        "zeros behind": lambda raw: raw + b"\0" * 4096,
        "a line lost": lambda raw: lines_of(raw, at, 0),
        "a line doubled": lambda raw: lines_of(raw, at, 2),
        "another value": lambda raw: with_other_value(raw, at, value),
        "something else": lambda raw: more,
        "deep": lambda raw: b"[" * 100_000,
        "a huge number": lambda raw: b"1" * 5000 + b"\n",
    }
    return ways[draw(st.sampled_from(sorted(ways)))]


ANY = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def lost_its_end_alone(before: bytes, after: bytes) -> bool:
    """Return whether all that is left of the records are their first lines, as a kill or a power cut leaves them."""
    whole = after.rstrip(b"\0")
    return before.startswith(whole)


@ANY
@given(damage=damages())
def test_damaged_records_are_refused_and_left_as_they_are_or_nothing_that_ended_is_lost(
    whole, tmp_path_factory, damage
):
    study = copied(whole, tmp_path_factory.mktemp("damaged") / "demo")
    file, before = study / "records.jsonl", (whole / "records.jsonl").read_bytes()
    file.write_bytes(after := damage(before))
    for call in (status, frames):
        result, said = told(call, study)
        assert not said or str(study) in said
        if result is not None and call is frames and lost_its_end_alone(before, after):
            assert len(result[0]) <= 4
    _, said = told(resume, study)
    if said:
        assert "records.jsonl" in said
        assert file.read_bytes() == after
        shutil.copy(whole / "records.jsonl", file)  # the way out: a backup
        resume(study)
    else:
        assert lost_its_end_alone(before, after)
        ended = {number for number, row in recorded(whole).items() if row.ended}
        assert all(recorded(study)[number] == recorded(whole)[number] for number in ended)


@ANY
@given(damage=damages())
def test_a_damaged_identity_is_named_and_never_taken_for_another_study(whole, tmp_path_factory, damage):
    study = copied(whole, tmp_path_factory.mktemp("damaged") / "demo")
    file, before = study / "study.json", orjson.loads((whole / "study.json").read_bytes())
    file.write_bytes(after := damage(file.read_bytes()))
    for call in (status, frames, resume):
        _, said = told(call, study)
        if said:
            assert str(study) in said
            assert file.read_bytes() == after
        else:  # a date, or the name of a file
            now = orjson.loads(after)
            assert (now["spec"], now["digest"]) == (before["spec"], before["digest"]) or call is not resume


@ANY
@given(name=st.sampled_from(DERIVED), damage=damages())
def test_what_follows_from_the_records_is_made_anew(whole, tmp_path_factory, name, damage):
    study = copied(whole, tmp_path_factory.mktemp("damaged") / "demo")
    (study / name).write_bytes(damage((study / name).read_bytes()))
    shown, said = told(status, study)
    assert said == ""
    assert shown.counts == status(whole).counts
    for frame, other in zip(frames(study), frames(whole), strict=True):
        assert frame.equals(other)
    said = told(resume, study)[1]
    # A table that is readable, and shows trials that are not on record, is a witness: the person decides.
    assert not said or (name == "trials.csv" and "move away trials.csv" in said)


def test_records_that_are_gone_are_missed_by_whatever_is_left(whole, study):
    """Each witness alone: the table of trials, a policy, MLflow's cursor."""
    witnesses = {"trials.csv", "checkpoints", "mirror.json"}
    for left in witnesses:
        target = copied(whole, study.parent / left)
        (target / "records.jsonl").unlink()
        for other in witnesses - {left}:
            shutil.rmtree(target / other) if other == "checkpoints" else (target / other).unlink()
        assert "records.jsonl" in told(resume, target)[1], left
        assert not (target / "records.jsonl").exists()


def test_records_cut_in_the_middle_are_told_by_status_report_and_resume(study):
    file = study / "records.jsonl"
    whole = file.read_bytes().splitlines(keepends=True)
    first_end = next(number for number, line in enumerate(whole) if b'"trial_ended"' in line)
    file.write_bytes(b"".join(whole[: first_end + 1]))
    said = "none of the trials [1, 2], which trials.csv shows as ended: the file was cut"
    assert any(said in problem for problem in status(study).problems)
    assert any(said in problem for problem in load.from_folder(study).problems)
    assert said in told(resume, study)[1]


def test_an_identity_that_is_gone_starts_nothing_anew(study):
    (study / "study.json").unlink()
    options = RunOptions(name="demo", out=study.parent, resume=True, or_start=True)
    assert not is_resumed(StudyFolder(study), options)
    _, said = told(StudyFolder(study).prepare)
    assert "Restore study.json from a backup" in said
    assert "Restore it from a backup" in told(status, study)[1]


# --- no file at all --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TRUTH, *DERIVED])
def test_a_folder_in_place_of_a_file_is_named_and_left_alone(whole, study, name):
    (study / name).unlink()
    (study / name).mkdir()
    (study / name / "precious").touch()
    for call in (status, frames):
        _, said = told(call, study)
        assert not said or name in said, said
    assert name in told(resume, study)[1]
    assert (study / name / "precious").exists()
    shutil.rmtree(study / name)
    if name in TRUTH:
        shutil.copy(whole / name, study / name)
    resume(study)


# --- certificate -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    space = holdup.holdup_spec()
    folder = holdup.write_study(tmp_path_factory.mktemp("certified") / "demo", space, holdup.study_records(space))
    write_certificate(folder)
    write_table(folder.table, ledger_of(folder.records).rows.values())
    verify(folder.path)
    return folder.path


@settings(ANY, max_examples=25)
@given(name=st.sampled_from(["certificate.json", "certificate.md", *TRUTH]), damage=damages())
def test_a_certificate_with_anything_damaged_is_not_verified(certified, tmp_path_factory, name, damage):
    target = copied(certified, tmp_path_factory.mktemp("damaged") / "demo")
    before = (target / name).read_bytes()
    (target / name).write_bytes(after := damage(before))
    if not told(verify, target)[1] and after.rstrip(b"\0") != before:  # the same content, written in another way
        not_certified = {"created", "tracking_uri", "space"} if name == "study.json" else set()
        now, then = json.loads(after), json.loads(before)
        assert {key for key in {*now, *then} if now.get(key) != then.get(key)} <= not_certified
    told(lambda: hold_up(Study(load.from_folder(target))).title)


# --- packed studies, and the commands themselves ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(certified, tmp_path_factory):
    packed = pack(StudyFolder(certified), tmp_path_factory.mktemp("packed") / "demo")
    write_certificate(packed)
    return packed.path


@settings(ANY, max_examples=15)
@given(damage=damages())
def test_packed_records_that_are_damaged_are_named(published, tmp_path_factory, damage):
    packed = copied(published, tmp_path_factory.mktemp("damaged") / "demo")
    file = packed / "records.jsonl.xz"
    file.write_bytes(after := damage(before := file.read_bytes()))
    for call in (frames, verify):
        said = told(call, packed)[1]
        assert after == before or "records.jsonl.xz" in said or "needs a session" in said, said
    told(status, packed)


RUN = ["run", "--space", "{study}/space.yaml", "--name", "demo", "--out", "{study}/..", "--resume"]
COMMANDS = [
    ("records.jsonl", RUN),
    ("study.json", ["status", "{study}"]),
    ("records.jsonl", ["report", "{study}"]),
    ("records.jsonl", ["sync", "--tracking-uri", "sqlite:///{study}/../mlflow.db", "{study}"]),
]


@pytest.mark.parametrize(("name", "words"), COMMANDS)
def test_commands_end_with_a_sentence_before_anything_starts(study, monkeypatch, name, words):
    monkeypatch.chdir(study.parent)
    raw = (study / name).read_bytes()
    (study / name).write_bytes(raw[: len(raw) // 2] + b"\0{\n" + raw[len(raw) // 2 :])
    before = {file.name: file.read_bytes() for file in study.iterdir() if file.is_file()}
    line = [word.replace("{study}", str(study)) for word in words]
    result, said = told(lambda: CliRunner().invoke(app, line, catch_exceptions=False))
    assert name in said, result.output if result else said
    for file in {*TRUTH, name}:
        assert (study / file).read_bytes() == before[file], file
