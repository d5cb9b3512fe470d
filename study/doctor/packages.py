"""Whether every node runs the same code as the driver, and that is what this project was tested with. Judges facts."""

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from study.doctor.results import CheckResult, fail, ok, on_every_node, some, warn
from study.doctor.surroundings import NodeReport, Surroundings
from study.text import count

DISTRIBUTION = "runner-scaling-study"
RESULTS = ("ray", "torch", "numpy", "gymnasium", "optuna", "mlflow", "scipy", "envpool", "ale-py", "box2d")
"""Packages whose version changes results, or that refuse to work with another one."""


def requirements(around: Surroundings) -> CheckResult:
    """Whether the packages here are of versions that this project allows: tested, and without known holes."""
    needed, versions = required(), around.here.facts["software"]["versions"]
    fix = "Type `pip install -e .` in the checkout: it brings what it was tested with."
    if not needed:
        return warn(f"{DISTRIBUTION} runs from its sources and is not installed", fix)
    broken = []
    for each in needed:
        version = versions.get(canonicalize_name(each.name))
        if version is None:
            broken.append(f"{each.name} is missing")
        elif not each.specifier.contains(version, prereleases=True):
            broken.append(f"{each.name} {version} instead of {each.specifier}")
    if broken:
        return fail(some(broken), fix)
    return ok(f"all {len(needed)} requirements are met")


def required() -> list[Requirement]:
    """Return the packages that this project requires; none where it is not installed."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    wanted = [Requirement(line) for line in lines]
    return [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]


@on_every_node
def same_as_driver(node: NodeReport, around: Surroundings) -> CheckResult | None:
    """Whether a node has this project, Python and all packages in the driver's versions."""
    if around.cluster is None:
        return None
    mine, theirs = around.here.facts["software"], node.facts["software"]
    if theirs["source"] is None:
        return fail("this project cannot be imported there", "Install it in the environment that runs Ray there.")
    if theirs["source"] != mine["source"]:
        return fail(
            f"another version of this project ({theirs['source']} in {theirs['source_folder']}, here {mine['source']})",
            "Bring the node's copy to the same commit, and restart Ray there.",
        )
    if theirs["python"] != mine["python"]:
        return fail(
            f"Python {theirs['python']} instead of {mine['python']}",
            "Install the same Python, to the last digit, on all nodes: Ray pickles code between them.",
        )
    here, there = mine["versions"], theirs["versions"]
    others = sorted(
        (name for name in {*here, *there} if here.get(name) != there.get(name)),
        key=lambda name: (RESULTS.index(name) if name in RESULTS else len(RESULTS), name),
    )
    if not others:
        return ok(f"the same sources, Python and {count(len(here), 'package')} as the driver")
    found = some([f"{name} {there.get(name, 'missing')} instead of {here.get(name, 'none')}" for name in others])
    fix = "Install the same versions everywhere: `pip freeze` here, `pip install -r` there."
    return fail(found, fix) if set(others) & set(RESULTS) else warn(found, fix)
