"""`spaces`: the space files at hand; `schema`: what may stand in one. Imports no engine."""

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from study.console import say, table, terminal, write, write_json
from study.errors import SpaceError
from study.options import AsJson, command_app, examples
from study.space.parsing import parse_space
from study.space.space_file import SHIPPED, read_space
from study.space.spec import StudySpec
from study.text import MISSING, number

app = command_app()


@app.command(epilog=examples("python -m study spaces", "python -m study spaces --json"))
def spaces(as_json: AsJson = False) -> None:
    """List the space files: the shipped ones and those of this folder, with kind, environment and number of trials."""
    found = [_entry(file) for file in _files()]
    if as_json:
        write_json(found)
        return
    console = terminal()
    headings = ("space", "kind", "trials", "about")
    rows = [(each["space"], each["kind"] or MISSING, number(each["trials"], "d"), each["about"]) for each in found]
    console.print(table(headings, rows, words=headings[:2], fold=headings[3:], width=80), width=80)
    say(console, "\nTrials of hold-up studies: up to so many, fewer where the machine has not enough CPUs.")
    say(console, "Run one: python run_study.py --space quickstart.yaml")


@app.command(epilog=examples("python -m study schema > space.schema.json"))
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="As the field reference in Markdown.")] = False,
) -> None:
    """Print the JSON Schema of space files, for editors."""
    from study.space.reference import field_reference, json_schema

    write(field_reference() if markdown else json_schema())


def _files() -> list[Path]:
    """Return the shipped spaces, the plain one first, then the files of this folder that look like one."""
    own = []
    for file in sorted([*Path().glob("*.yaml"), *Path("search_spaces").glob("*.yaml")]):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # what cannot be read is no space
            text = file.read_text()
            if file.resolve().parent != SHIPPED and (
                "environment:" in text or ("config:" in text and "parameters:" in text)
            ):
                own.append(file)
    return [*sorted(SHIPPED.glob("*.yaml"), key=lambda file: (file.stem != "quickstart", file)), *own]


def _entry(file: Path) -> dict[str, Any]:
    """Return one line of `spaces`; a space with a fault says so."""
    entry: dict[str, Any] = dict.fromkeys(("space", "kind", "environment", "trials", "about"))
    entry["space"] = file.name if file.parent == SHIPPED else str(file)
    try:
        source = read_space(file)
        if "config" in source.content:  # a list of spaces runs nobody's code
            about = f"{source.content.get('description', '')} (script {source.content['config']})"
            return entry | {"about": about.strip()}
        spec = parse_space(source, asked=True)
    except SpaceError as error:
        return entry | {"about": f"wrong: {error.faults[0]}"}
    about = spec.description.strip().partition("\n")[0]
    return entry | {
        "kind": spec.design,
        "environment": spec.environment.id,
        "trials": _num_trials(spec),
        "about": about,
    }


def _num_trials(spec: StudySpec) -> int:
    """Return the trials of a study on a cluster that holds all of it; of a hold-up study, up to so many."""
    from study.designs.registry import make_plan
    from study.machine.shape import ClusterShape, NodeShape

    much = 10**6
    node = NodeShape(address="any", num_cpus=much, physical_cpus=much, memory_mb=much * 1000, num_gpus=much)
    return make_plan(spec, ClusterShape(nodes=(node,))).num_trials
