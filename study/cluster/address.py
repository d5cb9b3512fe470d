"""Which Ray to join: the address that a person gave, looked at within seconds. Imports no engine."""

import os
import re
import socket

from study.errors import ClusterError
from study.hosts.processes import raylets

CONNECT_TIMEOUT_S = 3.0
"""How long an address may take to answer."""
_PRIVATE = re.compile(r"/rs-\d+-[0-9a-f]{4}/r")
"""The folder of every private Ray, and so on the command lines of its processes."""

# What a connection that speaks HTTP/2, as gRPC does, begins with, and an empty SETTINGS frame. Source: RFC 9113, 3.4.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS_TYPE = 4


def resolve_address(address: str | None) -> str | None:
    """Return the host:port to join, or None for a private Ray: the option, else `RAY_ADDRESS`, else private.

    Raises:
        ClusterError: Nothing that speaks Ray answers there within seconds.
    """
    chosen = address or os.environ.get("RAY_ADDRESS") or "local"
    if chosen == "local":
        return None
    found = _find_running() if chosen == "auto" else chosen
    check_address(found, "--address" if address else "RAY_ADDRESS")
    return found


def check_address(address: str, source: str = "--address") -> None:
    """Check within seconds, without Ray, that a gRPC server answers at `host:port`.

    Args:
        address: The address.
        source: The option or the variable that it is from.

    Raises:
        ClusterError: It does not; says what to check.
    """
    if address.startswith("ray://"):
        raise ClusterError(
            where=f"{source} {address}",
            rule="must be the address of the cluster's head",
            got="a Ray Client address",
            fix="Run on a node of the cluster with --address auto, or submit with `ray job submit`.",
        )
    if (place := re.fullmatch(r"([^/]+):(\d+)", address, flags=re.ASCII)) is None:
        raise ClusterError(
            where=f"{source} {address}",
            rule="must be auto, local or host:port",
            fix="Write it like 10.0.0.1:6379; the address of a dashboard (http://…) is another one.",
        )
    ways = "Check that `ray start --head` runs there, the port (6379 by default) and the firewall."
    try:
        host, port = place[1].strip("[]"), int(place[2])
        with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.sendall(_HTTP2_PREFACE)
            answer = connection.recv(9)
    except (OSError, UnicodeError) as error:
        raise ClusterError(
            where=f"{source} {address}", rule=f"no answer within {CONNECT_TIMEOUT_S:.0f} s ({error})", fix=ways
        ) from error
    if len(answer) < 4 or answer[3] != _SETTINGS_TYPE:
        raise ClusterError(where=f"{source} {address}", rule="something answers there that is not Ray", fix=ways)


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
        raise ClusterError(
            where="--address auto",
            rule="one Ray must run on this machine",
            got=f"{len(found)} ({', '.join(sorted(found))})",
            fix="Give --address with one of these.",
        )
    raise ClusterError(
        where="--address auto",
        rule="no Ray of yours runs on this machine",
        fix="Start one with `ray start --head`, give --address host:port, or leave --address out for a private one.",
    )
