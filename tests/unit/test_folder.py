"""What was done to a study's folder, and what is said: a correct result, or an error with a way out.

Never a traceback, never a study that begins anew as if nothing had been recorded, and nothing that is not the study's
own is touched. Without Ray: the commands' own opening, ledger, cursor and tables over a small study.
"""

import json
import lzma
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from analysis import load
from analysis.status import read_status
from study.cli.display import status_text
from study.designs.holdup.certificate import verify, write_certificate
from study.driver.opening import RunOptions, is_resumed, resumed_identity, take_up
from study.errors import RecordError, StudyError
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.files import held
from study.records.folder import StudyFolder, StudyIdentity, pack, unpack_policy
from study.records.ledger import ledger_of
from study.records.records import RecordLog, TrialEnded, read_lines
from tests import holdup, synthetic
from tests.driven import Session, policy
from tests.spaces import BASE, spec, with_changes
from tests.synthetic import make_folder
from tests.values import replace

IDENTITY = StudyIdentity(
    format=1, study_id="a", name="n", created=0.0, tracking_uri="sqlite:////x", space="s", spec={}, digest="d"
)


@pytest.fixture
def folder(tmp_path):
    return StudyFolder(tmp_path / "studies" / "n")


@pytest.mark.parametrize("file", ["chapter1.tex", "records.jsonl", "space.yaml"])
def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path, file):
    (tmp_path / file).write_text("precious")
    with pytest.raises(RecordError, match="needs an empty folder"):
        StudyFolder(tmp_path).prepare()
    assert (tmp_path / file).read_text() == "precious"


