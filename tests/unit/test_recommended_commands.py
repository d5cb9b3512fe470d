"""Every command that a page, a space, a notebook or the program itself recommends is one that the command line takes.

Each is parsed by the real commands, without running them; the space of a `run` is loaded with what the command changes.
"""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from study.cli import commands as cli
from study.designs.registry import make_plan
from study.options import check_stage, seconds
from study.options import load as load_options
from study.space.parsing import SHIPPED
from tests.spaces import cluster

ROOT = Path(__file__).resolve().parents[2]
START = re.compile(r"python3? (?:-m study|run_study\.py)(?=[ `'\"]|$)")
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not {".venv", ".git", "node_modules", "testbed"} & set(path.parts)
)
LARGE = cluster(n=200, memory_mb=256_000, num_gpus=8)
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
    space = given.get("space") or given.get("space_argument")
    if space in (None, "SPACE") or PLACEHOLDER in space or given.get("config"):
        return None
    changes = [given.get(name) for name in ("set_", "trials")]
    spec = load_options(space, *changes)
    check_stage(given.get("until"), spec)
    return spec


def is_name(line):
    """Return whether it names a command and recommends none: it has no argument, or dots in place of them."""
    words = shlex.split(line)
    if words[3:4] == ["certificate"]:
        words = words[1:]  # a command of a group
    return len(words) <= (2 if "run_study" in line else 4) or "…" in words or line.endswith("launch slurm")


def of_pages():
    texts = [path.read_text() for path in PAGES]
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
