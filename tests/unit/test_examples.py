"""The recorded studies that come with the project can be read, and say what the README says of them."""

import json
import re
from pathlib import Path

import pytest

from study.records.folder import StudyFolder
from study.statistics import mean_interval
from tests.examples import example

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
EXAMPLES = sorted(folder.name for folder in ANALYSIS.glob("example_*"))
PROTOCOL = (ANALYSIS.parent / "study" / "designs" / "holdup" / "README.md").read_text()


def test_the_table_is_complete():
    frame = example("example_table").trials
    assert len(frame) == 24 * 24 * 2
    assert set(frame["status"]) == {"finished"}
    assert set(frame["execution"]) == {"emulated"}


@pytest.mark.parametrize(("name", "mark"), [("example_study", "holdup"), ("example_lunarlander", "lunarlander")])
def test_the_arms_in_the_readme_are_those_of_the_certificate(name, mark):
    page = StudyFolder(ANALYSIS / name).certificate_page.read_text()
    arms = [line.split(" | ") for line in page.splitlines() if line.startswith(("| winner", "| best_small", "| naive"))]
    finals = [cells[6] for cells in arms if cells[1].startswith("`")]
    assert len(finals) == 8
    (section,) = re.findall(rf"<!-- {mark}-result -->\n(.*?)<!-- /{mark}-result -->", PROTOCOL, flags=re.DOTALL)
    for final in finals:
        assert f"| {final} |" in section, final


def test_the_env_steps_saved_in_the_readme_are_those_of_the_certificate():
    content = json.loads(StudyFolder(ANALYSIS / "example_study").certificate.read_text())
    value = content["verdict"]["checks"]["steps_saved@46"]["value"]
    assert value["high"] is None  # the winner was there at its first evaluation
    (section,) = re.findall(r"<!-- holdup-result -->\n(.*?)<!-- /holdup-result -->", PROTOCOL, flags=re.DOTALL)
    assert (
        f"at least {value['low']:.1f} times the environment steps: {value['value']:.1f} [{value['low']:.1f}, ∞)"
        in section
    )
    for arm in content["arms"].values():
        assert re.search(rf"\| {arm['env_steps_to_target']:,.0f}(, \d+ never)? \|", section)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_path_of_a_machine_is_in_an_example(name):
    folder = StudyFolder(ANALYSIS / name)
    for file in (folder.identity_file, folder.space_file, folder.table):
        for path in ("/work/", "/opt/", "/tmp/", "/root/", "/home/"):
            assert path not in file.read_text(), (file, path)


def test_coinrun_is_learnt_for_levels_that_were_never_seen():
    """Five seeds on test levels against a random policy there: 500 episodes, as the space's header says."""
    header = (ANALYSIS.parent / "search_spaces" / "coinrun_ppo.yaml").read_text()
    (upper,) = re.findall(r"A random policy gets [\d.]+ \[[\d.]+, ([\d.]+)\]", header)
    finals = example("example_coinrun").trials["final_return"]
    estimate = mean_interval(finals)
    assert estimate.n == 5
    assert f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]" in header
    assert estimate.low > float(upper)


def test_the_page_of_the_analysis_quotes_the_answer():
    page = (ANALYSIS / "README.md").read_text()
    quoted = re.search(
        r"<!-- scaling-result: .*? -->\n> \*\*(.*?)\*\* (.*?)\n<!-- /scaling-result -->", page, re.DOTALL
    )
    assert " ".join(quoted.groups()) == example("example_throughput").answer().sentence
