"""Every file of a study's folder, damaged in every way, one at a time: a correct result, or an error with a way out.

Never a traceback, and never a study that begins anew as if nothing had been recorded. Without Ray: the commands' own
opening, ledger, Optuna study, cursor and tables over a small study that was killed in its middle.
"""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from analysis import load
from analysis.estimates.results import Results
from analysis.status import StatusReader
from analysis.tables.learning import hold_up
from study.cli.commands import app
from study.cli.status import efficiency_so_far, show
from study.cli.sync import sync_study
from study.designs.holdup.certificate import verify, write_certificate
from study.designs.registry import make_plan
from study.driver.conductor import Conductor
from study.driver.opening import RunOptions, is_resumed, resumed_identity
from study.driver.run import take_up
from study.errors import StudyError
from study.mirrors.mlflow_mirror import Attempt, Cursor, MlflowMirror
from study.mirrors.process import MirrorProcess
from study.records import state
from study.records.folder import StudyFolder
from study.records.lock import Owner
from study.records.log import RecordLog
from study.records.packing import pack, unpacked
from study.records.records import KINDS, TrialEnded, read_lines
from study.records.table import write_table
from tests import holdup
from tests.driven import CLUSTER, policy
from tests.needs import needs_no_root
from tests.spaces import content, spec
from tests.synthetic import make_folder
from tests.unit.test_conductor import Session

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
    cursor = Cursor(
        experiment_id="1",
        parent_run_id="p",
        offset=lines[-2].end,
        seq=lines[-2].seq + 1,
        time=lines[-2].time,
        open={started.trial: Attempt(attempt=1, run_id="r", env_steps=100, time_ms=5, runners=2)},
    )
    MlflowMirror(folder, uri).write_cursor(cursor)
    folder.mirror_log.write_text("MLflow was away\n")
    folder.optuna_journal.write_text("made anew by the mirror\n")
    gone = replace(Owner.of_this_process(), began=1.0, token="gone")
    (path / "driver.json").write_text(gone.to_text())
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
        identity = resumed_identity(unpacked(self.folder), SPACE, options)
        with self.folder.locked():
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
            mirror.write_cursor(Cursor(experiment_id="1", parent_run_id="p"))


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
    return state.ledger_of(path / "records.jsonl").rows


def status(path):
    reader = StatusReader(path)
    now = reader.read()
    show(Console(file=io.StringIO(), width=80), now, efficiency_so_far(reader))
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


def wrong(value):
    return {"surprise": 1} if isinstance(value, (list, str, int, float, type(None))) else "surprise"


def of_other_types(raw):
    """Return the JSON document, or the JSON lines, with every value of the (middle) object of another type."""
    try:
        lines = raw.splitlines()
        middle = 0 if raw.startswith(b"{\n") else len(lines) // 2
        content = orjson.loads(raw if raw.startswith(b"{\n") else lines[middle])
        damaged = orjson.dumps({name: wrong(value) for name, value in content.items()})
    except (orjson.JSONDecodeError, AttributeError, IndexError):
        return b"5"
    return damaged if raw.startswith(b"{\n") else b"\n".join([*lines[:middle], damaged, *lines[middle + 1 :], b""])


