"""Every file of a study's folder, damaged in every way, one at a time: a correct result, or an error with a way out.

Never a traceback, and never a study that begins anew as if nothing had been recorded. Without Ray: the commands' own
opening, ledger, cursor and tables over a small study that was killed in its middle.
"""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from analysis import load
from analysis.status import read_status
from study.cli.display import show
from study.designs.holdup.certificate import verify, write_certificate
from study.driver.opening import RunOptions, is_resumed, resumed_identity, take_up
from study.errors import StudyError
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.derived import pack
from study.records.files import held
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.records.records import TrialEnded, read_lines
from tests import holdup
from tests.driven import Session, policy
from tests.spaces import content, spec
from tests.synthetic import make_folder

SPACE = spec(execution="real")
TRUTH = ("study.json", "records.jsonl")
"""What cannot be made again."""
DERIVED = ("space.yaml", "optuna.journal", "mirror.json", "mirror.log", "trials.csv", ".lock", ".mirror.lock")


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
    session.iterate(conductor.next_trial().trial, 1)
    conductor.write_table()
    session.log.close()
    lines = list(read_lines(folder.records))
    MlflowMirror(folder).note(experiment_id="1", parent_run_id="p", offset=lines[-2].end, seq=lines[-2].seq + 1)
    for name in ("mirror.log", "optuna.journal", *(name for name in DERIVED if name.startswith("."))):
        (path / name).write_text("made anew\n")
    assert {file.name for file in path.iterdir()} == {*TRUTH, *DERIVED, "checkpoints"}
    return path


def copied(source, target):
    shutil.copytree(source, target)
    target.chmod(0o700)
    return target


def resume(path):
    """Resume a study to its end, as a driver does; fails where anything is lost, doubled, or asked anew."""
    options = RunOptions(name=path.name, out=path.parent, resume=True, space="space.yaml")
    folder = StudyFolder(path)
    assert is_resumed(folder, options)
    resumed_identity(folder, SPACE, options)
    with held(path):
        before = take_up(SPACE, folder)[1].rows
        folder.mirror_log.open("ab").close()
        session = Session(path, SPACE)
        assert session.run_all().reason == "complete"
        session.conductor.write_table()
    after = ledger_of(folder.records).rows
    ends = [line.record for line in read_lines(folder.records) if isinstance(line.record, TrialEnded)]
    assert sorted(end.trial for end in ends if end.status != "interrupted") == list(range(6))
    for number, row in before.items():
        if row.ended:
            assert after[number] == row, "a trial that had ended was run again"
        else:
            assert (after[number].attempt, after[number].setting) == (row.attempt + 1, row.setting)
    assert load.from_folder(path).runs["trial"].tolist() == list(range(6))
    assert len((path / "trials.csv").read_text().splitlines()) == 7


def status(path):
    show(Console(file=io.StringIO(), width=80), read_status(path))


def frames(path):
    data = load.from_folder(path)
    data.iterations()
    data.evaluations()


def told(call, *arguments):
    """Return what the error of a call says, nothing where there is none; every other exception fails the test."""
    try:
        call(*arguments)
    except StudyError as error:
        assert "Fix: " in str(error), error
        return str(error)
    return ""


# --- damage ----------------------------------------------------------------------------------------------------------

OTHERS = [None, True, -1, 2**60, 0.5, "surprise", [], {}, {"surprise": 1}, [[[]]]]
"""Values of every type."""


