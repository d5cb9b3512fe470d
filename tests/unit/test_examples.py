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


def test_the_arms_in_the_readme_are_those_of_the_certificate():
    content = json.loads(StudyFolder(ANALYSIS / "example_study").certificate.read_text())
    (section,) = re.findall(r"<!-- holdup-result -->\n(.*?)<!-- /holdup-result -->", PROTOCOL, flags=re.DOTALL)
    assert len(content["arms"]) >= 8
    for arm in content["arms"].values():
        final, never = arm["iqm_final_return"], f", {arm['n_censored']} never" if arm["n_censored"] else ""
        solved = ", ".join(map(str, arm["solved_at"]))
        value = f"{final['value']:.1f} [{final['low']:.1f}, {final['high']:.1f}]"
        assert f"| {solved} of {arm['n']} | {value} | {arm['env_steps_to_target']:,.0f}{never} |" in section, arm[
            "name"
        ]
    paid = content["search"]["sentence"].partition(":")[0]
    assert paid in " ".join(section.replace("**", "").split())


def test_no_two_recorded_studies_share_a_test_seed():
    seeds = {}
    for name in EXAMPLES:
        runs = example(name).trials
        judged = runs[runs["stage"] == "confirm"] if "stage" in runs else runs.iloc[:0]
        seeds[name] = {int(seed) for seed in judged["seed"]}, {int(seed) for seed in runs["seed"].dropna()}
    for name, (judging, _) in seeds.items():
        assert not judging & set().union(*(every for other, (_, every) in seeds.items() if other != name))


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
