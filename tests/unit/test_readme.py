"""The README and those of the folders tell the truth: reference, commands, names, links.

Every command that is recommended anywhere is parsed by the real command line, without running it; the space of a `run`
is loaded with what the command changes.
"""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from study.adopted.loading import load_space
from study.cli import commands as cli
from study.designs.registry import make_plan
from study.errors import ExitCode
from study.options import check_stage, seconds
from study.options import load as load_options
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


# --- recommended commands --------------------------------------------------------------------------------------------

START = re.compile(r"python3? (?:-m study|run_study\.py)(?=[ `'\"]|$)")
ALL_PAGES = sorted(path for path in ROOT.rglob("*.md") if not {".venv", ".git"} & set(path.parts))
PLACEHOLDER = "STUDY"
"""Stands for what the program fills in."""


def commands_in(text):
    """Return the commands of a text: in code blocks to the end of the line, in a sentence to the closing quote."""
    text = re.sub(r"\\\n\s*#?\s*", "", text.replace("-->", ""))
    found = []
    for line in text.splitlines():
        for match in START.finditer(line):
            quote = line[match.start() - 1] if match.start() and line[match.start() - 1] in "`'\"" else ""
            rest = line[match.start() :]
            rest = rest.split(quote)[0] if quote else re.split(r"(?:\s#| > | \| | \(|\)|: --|; |\.$|\. )", rest)[0]
            found.append(rest.strip())
    return found


def texts_of(tree):
    """Yield the texts of a module, docstrings included; a value that is filled in is a placeholder."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(p.value) if isinstance(p, ast.Constant) else PLACEHOLDER for p in node.values)
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def check(line):
    """Let the real command line take a command's arguments, and the space reader what it changes; return the command.

    Raises:
        click.ClickException: The command line refuses it.
        SpaceError: The space refuses the changes.
    """
    words = shlex.split(line.partition(" > ")[0])
    words = ["run", *words[2:]] if words[1] == "run_study.py" else words[3:]
    command = typer.main.get_command(cli.app)
    context = command.make_context("study", list(words))
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, list(words), parent=context)
    given = context.params
    if given.get("time_budget"):
        assert seconds(given["time_budget"], "--time-budget") > 0
    space = given.get("space")
    if space in (None, "SPACE") or PLACEHOLDER in space or given.get("config"):
        return None
    changes = [given.get(name) for name in ("set_", "trials")]
    spec = load_options(space, *changes).spec
    check_stage(given.get("until"), spec)
    return spec


def is_name(line):
    """Return whether it names a command and recommends none: it has no argument, or dots in place of them."""
    words = shlex.split(line)
    if words[3:4] == ["certificate"]:
        words = words[1:]  # a command of a group
    return len(words) <= (2 if "run_study" in line else 4) or "…" in words or line.endswith("launch slurm")


def of_pages():
    texts = [path.read_text() for path in ALL_PAGES]
    texts += [re.sub(r"(?m)^#", "", path.read_text()) for path in SHIPPED.glob("*.yaml")]
    for path in (ROOT / "analysis").glob("*.ipynb"):
        texts += ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    return sorted({line for text in texts for line in commands_in(text) if not is_name(line)})


def of_the_program():
    found = set()
    for folder in ("study", "analysis"):
        for path in (ROOT / folder).rglob("*.py"):
            for text in texts_of(ast.parse(path.read_text())):
                found |= {line for line in commands_in(text) if not is_name(line)}
    return sorted(found)


@pytest.mark.parametrize("line", of_pages())
def test_a_command_of_a_page_a_space_or_a_notebook_is_taken_and_can_be_planned(line):
    space = check(line)
    assert space is None or make_plan(space, LARGE).num_trials > 0


def test_the_commands_in_the_texts_of_the_program_are_taken():
    for line in of_the_program():
        check(line)
