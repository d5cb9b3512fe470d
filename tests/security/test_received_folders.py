"""A study folder of somebody else does no harm to who reads it: nothing of it runs, and nothing leads out of it."""

import contextlib
import json
import os
import pickle
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analysis.load import open_study
from analysis.opened import Study
from analysis.report import make_report, write
from analysis.status import read_status
from study.cli.commands import app, sync
from study.cli.results import report
from study.designs.holdup.certificate import make_certificate, verify
from study.driver.opening import RunOptions, new_identity, resumed_identity
from study.errors import ClusterError, RecordError, SpaceError, StudyError
from study.evaluating.playing import evaluate_policy, find_policy, random_policy
from study.exporting.script import trial_as_script, trial_of
from study.mirrors.mlflow_mirror import identity_text
from study.mirrors.tracking_uri import ask_mlflow, asked_uri
from study.records.files import check_own, write_atomically
from study.records.folder import StudyFolder, pack
from study.trial.engine.envs.probing import probe
from tests.e2e.commands import ROOT
from tests.e2e.commands import run as run_command
from tests.integration.mlflow_tools import answering_server
from tests.security.bombs import bomb, plant
from tests.spaces import spec
from tests.synthetic import append, closed, make_folder, opened, started, whole_trial
from tests.values import replace

STRANGER = 65534
"""User id of `nobody`."""
EXAMPLE = ROOT / "analysis" / "example_study"


@pytest.fixture
def received(tmp_path) -> StudyFolder:
    """A study as somebody gets it who unpacks an archive: all of its files belong to them."""
    folder = make_folder(tmp_path / "received", f"sqlite:///{tmp_path}/mlflow.db")
    append(folder, opened(), *whole_trial(0), *whole_trial(1, "failed"), closed())
    return folder