def cut_line(raw):
    """Return the content without half of its middle line, its end included."""
    lines = raw.splitlines(keepends=True)
    middle = len(lines) // 2
    return b"".join(line[: len(line) // 2] if number == middle else line for number, line in enumerate(lines))


def without_line(raw, number):
    lines = raw.splitlines(keepends=True)
    return b"".join(line for at, line in enumerate(lines) if at != number % max(len(lines), 1))


def zeros_within(raw):
    third = len(raw) // 3
    return raw[:third] + b"\0" * third + raw[2 * third :]


DAMAGES = {
    "emptied": lambda raw: b"",
    "cut to a tenth": lambda raw: raw[: len(raw) // 10],
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "cut by 5 bytes": lambda raw: raw[:-5],
    "its last line missing": lambda raw: without_line(raw, -1),
    "its first line missing": lambda raw: without_line(raw, 0),
    "a middle line cut": cut_line,
    "garbage": lambda raw: bytes(range(256)) * 4,
    "garbage line": lambda raw: raw[: raw.find(b"\n") + 1] + b"gar\xffbage\n" + raw[raw.find(b"\n") + 1 :],
    "zeros": lambda raw: b"\0" * max(len(raw), 10),
    "zeros within": zeros_within,
    "zeros behind": lambda raw: raw + b"\0" * 4096,
    "other types": of_other_types,
    "a list": lambda raw: b"[]\n",
    "a number": lambda raw: b"5\n",
    "null": lambda raw: b"null\n",
    "a text": lambda raw: b'"text"\n',
    "an object": lambda raw: b"{}\n",
    "deep": lambda raw: b"[" * 100_000,
    "a huge number": lambda raw: b"1" * 5000 + b"\n",
}
SHORT = ("emptied", "cut in half", "garbage", "zeros", "zeros behind", "other types")
"""Damages of the default run; all others are heavy, and so are most of files whose content says nothing."""
SILENT = ("space.yaml", "mirror.log", ".lock", ".mlflow-mirror.lock", ".optuna-mirror.lock", ".tensorboard-mirror.lock")


def every(names):
    return [
        pytest.param(name, damage, id=f"{name}, {damage}", marks=[] if is_short(name, damage) else [pytest.mark.heavy])
        for name in names
        for damage in DAMAGES
    ]


def is_short(name, damage):
    if name in SILENT:
        return damage == "garbage"
    return damage in (SHORT if name in TRUTH else SHORT[::2])


def damage_file(study, name, damage):
    file = study / name
    raw = file.read_bytes()
    file.write_bytes(DAMAGES[damage](raw))
    return file.read_bytes() != raw


# --- what cannot be made again ---------------------------------------------------------------------------------------

HARMLESS = {"cut by 5 bytes", "zeros behind", "its last line missing"}
"""Damages of the records' end that a kill or a power cut leaves; what was durable is all there."""


@pytest.mark.parametrize(("name", "damage"), every(TRUTH))
def test_what_cannot_be_made_again_is_refused_and_left_as_it_is(whole, study, name, damage):
    assert damage_file(study, name, damage)
    damaged = (study / name).read_bytes()
    assert_nothing_wrong_is_shown(study, whole, name)
    _, said = told(resume, study)
    if name == "records.jsonl" and damage in HARMLESS:
        assert said == ""
        return
    assert name in said, said
    assert (study / name).read_bytes() == damaged
    shutil.copy(whole / name, study / name)  # the way out: a backup
    resume(study)


def assert_nothing_wrong_is_shown(study, whole, name):
    for call in (status, frames):
        result, said = told(call, study)
        if said:
            assert name in said or "no trial" in said or "needs a session" in said, said
        elif name == "study.json":
            raise AssertionError("a damaged identity was taken for whole")
        elif call is status:
            assert result.problems or not result.counts["running"] or result.counts == status(whole).counts
            assert result.num_ended <= 3
        else:
            assert len(result[0]) <= 4


def test_all_records_of_other_types_are_refused(whole, study):
    """Each field of each kind of record, one at a time, in a file whose lines are JSON."""
    lines = (whole / "records.jsonl").read_bytes().splitlines()
    seen = set()
    for number, line in enumerate(lines):
        content = json.loads(line)
        if content["kind"] in seen:
            continue
        seen.add(content["kind"])
        for name in content:
            for value in (wrong(content[name]), [content[name]]):
                damaged = [*lines[:number], orjson.dumps(content | {name: value}), *lines[number + 1 :], b""]
                (study / "records.jsonl").write_bytes(b"\n".join(damaged))
                for call in (recorded, frames):
                    assert f"line {number + 1}" in told(call, study)[1], (content["kind"], name, value)
                result, said = told(status, study)
                assert said or result.problems, (content["kind"], name, value)
    assert seen >= {"study_opened", "trial_started", "trial_built", "iteration", "evaluation", "trial_ended"}
    assert seen <= KINDS.keys()


def test_records_that_are_gone_are_missed_by_whatever_is_left(whole, study):
    """Each witness alone: the table of trials, a policy, MLflow's cursor."""
    witnesses = {"trials.csv", "checkpoints", "mirror.json"}
    for left in witnesses:
        target = copied(whole, study.parent / left)
        (target / "records.jsonl").unlink()
        for other in witnesses - {left}:
            shutil.rmtree(target / other) if other == "checkpoints" else (target / other).unlink()
        said = told(resume, target)[1]
        assert "records.jsonl" in said, left
        assert left != "checkpoints" or "move away the folders of these trials in checkpoints/" in said  # not all
        assert not (target / "records.jsonl").exists()


def test_an_identity_that_is_gone_starts_nothing_anew(study):
    (study / "study.json").unlink()
    options = RunOptions(name="demo", out=study.parent, resume=True, or_start=True)
    assert not is_resumed(StudyFolder(study), options)
    _, said = told(StudyFolder(study).prepare)
    assert "Restore study.json from a backup" in said
    assert "Restore it from a backup" in told(status, study)[1]


# --- what is made anew -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "damage"), every(DERIVED))
def test_what_follows_from_the_records_is_made_anew(whole, study, name, damage):
    expected = frames(whole)
    damage_file(study, name, damage)
    shown, said = told(status, study)
    assert said == ""
    assert shown.counts == status(whole).counts
    for frame, other in zip(frames(study), expected, strict=True):
        assert frame.equals(other)
    resume(study)


def test_a_study_is_told_of_a_cursor_that_lies_beyond_the_records(study):
    folder = StudyFolder(study)
    uri = folder.identity().tracking_uri
    mirror = MlflowMirror(folder, uri)
    mirror.write_cursor(replace(mirror.read_cursor(), offset=10**9))
    assert MlflowMirror(folder, uri).behind == len(list(read_lines(folder.records)))


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
    if name in ("mirror.json", ".mirror.lock", "records.jsonl"):
        assert name in told(lambda: list(sync_study(StudyFolder(study))))[1]
    assert (study / name / "precious").exists()
    shutil.rmtree(study / name)
    if name in TRUTH:
        shutil.copy(whole / name, study / name)
    resume(study)


def test_a_file_in_place_of_the_policies_is_named(study):
    shutil.rmtree(study / "checkpoints")
    (study / "checkpoints").touch()
    assert "checkpoints must be a folder" in told(resume, study)[1]
    (study / "checkpoints").unlink()
    resume(study)


@pytest.mark.parametrize("damage", ["emptied", "garbage"])
def test_a_damaged_policy_disturbs_nobody(study, damage):
    for file in (study / "checkpoints").rglob("weights"):
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert told(status, study)[1] == ""
    resume(study)


@needs_no_root
@pytest.mark.parametrize("name", [*TRUTH, *DERIVED])
def test_a_file_that_may_not_be_read_is_named(study, name):
    (study / name).chmod(0)
    said = told(resume, study)[1]
    assert name in said
    assert "read" in said
    for call in (status, frames):
        said = told(call, study)[1]
        assert not said or (name in said and "Fix: " in said), said
    assert (study / name).stat().st_mode & 0o777 == 0


# --- sync ------------------------------------------------------------------------------------------------------------

SYNCED = [
    *(pytest.param(name, damage, None, id=f"{name}, {damage}") for name, damage in [("mirror.json", "other types")]),
    pytest.param("trials.csv", "garbage", None, id="trials.csv"),
    pytest.param("study.json", "other types", "study.json", id="study.json"),
    pytest.param("records.jsonl", "garbage line", "line 2", id="records.jsonl"),
    *(
        pytest.param(name, damage, None, id=f"{name}, {damage}", marks=pytest.mark.heavy)
        for name in ("mirror.json", "mirror.log", "space.yaml", ".mlflow-mirror.lock", "driver.json")
        for damage in DAMAGES
    ),
]


@pytest.mark.parametrize(("name", "damage", "refused"), SYNCED)
def test_a_sync_sends_all_or_names_the_file(study, empty_database, name, damage, refused):
    (study.parent / "mlflow.db").write_bytes(empty_database)
    identity = json.loads((study / "study.json").read_text())
    uri = f"sqlite:///{study.parent}/mlflow.db"
    (study / "study.json").write_text(json.dumps(identity | {"tracking_uri": uri}))
    damage_file(study, name, damage)
    said, error = told(lambda: list(sync_study(StudyFolder(study))))
    if refused:
        assert refused in error
    else:
        assert "records sent, 4 trials there" in said[0]


def test_a_mirror_whose_log_cannot_be_written_says_so(study):
    folder = StudyFolder(study)
    folder.mirror_log.unlink()
    folder.mirror_log.mkdir()
    assert "mirror.log" in told(lambda: MirrorProcess(MlflowMirror, folder, "sqlite:///nowhere.db"))[1]


# --- certificate -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    space = holdup.holdup_spec()
    folder = holdup.write_study(tmp_path_factory.mktemp("certified") / "demo", space, holdup.study_records(space))
    write_certificate(folder)
    write_table(folder.table, state.ledger_of(folder.records).rows.values())
    verify(folder.path)
    return folder.path


@pytest.mark.parametrize(("name", "damage"), every(("certificate.json", "certificate.md", *TRUTH)))
def test_a_certificate_with_anything_damaged_is_not_verified(certified, tmp_path, name, damage):
    target = copied(certified, tmp_path / "demo")
    assert damage_file(target, name, damage)
    said = told(verify, target)[1]
    assert str(target) in said or damage == "zeros behind"
    if name == "records.jsonl" and damage in HARMLESS:
        assert damage == "zeros behind" or "study.num_records" in said  # all is there, or all but the line of the end
        return
    assert name in said, said
    if name == "certificate.json":
        data = load.from_folder(target)
        assert hold_up(Results(data)).conclusion


@pytest.mark.parametrize("name", ["certificate.json", "certificate.md"])
def test_a_folder_in_place_of_a_certificate_is_named(certified, tmp_path, name):
    target = copied(certified, tmp_path / "demo")
    (target / name).unlink()
    (target / name).mkdir()
    assert name in told(verify, target)[1]
    assert hold_up(Results(load.from_folder(target))).title


# --- packed studies, and the commands themselves ---------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["emptied", "cut in half", "cut by 5 bytes", "garbage", "zeros", "zeros within"])
def test_packed_records_that_are_damaged_are_named(certified, tmp_path, damage):
    packed = pack(StudyFolder(certified), tmp_path / "packed").path
    write_certificate(StudyFolder(packed))
    file = packed / "records.jsonl.xz"
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    for call in (frames, verify):
        said = told(call, packed)[1]
        assert "records.jsonl.xz" in said or "needs a session" in said, said
    result, said = told(status, packed)
    assert "records.jsonl.xz" in said or result.problems or not result.num_ended


def test_a_study_whose_space_file_is_damaged_is_not_packed(study, tmp_path):
    (study / "space.yaml").write_bytes(b"\xff\xfe\0")
    assert "space.yaml" in told(lambda: pack(StudyFolder(study), tmp_path / "packed"))[1]
    assert not (tmp_path / "packed").exists()


RUN = ["run", "--space", "{study}/space.yaml", "--name", "demo", "--out", "{study}/..", "--resume"]
COMMANDS = [
    ("study.json", "zeros", RUN),
    ("records.jsonl", "emptied", RUN),
    ("records.jsonl", "other types", RUN),
    ("space.yaml", "cut in half", RUN),
    ("study.json", "zeros", ["status", "{study}"]),
    ("records.jsonl", "a middle line cut", ["report", "{study}"]),
    ("records.jsonl", "garbage line", ["sync", "--tracking-uri", "sqlite:///{study}/../mlflow.db", "{study}"]),
    ("records.jsonl", "other types", ["importance", "{study}"]),
]


@pytest.mark.parametrize(("name", "damage", "words"), COMMANDS)
def test_commands_end_with_a_sentence_before_anything_starts(study, monkeypatch, name, damage, words):
    monkeypatch.chdir(study.parent)
    damage_file(study, name, damage)
    before = {file.name: file.read_bytes() for file in study.iterdir() if file.is_file()}
    line = [word.replace("{study}", str(study)) for word in words]
    result, said = told(lambda: CliRunner().invoke(app, line, catch_exceptions=False))
    assert name in said, result.output if result else said
    for file in {*TRUTH, name}:
        assert (study / file).read_bytes() == before[file], file
