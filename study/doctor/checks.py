"""The table of checks, how each is run, and those of Ray, packages and the space; a check judges what was found.

A check runs for a limited time; one that crashes, or hangs, becomes a result that says so.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from study.designs.registry import make_plan
from study.doctor import nodes, storage
from study.doctor.results import (
    CheckResult,
    NodeReport,
    Surroundings,
    crashed,
    fail,
    failed,
    ok,
    on_every_node,
    some,
    warn,
)
from study.errors import StudyError
from study.text import count, gigabytes, listed
from study.trial.deadline import within

TIMEOUT_S = 60.0
"""How long one check may take: a network file system that is away never answers."""
DISTRIBUTION = "runner-scaling-study"
RESULTS = ("ray", "torch", "numpy", "gymnasium", "optuna", "mlflow", "scipy", "envpool", "ale-py", "box2d")
"""Packages whose version changes results, or that refuse to work with another one."""
TOKEN_HELP = "export RAY_AUTH_MODE=token for every `ray start` and for the study"

# --- Ray -------------------------------------------------------------------------------------------------------------


def connection(around: Surroundings) -> CheckResult:
    """Whether the Ray of the given address accepts the connection."""
    if around.refusal is not None:
        result = failed(around.refusal)
        fix = result.fix
        mine = around.here.facts["token"]
        if mine["mode"] is None and mine["token_file"]:
            fix += f" A token exists here, so that Ray's head may ask for it: {TOKEN_HELP}."
        return fail(result.found, f"{fix} All further checks are about this machine alone.")
    if around.cluster is None:
        return ok("a private one on this machine, started and ended with the study")
    return ok(f"joined {around.cluster.address}, {count(len(around.cluster.nodes), 'node')} answered")


def ray_nodes(around: Surroundings) -> CheckResult | None:
    """Whether every node answers, none has died, and nobody else holds CPUs."""
    cluster = around.cluster
    if cluster is None:
        return None
    if cluster.silent:
        said = "; ".join(f"{address}: {why}" for address, why in list(cluster.silent.items())[:3])
        return fail(
            f"{count(len(cluster.silent), 'node')} that Ray takes for alive did not answer ({said})",
            "Look at the raylet's log there, and restart or remove the node: trials placed on it would hang.",
        )
    if cluster.dead:
        return warn(
            f"{count(len(cluster.dead), 'node')} died and did not come back: {some(cluster.dead)}",
            "Restart them, or go on with fewer; trials that lose a runner are marked as tainted.",
        )
    total, free = sum(node.num_cpus for node in cluster.nodes), cluster.num_free_cpus
    if free < total:
        return warn(
            f"{total - free:g} of {total} CPUs are reserved by others in the same Ray",
            "Wait for them to end, or start a Ray of your own: they take time from timed trials.",
        )
    return ok(f"{count(len(cluster.nodes), 'node')}, all alive; all {total} CPUs are free")


@on_every_node
def token(node: NodeReport, around: Surroundings) -> CheckResult | None:
    """Whether anybody else may run code in this Ray, and whether driver and nodes agree on asking for a token."""
    facts, ray = node.facts["token"], node.facts["ray"]
    if facts["token_file"] is not None and not facts["is_private"]:
        return fail(
            f"others may read {facts['token_file']}, and with it run code in your Ray",
            f"Run `chmod 600 {shlex.quote(facts['token_file'])}`; make a new token (`ray get-auth-token --generate`).",
        )
    if ray is None:
        return ok("a private Ray makes a token of its own")
    mine = around.here.facts["token"]["mode"]
    if facts["mode"] != mine:
        return warn(
            f"RAY_AUTH_MODE is {facts['mode'] or 'not set'}, and {mine or 'not set'} for the driver",
            "Set it to the same value everywhere: a node that restarts with another one is refused.",
        )
    if facts["mode"] != "token" and ray["open_ports"]:
        return warn(
            f"whoever reaches these ports can run code as you, without a token: {some(ray['open_ports'])}",
            f"Unless the network is yours alone, {TOKEN_HELP}; `ray get-auth-token --generate` makes one.",
        )
    return ok("every connection needs the token" if facts["mode"] == "token" else "listens on loopback alone")


@on_every_node
def workers(node: NodeReport, around: Surroundings) -> CheckResult:
    """Whether workers get a low priority, as Ray gives them by default, or many threads for their arithmetic."""
    niceness, threads = node.facts["niceness"], node.facts["threads_variable"]
    if threads not in (None, "1"):
        return warn(
            f"OMP_NUM_THREADS={threads}: processes may start {threads} threads each, also those that reserve one CPU",
            "Unset it where Ray is started.",
        )
    if niceness > 0:
        return warn(
            f"trials run at nice {niceness}: every other process goes before them",
            "Start the study without `nice`."
            if node.facts["ray"] is None
            else "Set RAY_worker_niceness=0 for `ray start` on each node.",
        )
    return ok("normal priority, and threads for the CPUs that each process reserves")


# --- packages --------------------------------------------------------------------------------------------------------


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


# --- space -----------------------------------------------------------------------------------------------------------


def plan(around: Surroundings) -> CheckResult | None:
    """Whether every trial finds a place, and what its times will be worth."""
    if around.spec is None:
        return None
    made = make_plan(around.spec, around.shape())  # its errors become the result
    needs = [*made.scales, *made.variants.values(), *(cell.needs for cell in made.cells.values())]
    largest = max(needs, key=lambda each: (each.num_cpus, each.memory_mb))
    worth: dict[str, list[int]] = {}
    for each in sorted(needs, key=lambda each: each.num_env_runners):
        runners = worth.setdefault(each.label.timing, [])
        runners += [each.num_env_runners] if each.num_env_runners not in runners else []
    times = "; ".join(f"{timing} at {listed(runners)} runners" for timing, runners in worth.items())
    found = (
        f"it fits with {count(largest.num_cpus, 'CPU')} and {gigabytes(largest.memory_mb)} "
        f"({count(largest.num_env_runners, 'runner')}, {largest.execution}). Times will be {times}"
    )
    if "oversubscribed" in worth:
        return warn(
            found, "Oversubscribed times say nothing about scaling: run where the cores are, or list smaller scales."
        )
    return ok(found)


@on_every_node
def environment(node: NodeReport, around: Surroundings) -> CheckResult | None:
    """Whether the space's environment can be made."""
    if around.spec is None or node.environment is None:
        return None
    name = around.spec.environment.id
    if node.environment:
        return fail(f"{name} cannot be made: {node.environment}", "Install it on every node, in Ray's environment.")
    return ok(f"{name} can be made and stepped")


