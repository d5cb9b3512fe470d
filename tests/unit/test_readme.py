"""The README and those of the folders tell the truth: reference, commands, names, links."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from study.adopted.loading import load_space
from study.cli import commands as cli
from study.designs.registry import make_plan
from study.errors import ExitCode
from study.space.parsing import SHIPPED, parse_space, read_text
from tests.fields import field_reference
from tests.spaces import cluster

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FOLDERS = (
    "search_spaces",
    "analysis",
    "tests/benchmarks",
    *(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("study/**/README.md")),
)
NAMES = ("README.md", "search_spaces/fields.md", *(f"{folder}/README.md" for folder in FOLDERS))
PAGES = {name: (ROOT / name).read_text() for name in NAMES}
LARGE = cluster(n=200, memory_mb=256_000, num_gpus=8)


def test_the_field_reference_is_the_schema():
    (found,) = re.findall(
        r"<!-- reference: .*? -->\n(.*?)<!-- /reference -->", PAGES["search_spaces/fields.md"], flags=re.DOTALL
    )
    assert found == field_reference(), "run `python -m tests.fields`"


@pytest.mark.parametrize("file", SHIPPED.glob("*.yaml"), ids=lambda file: file.name)
def test_a_study_has_as_many_trials_as_the_table_says(file):
    (row,) = [
        line
        for line in PAGES["search_spaces/README.md"].splitlines()
        if line.startswith("|") and f"`{file.name}`" in line
    ]
    spec, told = load_space(file), row.split("|")[3]
    numbers = [int(number) for number in re.findall(r"\d+", told.replace(",", ""))]
    count = make_plan(spec, LARGE).num_trials
    if re.match(r" \d+ to \d+", told):  # several spaces in one row
        assert numbers[0] <= count <= numbers[1]
    else:
        assert count in numbers


def test_the_first_space_of_the_readme_is_the_shipped_one():
    block = README.split("```yaml")[1].split("```")[0]
    source = read_text(block, name="README.md")
    assert parse_space(source).digest() == load_space("quickstart.yaml").digest()
    assert source.content["parameters"].keys() == {"num_env_runners", "train_batch_size", "lr"}


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
    assert [page for page in PAGES if page != "README.md" and f"({page}" not in README] == []


@pytest.mark.parametrize(("file", "function"), re.findall(r"`([\w/]+\.py):(\w+)`", PAGES["study/README.md"]))
def test_the_page_for_developers_names_functions_that_exist(file, function):
    assert re.search(rf"^ *(async )?def {function}\(", (ROOT / "study" / file).read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_a_test_that_a_page_names_exists(page):
    source = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)(…?)`", PAGES[page])
    assert [name for name, cut in named if f"def {name}{'' if cut else '('}" not in source] == []


def test_the_help_of_run_names_every_exit_code():
    text = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["run", "--help"]).output
    said = text.split("Exit codes:")[1].split("Options")[0]
    assert [int(number) for number in re.findall(r"(\d+)\s+[a-zA-Z]", said)] == [int(code) for code in ExitCode]
    page = PAGES["study/cli/README.md"].split("Exit codes:")[1][:400]
    assert all(re.search(rf"\b{code.value}\b", page) for code in ExitCode)