def test_forgetting_a_first_start_removes_its_own_files_only(folder, tmp_path, monkeypatch):
    folder.prepare()
    (folder.path / ".study.json.0a1b2c3d.draft").write_text("{")
    folder.prepare()  # after a kill before the identity was written
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: os.strerror(28) and (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(RecordError, match="full"):
            folder.write(IDENTITY, "space")
    folder.write(IDENTITY, "space")
    folder.make_tensorboard()
    mine = ["mine.txt", ".space.yaml.swp"]
    for name in mine:
        (folder.path / name).write_text("precious")
    folder.forget()
    assert {entry.name for entry in folder.path.iterdir()} == set(mine)
    for name in mine:
        (folder.path / name).unlink()
    folder.forget()
    assert not (tmp_path / "studies").exists()


def test_an_identity_is_its_owner_s_alone_and_a_resume_writes_what_a_kill_left_out(folder):
    folder.path.mkdir(parents=True)
    folder.path.chmod(0o755)  # it was open to others
    folder.prepare()
    folder.write(IDENTITY, "")  # a kill before the space file
    assert folder.path.stat().st_mode & 0o077 == folder.identity_file.stat().st_mode & 0o077 == 0
    folder.write(changed := replace(IDENTITY, tracking_uri="sqlite:////y"), "space")
    folder.write(changed, "another")
    assert (folder.identity(), folder.space_file.read_text()) == (changed, "space")
    folder.identity_file.write_text(json.dumps(json.loads(folder.identity_file.read_text()) | {"format": 2, "ray": 3}))
    with pytest.raises(RecordError, match=r"of format 1, got format 2\. Fix: Use the version"):
        folder.identity()


def test_a_power_cut_takes_no_name_of_what_was_written(folder, monkeypatch):
    """A file that is on the disk is lost where its name in the folder is not."""
    names, sync = {}, os.fsync

    def synced(number):
        place = Path(f"/proc/self/fd/{number}").readlink()
        if place.is_dir():
            names[place] = {entry.name for entry in place.iterdir()}
        sync(number)

    monkeypatch.setattr(os, "fsync", synced)
    folder.prepare()
    folder.write(IDENTITY, "space")
    RecordLog(folder.records).close()
    unpack_policy(policy({"weights": b"abc"}), folder.checkpoint(0))
    assert folder.path.name in names[folder.path.parent]
    assert names[folder.path] == {entry.name for entry in folder.path.iterdir()}
    assert names[folder.checkpoints] == {"trial_00000"}


def test_a_packed_study_has_the_same_records_but_for_paths_and_can_go_on_once_it_is_unpacked(tmp_path):
    study = synthetic.make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/secret/mlflow.db")
    words = ["/home/someone/run_study.py", "--out", "/scratch/x/studies", f"--tracking-uri=sqlite:///{tmp_path}/m.db"]
    begun = synthetic.opened()
    begun = replace(begun, provenance={**begun.provenance, "command": [*words, "30m"]})
    synthetic.append(study, begun, *synthetic.whole_trial(0), synthetic.closed())
    packed = pack(study, tmp_path / "copy")
    before, after = (list(read_lines(each.records)) for each in (study, packed))
    assert [line.time for line in before] == [line.time for line in after]
    assert [line.record for line in before[1:]] == [line.record for line in after[1:]]
    command = ["run_study.py", "--out", "studies", "--tracking-uri=sqlite:m.db", "30m"]
    assert after[0].record.provenance["command"] == command
    assert packed.identity().digest == study.identity().digest
    raw = lzma.decompress(packed.packed_records.read_bytes())
    assert not any(word in raw.decode() + packed.identity_file.read_text() for word in ("someone", "scratch", "secret"))
    with pytest.raises(RecordError, match=r"can be read only\. Fix: Copy the folder"):
        packed.check_unpacked()
    with pytest.raises(RecordError, match="needs an empty folder"):
        pack(study, tmp_path / "copy")
    packed.packed_records.unlink()
    (packed.path / "records.jsonl").write_bytes(raw)
    packed.check_unpacked()
    with RecordLog(packed.records) as log:
        assert log.append(synthetic.opened(2)).seq == len(before)
    secret = {**study.identity().spec, "config_kwargs": {"hub": {"hf_token": "s3cret"}}}
    study.write(replace(study.identity(), spec=secret), "")
    with pytest.raises(RecordError, match="must hold no secret"):
        pack(study, tmp_path / "secret")
    assert not (tmp_path / "secret").exists()


# --- any file, damaged in any way ------------------------------------------------------------------------------------

SPACE = spec(execution="real")
TRUTH = ("study.json", "records.jsonl")
"""What cannot be made again."""
DERIVED = ("space.yaml", "optuna.journal", "mirror.json", "mirror.log", "trials.csv", ".lock", ".mirror.lock")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two trials have finished, one has failed, one runs as the driver is killed; two are left."""
    path = tmp_path_factory.mktemp("whole") / "demo"
    uri = f"sqlite:///{path.parent}/mlflow.db"
    folder = make_folder(path, uri, SPACE, text=json.dumps(with_changes(BASE, execution="real")))  # JSON is YAML
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
        assert session.run().reason == "complete"
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
    status_text(read_status(path))


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
    at, until = draw(st.floats(0, 0.999)), draw(st.floats(0, 1))
    more, value, times = draw(st.binary(max_size=40)), draw(st.sampled_from(OTHERS)), draw(st.sampled_from([0, 2]))

    def spliced(raw: bytes) -> bytes:
        """Cut, without its beginning, something else, or another part within."""
        begin = int(at * (len(raw) + 1))
        return raw[:begin] + more + raw[max(int(until * (len(raw) + 1)), begin) :]

    def repeated(raw: bytes) -> bytes:
        lines = raw.splitlines(keepends=True)
        number = int(at * len(lines))
        return b"".join([*lines[:number], *lines[number : number + 1] * times, *lines[number + 1 :]])

    return draw(
        st.sampled_from(
            [
                spliced,
                repeated,
                lambda raw: raw[: int(at * (len(raw) + 1))],
                lambda raw: raw + b"\0" * 4096,
                lambda raw: with_other_value(raw, at, value),
                lambda raw: b"[" * 100_000,
                lambda raw: b"1" * 5000 + b"\n",
            ]
        )
    )


ANY = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


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
    shutil.copytree(whole, study := tmp_path_factory.mktemp("damaged") / "demo")
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
    shutil.copytree(whole, study := tmp_path / "demo")
    (study / "study.json").unlink()
    assert not is_resumed(StudyFolder(study), RunOptions(name="demo", out=study.parent, resume_or_start=True))
    assert "restore its study.json" in told(StudyFolder(study).prepare)
    assert "Restore it from a backup" in told(status, study)


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    space = holdup.holdup_spec()
    folder = holdup.write_study(tmp_path_factory.mktemp("certified") / "demo", space)
    write_certificate(folder)
    packed = pack(folder, Path(tmp_path_factory.mktemp("packed")) / "demo")
    write_certificate(packed)
    verify(packed.path)
    return packed.path


@settings(ANY, max_examples=20)
@given(name=st.sampled_from(["certificate.json", "certificate.md", "study.json", "records.jsonl.xz"]), damage=damages())
def test_a_published_study_with_anything_damaged_is_not_verified(certified, tmp_path_factory, name, damage):
    shutil.copytree(certified, target := tmp_path_factory.mktemp("damaged") / "demo")
    before = (target / name).read_bytes()
    (target / name).write_bytes(after := damage(before))
    told(frames, target)
    if not told(verify, target) and after.rstrip(b"\0") != before:  # the same content, written in another way
        if name == "study.json":  # a value that is the default may be gone
            assert StudyFolder(target).identity().parse() == StudyFolder(certified).identity().parse()
        else:
            assert json.loads(after) == json.loads(before)
