"""The README and those of the folders tell the truth: reference, commands, names, links."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from study import cli
from study.protocol.phases import expected_trials
from study.space.reference import field_reference
from study.space.space_file import SHIPPED
from study.space.spec import load_space

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FOLDERS = (
    "search_spaces",
    "analysis",
    "tests/benchmarks",
    *(f"study/{path.parent.name}" for path in ROOT.glob("study/*/README.md")),
)
PAGES = {"README.md": README} | {f"{folder}/README.md": (ROOT / folder / "README.md").read_text() for folder in FOLDERS}
EXAMPLES = [
    line
    for text in PAGES.values()
    for line in re.findall(r"^python (?:run_study\.py|-m study) .*$", text, re.MULTILINE)
]


def test_the_field_reference_is_the_schema():
    (found,) = re.findall(
        r"<!-- reference: .*? -->\n(.*?)<!-- /reference -->", PAGES["search_spaces/README.md"], flags=re.DOTALL
    )
    assert found == field_reference(), "paste the output of `python -m study schema --markdown`"


@pytest.mark.parametrize("file", [file for file in SHIPPED.glob("*.yaml") if load_space(file).holdup])
def test_a_hold_up_study_has_as_many_trials_as_the_table_says(file):
    count = sum(expected_trials(load_space(file)).values())
    assert re.search(rf"`{file.name}` \|.*\| up to {count}\b", README), count


def test_every_shipped_space_is_named():
    for file in SHIPPED.glob("*.yaml"):
        assert f"`{file.name}`" in README


@pytest.mark.parametrize("line", sorted(set(EXAMPLES)))
def test_every_option_in_an_example_exists(line):
    words = [word for word in shlex.split(line.split("#")[0].split(">")[0])[1:] if word not in ("-m",)]
    name = "run" if words[0] == "run_study.py" else words[1]
    help_text = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, [name, "--help"]).output
    for word in words:
        if word.startswith("--"):
            assert word in help_text, word


def test_the_files_of_the_picture_exist():
    picture = README.split("## How it is put together")[1].split("```")[1]
    for line in picture.splitlines():
        for word in line.split("  ")[0 if not line.startswith(" ") else 1].split():
            if word.endswith(".py"):
                assert (ROOT / word).exists() or (ROOT / "study" / word).exists(), word


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", PAGES[page])):
        if not target.startswith("http"):
            file = ((ROOT / page).parent / target).resolve() if target else ROOT / page
            assert file.exists(), target
            assert not heading or heading in headings(file.read_text()), f"{target}#{heading}"


def headings(text):
    """Return the anchors of a page's headings as GitHub writes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_folder_s_page_is_linked_from_the_first():
    for page in set(PAGES) - {"README.md"}:
        assert f"({page}" in README, page


def test_the_figures_of_speed_are_those_of_the_benchmarks():
    section = README.split("## What it costs")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 5
    for _, *cells in rows:
        for cell in cells:
            for figure in re.findall(r"\d[\d,.]*\d", cell):
                assert figure in PAGES["tests/benchmarks/README.md"], figure


def test_the_test_command_is_what_ci_runs():
    assert "pip install -e '.[test]' && pytest" in README
    assert "pip install -q -e '.[test]' && pytest" in (ROOT / ".ci" / "run").read_text()
