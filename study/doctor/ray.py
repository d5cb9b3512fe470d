"""Whether Ray is there, of one version, asks for a token, and belongs to us. Judges facts; imports no Ray."""

import os
import shlex

from study.doctor.finding import Check, Verdict, fail, ok, refused, warn
from study.doctor.surroundings import NodeReport, Surroundings, by_value, on_every_node, plural, told

TOKEN_HELP = "export RAY_AUTH_MODE=token for every `ray start` and for the study"
NAMED = 3
"""Open ports, and other Rays, that are named."""


def connection(around: Surroundings) -> Verdict:
    """Whether the Ray that was asked for lets us in."""
    if around.refusal is not None:
        verdict = refused(around.refusal)
        fix = verdict.fix
        if os.environ.get("RAY_AUTH_MODE") is None and around.here.facts["authentication"]["token_file"]:
            fix += f" A token exists here, so that Ray's head may ask for it: {TOKEN_HELP}."
        return fail(verdict.found, f"{fix} What follows is about this machine alone.")
    if around.cluster is None:
        return ok("a private one on this machine, started and ended with the study")
    return ok(f"joined {around.cluster.address}, {plural(len(around.cluster.nodes), 'node')} answered")


def nodes_alive(around: Surroundings) -> Verdict | None:
    """Whether every node answers, and none has died."""
    if around.cluster is None:
        return None
    if silent := around.cluster.silent:
        said = "; ".join(f"{address}: {why}" for address, why in list(silent.items())[:3])
        return fail(
            f"{plural(len(silent), 'node')} that Ray takes for alive did not answer ({said})",
            "Look at the raylet's log there, and restart or remove the node: trials placed on it would hang.",
        )
    if dead := around.cluster.dead:
        return warn(
            f"{plural(len(dead), 'node')} died and did not come back: {', '.join(dead[:4])}",
            "Restart them, or go on with fewer; trials that lose a runner are marked as tainted.",
        )
    return ok(f"{plural(len(around.nodes), 'node')}, all alive")


def idle(around: Surroundings) -> Verdict | None:
    """Whether others hold CPUs of the cluster."""
    if around.cluster is None:
        return None
    total, free = sum(node.num_cpus for node in around.nodes), around.cluster.num_free_cpus
    if free >= total:
        return ok(f"all {total} CPUs are free")
    return warn(
        f"{total - free:g} of {total} CPUs are reserved by others in the same Ray",
        "Wait for them to end, or start a Ray of your own: they take time from timed trials.",
    )


def versions(around: Surroundings) -> Verdict:
    """Whether Ray and Python are the same everywhere."""
    everywhere = (around.here, *(around.nodes if around.cluster is not None else ()))
    found = by_value(
        [node for node in everywhere],
        lambda node: f"Ray {_ray_version(node)}, Python {node.facts['software']['python']}",
    )
    if len(found) > 1:
        return fail(
            told(found).replace("on local", "here"),
            "Install the same Ray and the same Python, to the last digit, on all nodes: Ray pickles code between them.",
        )
    return ok(next(iter(found), "nothing known"))


def _ray_version(node: NodeReport) -> str:
    return node.facts["software"]["versions"].get("ray", "missing")


def authentication(around: Surroundings) -> Verdict:
    """Whether it was decided if Ray asks for a token, or whether a file decides it."""
    mine = around.here.facts["authentication"]
    if around.cluster is None:
        if mine["mode"] is None and mine["token_file"]:
            return warn(
                f"RAY_AUTH_MODE is not set and {mine['token_file']} exists: a cluster started from here would ask for "
                "that token, and refuse nodes and drivers that do not (a private Ray is not concerned)",
                f"Before you start a cluster, {TOKEN_HELP}, or RAY_AUTH_MODE=disabled everywhere.",
            )
        return ok("a private Ray makes a token of its own")
    modes = by_value((around.here, *around.nodes), lambda node: node.facts["authentication"]["mode"] or "not set")
    if len(modes) > 1:
        return warn(
            f"RAY_AUTH_MODE differs: {told(modes).replace('on local', 'here')}",
            "Set it to the same value everywhere: a node that restarts with another one is refused.",
        )
    if "not set" in modes:
        return warn(
            "RAY_AUTH_MODE is set nowhere: a token that appears in ~/.ray/auth_token locks nodes or drivers out",
            f"Now or at the next start, {TOKEN_HELP}, or RAY_AUTH_MODE=disabled everywhere.",
        )
    return ok(f"RAY_AUTH_MODE={next(iter(modes))} everywhere")


def exposure(around: Surroundings) -> Verdict | None:
    """Whether anybody on the network may run code in this Ray."""
    if around.cluster is None:
        return None
    modes = by_value(around.nodes, lambda node: node.facts["authentication"]["mode"])
    if set(modes) == {"token"}:
        return ok("every connection needs the token")
    ports = [
        f"{port} on {node.address}"
        for node in around.nodes
        if (ray := node.facts["ray"]) is not None
        for port in ray["open_ports"]
    ]
    if not ports:
        return ok("no token, but nothing listens beyond the loopback interface")
    more = f" and {len(ports) - NAMED} more" if len(ports) > NAMED else ""
    return warn(
        f"whoever reaches these ports can run code as you, without a token: {', '.join(ports[:NAMED])}{more}",
        f"Unless the network is yours alone, {TOKEN_HELP}; `ray get-auth-token --generate` makes one.",
    )


@on_every_node
def token_file(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether others can read the token."""
    facts = node.facts["authentication"]
    if facts["token_file"] is None:
        return ok("no token in a file")
    if facts["token_readers"]:
        return fail(
            f"{facts['token_readers']} can read {facts['token_file']}, and with it run code in your Ray",
            f"chmod 600 {shlex.quote(str(facts['token_file']))}, and make a new token "
            "(`ray get-auth-token --generate`).",
        )
    return ok(f"only you can read {facts['token_file']}")


@on_every_node
def priority(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether Ray lowers the priority of its workers, as it does by default."""
    ray = node.facts["ray"]
    if ray is None:
        return None
    if ray["niceness"] > 0:
        return warn(
            f"trials run at nice {ray['niceness']}: every other process goes before them",
            "Set RAY_worker_niceness=0 for `ray start` on each node.",
        )
    return ok("trials run at normal priority")


@on_every_node
def threads(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether every process of a trial would start many threads for its arithmetic."""
    value = node.facts["threads_variable"]
    if value in (None, "1"):
        return ok("OMP_NUM_THREADS is " + ("1" if value else "not set: each process gets threads for what it reserves"))
    return warn(
        f"OMP_NUM_THREADS={value}: processes may start {value} threads each, also those that reserve one CPU",
        "Unset it where Ray is started.",
    )


@on_every_node
def other_rays(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether other Rays share the machine."""
    load = node.facts["load"]
    if load is None:
        return None
    if others := load["other_rays"]:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        return warn(
            f"{plural(len(others), 'other Ray')} on this machine: {', '.join(others[:NAMED])}{more}",
            "Both count on all CPUs. Give --address as host:port, never `auto`, and time nothing while it works.",
        )
    return ok("no other Ray")


CHECKS = (
    Check("ray", "connection", connection),
    Check("ray", "nodes", nodes_alive),
    Check("ray", "versions", versions),
    Check("ray", "free CPUs", idle),
    Check("ray", "authentication", authentication),
    Check("ray", "open ports", exposure),
    Check("ray", "token file", token_file),
    Check("ray", "priority", priority),
    Check("ray", "threads", threads),
    Check("ray", "other Rays", other_rays),
)
