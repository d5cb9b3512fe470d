"""T11 says what the certificate says, or what is missing for one."""

import json
from dataclasses import replace

import pytest

from analysis.estimates.results import Results
from analysis.load import from_folder
from analysis.opened import Study
from analysis.tables.learning import hold_up
from study.designs.holdup.certificate import make_certificate
from tests import holdup
from tests.unit.tables_data import amdahl, study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = holdup.holdup_spec()
    return holdup.write_study(tmp_path_factory.mktemp("study") / "demo", spec, holdup.study_records(spec))


@pytest.fixture(scope="module")
def data(folder):
    return from_folder(folder.path)


@pytest.fixture(scope="module")
def table(data):
    return hold_up(Results(data))


def test_the_arms_are_those_of_the_certificate(folder, table):
    certificate = make_certificate(folder)
    frame = table.frame
    assert not frame["arm"].str.contains("winner|@|_|folded").any()
    assert frame["num_env_runners"].tolist() == [arm["scale"] for arm in certificate["arms"].values()]
    for shown, arm in zip(frame.index, certificate["arms"].values(), strict=True):
        assert frame.loc[shown, "arm"].endswith(", one RLlib runner with all environments") == arm["folded"]
        assert frame.loc[shown, ["score", "score_low", "score_high"]].tolist() == pytest.approx(
            [arm["score"]["value"], arm["score"]["low"], arm["score"]["high"]]
        )
        counts = ["n", "n_failed", "n_censored"]
        assert frame.loc[shown, counts].tolist() == [arm[name] for name in counts]
    assert table.n == sum(arm["n"] for arm in certificate["arms"].values())


def test_the_verdict_is_the_conclusion_and_its_laws_are_notes(folder, table):
    verdict = make_certificate(folder)["verdict"]
    assert table.conclusion.startswith(f"At 6 runners the chosen setting {verdict['sentence']}. Its mean score less")
    assert ", ∞), n=13." in table.conclusion  # a lower bound: one-sided; the small scale needs no second half
    laws = [note for note in table.notes if note.startswith(("kept: ", "BROKEN: ", "not judged: "))]
    assert len(laws) == len(verdict["checks"])
    assert all(check["law"] in law for check, law in zip(verdict["checks"].values(), laws, strict=True))


def test_no_number_of_the_table_stands_without_interval_or_n(table):
    assert "1,200 (n=8, no interval)" in table.to_markdown()


def test_a_written_certificate_is_read_and_not_made_again(folder, data, tmp_path):
    certificate = make_certificate(folder)
    certificate["verdict"]["sentence"] = "was read from the file"
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    assert (
        "the chosen setting was read from the file" in hold_up(Results(replace(data, source=str(tmp_path)))).conclusion
    )


def test_a_study_that_is_not_confirmed_says_how_to_go_on(tmp_path):
    spec = holdup.holdup_spec()
    records = holdup.study_records(spec)
    begun = holdup.write_study(tmp_path / "begun", spec, records[: len(records) // 4])
    table = hold_up(Results(from_folder(begun.path)))
    assert table.empty
    assert "a certificate needs a confirmed study, got one at the stage" in table.conclusion
    assert "--resume" in table.conclusion


def test_a_damaged_certificate_is_told(data, tmp_path):
    (tmp_path / "certificate.json").write_text('{"verdict": ')
    assert hold_up(Results(replace(data, source=str(tmp_path)))).conclusion.startswith("No certificate. ")


@pytest.mark.parametrize("content", ["{}", "[]", '{"verdict": 1}'])
def test_a_damaged_certificate_costs_neither_estimates_nor_answer(data, tmp_path, content):
    (tmp_path / "certificate.json").write_text(content)
    opened = Study(replace(data, source=str(tmp_path)))
    assert "got a damaged file" in opened.table("certificate").conclusion
    assert "score" in set(opened.estimates()["quantity"])
    (missing,) = opened.answer().unknown
    assert missing.text == "whether a setting holds up: certificate.json is damaged."
    assert missing.command.startswith("python -m study certificate write ")


def test_a_complete_study_without_its_records_is_not_called_unfinished(data):
    answer = Study(replace(data, source="sqlite:///mlflow.db")).answer()
    ended = len(data.runs)
    assert answer.sentence.startswith(f"No answer yet: {ended} of {ended} trials have ended.")
    assert "made from the records" in answer.unknown[0].text


def test_other_studies_have_none():
    assert "asks for no setting that holds up" in hold_up(Results(study(amdahl((1,))))).conclusion


def test_mlflow_holds_no_records(data):
    assert "read the study from its folder" in hold_up(Results(replace(data, source="sqlite:///mlflow.db"))).conclusion
