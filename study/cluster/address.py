"""Which Ray to join: the address that a person gave, asked by Ray's own client. Imports no engine."""

import functools
import os
import re
import socket
import subprocess
import sys

from study.errors import ClusterError
from study.hosts.processes import raylets

CONNECT_TIMEOUT_S = 3.0
"""How long an address may take to accept a connection."""
HANDSHAKE_TIMEOUT_S = 20.0
"""How long Ray's own handshake may take, the import of Ray included."""
_PRIVATE = re.compile(r"/rs-\d+-[0-9a-f]{4}/r")
"""The folder of every private Ray, and so on the command lines of its processes."""
_ASK = (
    "import sys; from study.ray_private import nodes_of; "
    "print(*{node.node_manager_address for node in nodes_of(sys.argv[1])})"
)


def resolve_address(address: str | None) -> str | None:
    """Return the host:port to join, or None for a private Ray: the option, else `RAY_ADDRESS`, else private.

    Raises:
        ClusterError: No Ray that accepts us answers there within seconds.
    """
    chosen = address or os.environ.get("RAY_ADDRESS") or "local"
    if chosen == "local":
        return None
    found = _find_running() if chosen == "auto" else chosen
    check_address(found, "--address" if address else "RAY_ADDRESS")
    addresses_of_nodes(found)
    return found


def check_address(address: str, source: str = "--address") -> None:
    """Check that an address is host:port, and that a server accepts a connection there.

    Args:
        address: The address.
        source: The option or the variable that it is from.

    Raises:
        ClusterError: It does not; says what to check.
    """
    where = f"{source} {address}"
    if address.startswith("ray://"):
        rule, fix = "must be the address of the cluster's head", "Run on a node of the cluster with --address auto."
        raise ClusterError(where=where, rule=rule, got="a Ray Client address", fix=fix)
    if (place := re.fullmatch(r"([^/]+):(\d+)", address, flags=re.ASCII)) is None:
        fix = "Write it like 10.0.0.1:6379; the address of a dashboard (http://…) is another one."
        raise ClusterError(where=where, rule="must be auto, local or host:port", fix=fix)
    try:
        socket.create_connection((place[1].strip("[]"), int(place[2])), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, UnicodeError) as error:
        rule = f"no answer within {CONNECT_TIMEOUT_S:.0f} s ({error})"
        fix = "Check that `ray start --head` runs there, the port (6379 by default) and the firewall."
        raise ClusterError(where=where, rule=rule, fix=fix) from error


@functools.cache
def addresses_of_nodes(address: str) -> frozenset[str]:
    """Return the addresses of all nodes that the Ray at host:port ever had.

    A process of its own asks: where Ray refuses a token, or another server answers, its client would try for minutes.

    Raises:
        ClusterError: The cluster refuses us or does not answer.
    """
    words = [sys.executable, "-c", _ASK, address]
    try:
        done = subprocess.run(words, capture_output=True, timeout=HANDSHAKE_TIMEOUT_S)
        said = done.stderr
        if done.returncode == 0:
            return frozenset(done.stdout.decode().rstrip().rpartition("\n")[2].split())
    except subprocess.TimeoutExpired as timeout:
        said = timeout.stderr or b""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    raise refused(address, lines[-1][:300] if lines else "no answer")


def refused(address: str, reason: str) -> ClusterError:
    """Return the error of a Ray that cannot be joined."""
    return ClusterError(
        where=f"--address {address}",
        rule="must be a Ray cluster of the same version that accepts us",
        got=reason,
        fix="Check `ray status`, the Ray and Python versions on both sides, and RAY_AUTH_MODE and RAY_AUTH_TOKEN.",
    )


def _find_running() -> str:
    """Return the address of this user's Ray on this machine; other studies' private ones do not count.

    Nor do those of other users: who joins a Ray runs what it is given there.
    """
    found = {
        raylet.options["gcs_address"]
        for raylet in raylets()
        if raylet.uid == os.getuid() and "gcs_address" in raylet.options and not any(map(_PRIVATE.search, raylet.words))
    }
    if len(found) == 1:
        return str(found.pop())
    if found:
        rule, got = "one Ray must run on this machine", f"{len(found)} ({', '.join(sorted(found))})"
        raise ClusterError(where="--address auto", rule=rule, got=got, fix="Give --address with one of these.")
    rule = "no Ray of yours runs on this machine"
    fix = "Start one with `ray start --head`, give --address host:port, or leave --address out for a private one."
    raise ClusterError(where="--address auto", rule=rule, fix=fix)
