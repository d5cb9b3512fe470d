"""Whether every node runs the same code as the driver, and none with known holes. Judges facts."""

import shlex
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from study.doctor.finding import Check, Verdict, fail, ok, warn
from study.doctor.surroundings import NodeReport, Surroundings, by_value, on_every_node, plural, told

DISTRIBUTION = "runner-scaling-study"
FLOORS = {
    "mlflow": ("3.17", "CVE-2026-71211, requests forged by the server; before 3.11 CVE-2026-2033, code execution"),
    "ray": ("2.52", "CVE-2025-62593, code execution through a browser on the same machine"),
    "torch": ("2.11", "CVE-2026-4538 and CVE-2026-24747"),
    "orjson": ("3.11.6", "CVE-2025-67221, a crash on nested JSON"),
    "filelock": ("3.20.3", "CVE-2025-68146 and CVE-2026-22701"),
}
"""Package -> the first version without known holes, and the worst of those, as in `pyproject.toml`."""
RESULTS = ("ray", "torch", "numpy", "gymnasium", "optuna", "mlflow", "scipy", "envpool", "ale-py", "box2d")
"""Packages whose version changes results, or that refuse to work with another one."""
NAMED = 4
"""Differing packages that are named."""


def requirements(around: Surroundings) -> Verdict:
    """Whether what is installed here is what this project was tested with."""
    try:
        wanted = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        return warn(f"{DISTRIBUTION} runs from its sources and is not installed", "pip install -e . in its checkout.")
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    broken = []
    for each in needed:
        try:
            version = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            broken.append(f"{each.name} is missing")
            continue
        if not each.specifier.contains(version, prereleases=True):
            broken.append(f"{each.name} {version} instead of {each.specifier}")
    if broken:
        return fail("; ".join(broken[:NAMED]), "pip install -e . in the checkout brings what it was tested with.")
    return ok(f"all {len(needed)} requirements are met")


@on_every_node
def holes(node: NodeReport, around: Surroundings) -> Verdict:
    """Whether a package is known to be open to attack."""
    versions = node.facts["software"]["versions"]
    found = []
    for name, (floor, hole) in FLOORS.items():
        try:
            vulnerable = name in versions and Version(versions[name]) < Version(floor)
        except InvalidVersion:
            continue
        if vulnerable:
            found.append((f"{name} {versions[name]} ({hole})", f"{name}>={floor}"))
    if found:
        return fail(
            "; ".join(text for text, _ in found),
            f"pip install {' '.join(shlex.quote(fix) for _, fix in found)}, on every node.",
        )
    return ok("none in " + ", ".join(f"{name} {versions[name]}" for name in FLOORS if name in versions))


@on_every_node
def project(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether a node has this project, in the same version."""
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
    return ok(f"the same sources of this project ({theirs['source']})")


@on_every_node
def versions(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether a node has the driver's packages."""
    if around.cluster is None:
        return None
    mine, theirs = around.here.facts["software"]["versions"], node.facts["software"]["versions"]
    differing = sorted(
        (name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)),
        key=lambda name: (RESULTS.index(name) if name in RESULTS else len(RESULTS), name),
    )
    if not differing:
        return ok(f"the same {plural(len(mine), 'package')} as the driver")
    shown = [f"{name} {theirs.get(name, 'missing')} instead of {mine.get(name, 'none')}" for name in differing[:NAMED]]
    more = f" and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
    fix = "Install the same versions everywhere: `pip freeze` here, `pip install -r` there."
    found = f"{', '.join(shown)}{more}"
    return fail(found, fix) if set(differing) & set(RESULTS) else warn(found, fix)


def environments(around: Surroundings) -> Verdict | None:
    """Which Python environment each node runs from."""
    if around.cluster is None:
        return None
    found = by_value((around.here, *around.nodes), lambda node: node.facts["software"]["prefix"])
    if len(found) > 1:
        return warn(
            f"Python environments differ: {told(found).replace('on local', 'here')}",
            "Fine where they are copies of one; activate the same one before `ray start` and the study.",
        )
    return ok(f"{next(iter(found), 'unknown')} everywhere")


CHECKS = (
    Check("packages", "requirements", requirements),
    Check("packages", "known holes", holes),
    Check("packages", "this project", project),
    Check("packages", "versions", versions),
    Check("packages", "environment", environments),
)