@pytest.fixture
def stranger(monkeypatch):
    """A stranger's server, while this user's environment holds a token; its address, and what it was asked."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "PLANTED-token")
    with answering_server(404, b"") as answering:
        yield answering


def renamed(folder: StudyFolder, **changes: object) -> None:
    content = json.loads(folder.identity_file.read_text())
    folder.identity_file.write_text(json.dumps(content | changes))


COMMANDS = {
    "report": lambda folder: report(str(folder.path), format_="csv"),
    "pack": lambda folder: pack(folder, folder.path.parent / "packed"),
    "sync": lambda folder: sync(folder.path),
    "status": lambda folder: read_status(folder.path),
    "certificate": make_certificate,
    "verify": lambda folder: verify(folder.path),
    "export": lambda folder: trial_as_script(trial_of(folder, 0)),
    "evaluate": lambda folder: evaluate_policy(find_policy(folder.path, 0)),
    "random": lambda folder: evaluate_policy(random_policy(folder.path)),
    "open_study": lambda folder: open_study(folder.path),
    "resume": lambda folder: resumed_identity(folder, spec(), RunOptions(name="demo", out=folder.path.parent)),
    "identity": lambda folder: folder.identity(),
}


def link_at(place, make=Path.symlink_to):
    """Let a folder have a link that leads outside in a place, or what `make` makes there."""

    def made(folder, outside, _):
        (folder.path / place).parent.mkdir(exist_ok=True)
        (folder.path / place).unlink(missing_ok=True)
        make(folder.path / place, outside)

    return made


def pipe(file, _):
    os.mkfifo(file)


def open_to_others(folder, outside, uri):
    module("elsewhere:Env")(folder)
    renamed(folder, tracking_uri=uri)
    folder.table.chmod(0o666)


def module(name):
    """Let a folder name an environment in a module, and hold one of that name."""

    def make(folder, *_):
        space = json.loads(folder.identity_file.read_text())["spec"]
        space["environment"]["id"] = name.format(folder=folder.path.name)
        renamed(folder, spec=space)
        (folder.path / "attack.py").write_text("raise SystemExit('the module ran')")

    return make


def odd(**change):
    return lambda folder, *_: renamed(folder, **change)


NO_CODE = "code that lies in a study's folder is not run, got"
REFUSED = [
    (link_at("space.yaml"), set(COMMANDS) - {"identity", "random"}, r"got a symbolic link\. Fix: Remove it"),
    (link_at("report/tables"), {"report"}, "got a symbolic link"),
    (link_at(".mlflow-mirror.lock"), {"status"}, "got a symbolic link"),
    (link_at("clips/best.json", pipe), {"status", "resume"}, "must be a file or a folder, got a pipe"),
    (open_to_others, {"sync", "random"}, r"trials\.csv: must not be writable by others"),
    (module("attack:Env"), {"evaluate", "random"}, NO_CODE),
    (module("{folder}.attack:Env"), {"evaluate", "random"}, NO_CODE),
    *((odd(name=name), {"identity"}, "got a damaged") for name in ("..", "x; touch PWN", "-rf", "a\n", "a" * 101)),
    *((odd(study_id=value), {"identity"}, "got a damaged") for value in ("", "x' or '1'='1", "../x")),
]


@pytest.mark.parametrize(
    ("make", "command", "match"), [(make, each, match) for make, some, match in REFUSED for each in sorted(some)]
)
def test_a_folder_that_would_lead_elsewhere_is_refused_before_anything_is_read_sent_or_run(
    received, stranger, tmp_path, monkeypatch, make, command, match
):
    (outside := tmp_path / "outside").write_text("private")
    make(received, outside, stranger[0])
    if match == NO_CODE:
        monkeypatch.chdir(tmp_path)
        for place in (received.path, tmp_path):
            monkeypatch.syspath_prepend(place)
        monkeypatch.setattr("study.evaluating.playing.ChosenPolicy.check_owner", lambda self: None)
    with pytest.raises(RecordError, match=match):
        COMMANDS[command](received)
    assert outside.read_text() == "private"
    assert not (tmp_path / "packed").exists()
    assert stranger[1] == []


def test_a_script_in_a_study_s_folder_is_not_run(received, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for config in ("received/my_train.py:make", str(received.path / "lib" / "my_train.py"), "received.train:make"):
        with pytest.raises(RecordError, match=NO_CODE):
            received.check_code([config])
    received.check_code(["my_train.py", "my_module:Env", "studies/other/my_train.py"])


def test_a_space_calls_nothing_but_classes_of_environments(tmp_path):
    for maker, kwargs in {
        "os:system": {"command": f"touch {tmp_path}/mark"},
        "subprocess:Popen": {"args": ["touch", f"{tmp_path}/mark"]},
        "builtins:open": {"file": f"{tmp_path}/mark", "mode": "w"},
    }.items():
        with pytest.raises(SpaceError, match=r"must make a gymnasium\.Env"):
            probe(spec(environment__id=maker, environment__kwargs=kwargs).environment, "space.yaml")
    assert not (tmp_path / "mark").exists()


def test_commands_and_folders_hold_whatever_name_somebody_chose(tmp_path):
    folder = make_folder(tmp_path / "x'; touch PWN", f"sqlite:///{tmp_path}/mlflow.db")
    append(folder, opened(), *whole_trial(0), started(1))
    facts = (*read_status(folder.path).advice, *Study(open_study(folder.path)).findings)
    named = [words for fact in facts if "PWN" in str(words := shlex.split(fact.command))]
    assert named
    for words in named:
        assert words[0] == "python"
        assert any(word == folder.path.name or word.startswith(str(folder.path)) for word in words), words


def test_the_person_s_own_links_are_followed_and_writing_replaces_a_link(received, tmp_path):
    (tmp_path / "way").symlink_to(received.path)
    (tmp_path / "big").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "big")
    report(str(tmp_path / "way"), format_="csv", out=tmp_path / "out")
    assert list((tmp_path / "big" / "tables").iterdir())
    (outside := tmp_path / ".bashrc").write_text("mine")
    for name in ("file", "big/report.html"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(outside)
    write_atomically(tmp_path / "file", "new")
    write(make_report(Study(open_study(received.path))), tmp_path / "out")
    assert (tmp_path / "file").read_text() == "new"
    assert "<html" in (tmp_path / "big" / "report.html").read_text()
    (started_in := StudyFolder(tmp_path / "n")).path.mkdir()
    started_in.space_file.symlink_to(outside)
    with pytest.raises(RecordError, match="symbolic link"):
        started_in.prepare()
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("command", ["report", "status", "pack", "evaluate"])
def test_a_server_that_only_a_folder_names_is_not_contacted(received, stranger, command):
    renamed(received, tracking_uri=stranger[0])
    with contextlib.nullcontext() if command != "evaluate" else pytest.raises(StudyError):
        COMMANDS[command](received)
    assert stranger[1] == []


def test_a_study_goes_to_the_stores_that_the_person_names_and_stays_there(received, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/theirs.db")
    assert new_identity(spec(), RunOptions(name="demo")).tracking_uri == f"sqlite:///{tmp_path}/theirs.db"
    assert asked_uri("sqlite:///named.db") == "sqlite:///named.db"
    assert resumed_identity(received, spec(), RunOptions(name="demo", resume=True)) == received.identity()
    options = RunOptions(name="demo", resume=True, tracking_uri=f"sqlite:///{tmp_path}/mine.db")
    identity = resumed_identity(received, spec(), options)
    assert identity == replace(received.identity(), tracking_uri=options.tracking_uri)
    received.write(identity, "")
    assert resumed_identity(received, spec(), RunOptions(name="demo", resume=True)) == received.identity() == identity
    assert "cret" not in identity_text(replace(identity, tracking_uri="postgresql://me:se/cret@db/mlflow"))


def test_mlflow_s_client_takes_no_credentials_to_another_host(stranger):
    refused = pytest.raises(ClusterError, match="It is a redirect, which is not followed")
    with answering_server(307, b"", Location=stranger[0]) as (named, asked), refused:
        ask_mlflow(named)
    assert (len(asked), stranger[1]) == (1, [])


def test_no_module_of_ours_restores_a_checkpoint_which_would_run_the_content_of_a_file():
    """What else would is among the rules of ruff: `banned-api` in pyproject.toml."""
    restores = re.compile(r"\.(from_checkpoint|restore_from_path|load_model)\(")
    files = [file for package in ("study", "analysis") for file in (ROOT / package).rglob("*.py")]
    assert [file for file in files if restores.search(file.read_text())] == []


@pytest.fixture
def published(tmp_path) -> Path:
    """A published study, called as a package of ours, with bombs in it, which go off."""
    folder, mark = tmp_path / "study", tmp_path / "mark"
    shutil.copytree(EXAMPLE, folder)
    pickle.loads(bomb(mark)).close()
    mark.unlink()
    plant(folder, mark)
    return folder


def refused(*words: object) -> str:
    """Return the error of a command, run in this process."""
    result = CliRunner().invoke(app, list(map(str, words)))
    assert isinstance(result.exception, StudyError), result.output
    return str(result.exception)


def test_a_stranger_s_study_is_read_and_neither_resumed_nor_evaluated_and_its_bombs_stay_cold(
    published, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert "must hold the numbers of a policy" in refused("evaluate", published, "--trial", 0)  # in one's own folder
    if os.getuid() == 0:
        for each in (published, *published.rglob("*")):
            os.chown(each, STRANGER, STRANGER, follow_symlinks=False)
        assert "must belong to you" in refused("evaluate", published, "--trial", 0)
        shutil.copy(published / "space.yaml", tmp_path / "study.yaml")
        assert "must belong to you" in refused("run", "--space", "study.yaml", "--resume", "--out", ".")
    for words in (["certificate", "verify"], ["export", "--scale", "46"], ["report", "--format", "csv"], ["status"]):
        result = CliRunner().invoke(app, [*words, str(published)])
        assert result.exit_code == 0, result.output
    for program in (["-m", "study", "status", "study"], [str(ROOT / "run_study.py"), "--help"]):
        assert run_command([sys.executable, "-P", *program], tmp_path).stderr == ""
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["", "trials.csv"])
def test_a_study_that_others_own_or_can_change_is_not_trusted(received, tmp_path, name):
    (place := received.path / name).chmod(0o777)
    with pytest.raises(RecordError, match=r"must not be writable by others\. Fix: Run `chmod go-w"):
        check_own(received.path)
    place.chmod(0o700)
    (tmp_path / "link").symlink_to(received.path)
    if os.getuid() == 0:
        os.chown(place, STRANGER, -1)
        for way in (received.path, tmp_path / "link"):
            with pytest.raises(RecordError, match=r"must belong to you.*Fix: Copy the"):
                check_own(way)


@pytest.mark.skipif(os.getuid() != 0, reason="files of another user can only be made by root")
def test_what_a_group_may_write_is_trusted_only_where_the_group_is_the_user_s_own(received):
    received.table.chmod(0o600)
    received.path.chmod(0o770)
    os.chown(received.path, -1, 0)  # the group `root` of the user `root`
    check_own(received.path)
    os.chown(received.path, -1, STRANGER)
    with pytest.raises(RecordError, match="must not be writable by others"):
        check_own(received.path)
