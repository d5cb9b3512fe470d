"""The plan of every shipped space on described clusters: trials, seeds, CPUs, memory, hours, printed numbers."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.golden import entry

SPACES = Path(__file__).resolve().parents[2] / "search_spaces"
GOLDEN = Path(__file__).with_name("plans")
CLUSTERS: dict[str, list[entry.Node]] = {
    "four cores": [("local", 4, 4, 16_000, 0)],
    "one large node": [("n0", 96, 48, 192_000, 1)],
    "three nodes": [("n0", 24, 24, 64_000, 2), ("n1", 24, 24, 64_000, 2), ("n2", 20, 20, 32_000, 2)],
}


def names() -> list[str]:
    """Return the names of the shipped spaces."""
    return sorted(path.stem for path in SPACES.glob("*.yaml"))


def plan(name: str) -> dict[str, Any]:
    """Return what is compared of a space's plans."""
    space = str(SPACES / f"{name}.yaml")
    trials: dict[str, list[str]] = {}
    clusters = {}
    for cluster, nodes in CLUSTERS.items():
        found = entry.plan_of(space, nodes)
        dealt = found.pop("trials", None)
        if dealt is not None:  # the same on every cluster, but for the stages that time real runners
            same = next((other for other, known in trials.items() if known == dealt), None)
            found["trials as on"] = same or cluster
            if same is None:
                trials[cluster] = dealt
        found["printed"] = printed(space, nodes)
        clusters[cluster] = found
    return {"clusters": clusters, "trials": trials}


def printed(space: str, nodes: list[entry.Node]) -> str:
    """Return the numbers that a dry run prints, warnings included, in their order: the words around them may change."""
    with entry.on_cluster(nodes):
        try:
            code, text = entry.run_command("run", "--dry-run", "--space", space, "--address", "described")
        except entry.ClusterError as error:
            code, text = 2, str(error)
    return f"{code}: " + " ".join(numbers(text.replace(space, "")))


def numbers(text: str) -> list[str]:
    """Return the numbers in a text."""
    return re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*", text)


def to_text(content: dict[str, Any]) -> str:
    """Return the golden file of a plan."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def files(wanted: Callable[[str], bool]) -> Iterator[tuple[Path, str]]:
    """Yield the golden files of plans with what they should hold."""
    for name in filter(lambda name: wanted(f"plans/{name}"), names()):
        yield GOLDEN / f"{name}.json", to_text(plan(name))
