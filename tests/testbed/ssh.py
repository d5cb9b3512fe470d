"""Ordinary sshds on simulated hosts: `tester` comes from any of them to any other with a key, without a password."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.namespaces import ADDRESSES, NODES, SHARED, USERS, Hosts, simulated_hosts

PROGRAMS = ("sshd", "ssh", "ssh-keygen")
SSHD_CONFIG = f"""
HostKey {SHARED}/ssh/host_key
PidFile /run/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes yes
"""


@contextlib.contextmanager
def running_sshds(folder: Path) -> Iterator[Hosts]:
    """Start a sshd on each node, in an empty folder; yield the hosts, remove them."""
    with simulated_hosts(folder) as hosts:
        place = hosts.shared / "ssh"
        place.mkdir()
        _make_key(place / "host_key")
        (place / "sshd_config").write_text(SSHD_CONFIG)
        _give_key(hosts, "tester", public_host_key=(place / "host_key.pub").read_text())
        for node in hosts.nodes:
            node.run("mkdir", "-m", "755", "/run/sshd")
            node.run("/usr/sbin/sshd", "-f", SHARED / "ssh" / "sshd_config")
        yield hosts


def _make_key(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)


def _give_key(hosts: Hosts, user: str, *, public_host_key: str) -> None:
    """Let a user come to every node; the nodes' own key is known already."""
    folder = hosts.outside(f"/home/{user}/.ssh")
    folder.mkdir(mode=0o700)
    _make_key(folder / "id_ed25519")
    (folder / "authorized_keys").write_text((folder / "id_ed25519.pub").read_text())
    names = [f"{name},{ADDRESSES[name]}" for name in NODES]
    (folder / "known_hosts").write_text("".join(f"{name} {public_host_key}" for name in names))
    hosts.ctl.run("chown", "-R", f"{USERS[user]}:{USERS[user]}", f"/home/{user}/.ssh")