def with_other_value(raw: bytes, at: float, value: object) -> bytes:
    """Return JSON, or JSON lines, in which one value of an object has become another."""
    lines = raw.splitlines(keepends=True) if raw.startswith(b'{"schema"') else [raw]
    number = int(at * len(lines))
    try:
        content = orjson.loads(lines[number])
        content[list(content)[int(at * 7919) % len(content)]] = value
    except (orjson.JSONDecodeError, AttributeError, IndexError, TypeError, ZeroDivisionError):
        return orjson.dumps(value)
    lines[number] = orjson.dumps(content) + b"\n"
    return b"".join(lines)


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw what becomes of the content of a file."""
    at, more, value = draw(st.floats(0, 0.999)), draw(st.binary(min_size=1, max_size=40)), draw(st.sampled_from(OTHERS))
    lost, times = draw(st.integers(0, 99)), draw(st.sampled_from([0, 2]))

    def replaced(raw: bytes) -> bytes:
        place = int(at * (len(raw) + 1))
        return raw[:place] + more + raw[place + lost :]

    def repeated(raw: bytes) -> bytes:
        lines = raw.splitlines(keepends=True)
        number = int(at * len(lines))
        return b"".join([*lines[:number], *lines[number : number + 1] * times, *lines[number + 1 :]])

    ways: dict[str, Callable[[bytes], bytes]] = {
        "cut": lambda raw: raw[: int(at * (len(raw) + 1))],
        "its beginning lost": lambda raw: raw[int(at * (len(raw) + 1)) :],
        "replaced": replaced,
        "zeros behind": lambda raw: raw + b"\0" * 4096,
        "a line lost or doubled": repeated,
        "another value": lambda raw: with_other_value(raw, at, value),
        "something else": lambda raw: more,
        "deep": lambda raw: b"[" * 100_000,
        "a huge number": lambda raw: b"1" * 5000 + b"\n",
    }
    return ways[draw(st.sampled_from(sorted(ways)))]


ANY = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def a_folder(_: bytes) -> None:
    """Stand for a folder in the place of the file."""


@ANY
@given(name=st.one_of(st.sampled_from(TRUTH), st.sampled_from(DERIVED)), damage=damages())
@example(name="records.jsonl", damage=a_folder)
@example(name="study.json", damage=a_folder)
@example(name=".lock", damage=a_folder)
def test_whatever_is_damaged_the_truth_is_refused_and_left_alone_and_the_rest_made_anew(
    whole, tmp_path_factory, name, damage
):
    study = copied(whole, tmp_path_factory.mktemp("damaged") / "demo")
    file, before, after = study / name, (whole / name).read_bytes(), damage((whole / name).read_bytes())
    if after is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(after)
    for call in (status, frames):
        said = told(call, study)
        assert not said or str(study) in said
    said = told(resume, study)
    if said:
        assert name in TRUTH or after is None
        assert str(study) in said
        assert file.is_dir() if after is None else file.read_bytes() == after
        shutil.rmtree(file) if after is None else file.unlink()
        shutil.copy(whole / name, file)  # the way out: a backup
        resume(study)
    elif name == "records.jsonl" and after.count(b"\n") == before.count(b"\n"):
        return  # another value of the right type, perhaps: nobody can tell
    elif name == "records.jsonl":
        assert before.startswith(after.rstrip(b"\0")), "only what a kill or a power cut leaves is taken for whole"
    elif name == "study.json":  # a date, or the name of a file
        now, then = orjson.loads(after), orjson.loads(before)
        assert (now["spec"], now["digest"]) == (then["spec"], then["digest"])
    kept = tmp_path_factory.mktemp("kept") / "records.jsonl"
    kept.write_bytes(after if name == kept.name and not said else (whole / kept.name).read_bytes())
    ended = {number: row for number, row in ledger_of(kept).rows.items() if row.ended}
    assert {number: ledger_of(study / "records.jsonl").rows[number] for number in ended} == ended


def test_an_identity_that_is_gone_starts_nothing_anew(whole, tmp_path):
    study = copied(whole, tmp_path / "demo")
    (study / "study.json").unlink()
    assert not is_resumed(StudyFolder(study), RunOptions(name="demo", out=study.parent, resume_or_start=True))
    assert "Restore study.json from a backup" in told(StudyFolder(study).prepare)
    assert "Restore it from a backup" in told(status, study)


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    space = holdup.holdup_spec()
    folder = holdup.write_study(tmp_path_factory.mktemp("certified") / "demo", space, holdup.study_records(space))
    write_certificate(folder)
    packed = pack(folder, Path(tmp_path_factory.mktemp("packed")) / "demo")
    write_certificate(packed)
    verify(packed.path)
    return packed.path


@settings(ANY, max_examples=20)
@given(name=st.sampled_from(["certificate.json", "certificate.md", "study.json", "records.jsonl.xz"]), damage=damages())
def test_a_published_study_with_anything_damaged_is_not_verified(certified, tmp_path_factory, name, damage):
    target = copied(certified, tmp_path_factory.mktemp("damaged") / "demo")
    before = (target / name).read_bytes()
    (target / name).write_bytes(after := damage(before))
    told(frames, target)
    if not told(verify, target) and after.rstrip(b"\0") != before:  # the same content, written in another way
        if name == "study.json":  # a value that is the default may be gone
            assert StudyFolder(target).identity().parse() == StudyFolder(certified).identity().parse()
        else:
            assert json.loads(after) == json.loads(before)
