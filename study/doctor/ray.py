"""Whether Ray accepts the connection, asks for a token, and how it starts its workers. Imports no Ray."""

import shlex

from study.doctor.results import CheckResult, fail, failed, ok, on_every_node, some, warn
from study.doctor.surroundings import NodeReport, Surroundings
from study.text import count

TOKEN_HELP = "export RAY_AUTH_MODE=token for every `ray start` and for the study"


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


def nodes(around: Surroundings) -> CheckResult | None:
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
    if facts["token_file"] is not None and facts["token_readers"]:
        return fail(
            f"{facts['token_readers']} can read {facts['token_file']}, and with it run code in your Ray",
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
    priority, threads = node.facts["priority"], node.facts["threads_variable"]
    if threads not in (None, "1"):
        return warn(
            f"OMP_NUM_THREADS={threads}: processes may start {threads} threads each, also those that reserve one CPU",
            "Unset it where Ray is started.",
        )
    if priority["niceness"] > 0:
        group = f" of their {priority['reach']}" if priority["reach"] else ""
        return warn(
            f"trials run at nice {priority['niceness']}: every other process{group} goes before them",
            "Start the study without `nice`."
            if node.facts["ray"] is None
            else "Set RAY_worker_niceness=0 for `ray start` on each node.",
        )
    return ok("normal priority, and threads for the CPUs that each process reserves")