# --- all of them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One question, and how it is answered."""

    theme: str
    name: str
    judge: Callable[[Surroundings], CheckResult | None]
    """Judges the surroundings; None where the question does not arise."""

    def run(self, around: Surroundings) -> CheckResult | None:
        """Return the result; whatever happens becomes one."""
        rule, fix = f"no answer within {TIMEOUT_S:.0f} s", "Try again, or look at the machine."
        slow = StudyError(rule=rule, fix=fix)
        try:
            result = within(TIMEOUT_S, lambda: self.judge(around), otherwise=slow)
        except StudyError as error:
            result = failed(error)
        except Exception as error:  # noqa: BLE001 (a check that crashes is a result)
            result = crashed(error, around.here, *around.nodes)
        return None if result is None else replace(result, theme=self.theme, check=self.name)


CHECKS = (
    DoctorCheck("ray", "connection", connection),
    DoctorCheck("ray", "nodes", ray_nodes),
    DoctorCheck("ray", "token", token),
    DoctorCheck("ray", "workers", workers),
    DoctorCheck("packages", "requirements", requirements),
    DoctorCheck("packages", "same as the driver", same_as_driver),
    DoctorCheck("nodes", "CPUs", nodes.cpus),
    DoctorCheck("nodes", "machines", nodes.machines),
    DoctorCheck("nodes", "memory", nodes.memory),
    DoctorCheck("nodes", "open files", nodes.open_files),
    DoctorCheck("nodes", "shared memory", nodes.shared_memory),
    DoctorCheck("nodes", "temporary folder", nodes.temporary),
    DoctorCheck("nodes", "other work", nodes.other_work),
    DoctorCheck("storage", "folder", storage.folder),
    DoctorCheck("storage", "free space", storage.free_space),
    DoctorCheck("mlflow", "answers", storage.mlflow_answers),
    DoctorCheck("mlflow", "file system", storage.mlflow_file_system),
    DoctorCheck("space", "largest trial", plan),
    DoctorCheck("space", "environment", environment),
)
"""In the order in which they are shown."""


def judge(around: Surroundings) -> Iterator[CheckResult]:
    """Yield one result for each check that applies, as soon as it is known."""
    for check in CHECKS:
        if (result := check.run(around)) is not None:
            yield result
