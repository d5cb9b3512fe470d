"""The first process of a simulated host: arranges what the host sees, then reaps orphans until its stdin ends.

Runs as root inside fresh namespaces, with its plan as one line of JSON on stdin. Imports only the standard library.
"""

import contextlib
import ctypes
import json
import os
import select
import socket
import subprocess
from pathlib import Path

MS_BIND = 4096
REAP_PERIOD_S = 0.2
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind=None, flags=0, options=None):
    where = (str(source).encode(), str(target).encode())
    if LIBC.mount(*where, kind and kind.encode(), ctypes.c_ulong(flags), options and options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")


def bind(source, target):
    """Show a file or folder at another place, made where there is none."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, target, flags=MS_BIND)


def hold(path):
    """Return a path that still leads to `path` when something is mounted over it."""
    return Path(f"/proc/self/fd/{os.open(path, os.O_PATH)}")


def put_back(held, place):
    """Show a folder again where an empty one hides it, readable by everybody."""
    if held.stat().st_mode & 0o005 == 0o005:
        bind(held, place)
        return
    place.mkdir(parents=True, exist_ok=True)
    for child in held.iterdir():
        if child.is_symlink():
            (place / child.name).symlink_to(child.readlink())
        else:
            bind(child, place / child.name)


def private_devices(held):
    for name in DEVICES:
        bind(held / name, Path("/dev", name))
    Path("/dev/pts").mkdir()
    mount("devpts", "/dev/pts", "devpts", options="newinstance,ptmxmode=0666,mode=620,gid=5")  # 5 is the group tty
    Path("/dev/ptmx").symlink_to("pts/ptmx")
    for link, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        Path("/dev", link).symlink_to(Path("/proc/self", target))


def arrange(plan):
    os.umask(0o022)
    socket.sethostname(plan["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    devices = hold("/dev")
    binds = [(hold(source), Path(target)) for source, target in plan["binds"]]
    keep = [(hold(path), Path(path)) for path in plan["keep"]]
    for path, mode in sorted(plan["fresh"].items()):  # parents first
        Path(path).mkdir(parents=True, exist_ok=True)
        mount("tmpfs", path, "tmpfs", options=f"mode={mode}")
        if path == "/dev":
            private_devices(devices)
    for held, target in binds:
        bind(held, target)
    for held, place in keep:
        if any(place.is_relative_to(path) for path in plan["fresh"]):
            put_back(held, place)
    for controller in plan["controllers"]:  # again, so that paths begin at this host's own group
        place = f"/sys/fs/cgroup/{controller}"
        subprocess.run(["umount", place], check=True)
        mount("cgroup", place, "cgroup", options=controller)


def reap_until_stdin_ends():
    while True:
        ready, _, _ = select.select([0], [], [], REAP_PERIOD_S)
        if ready and not os.read(0, 1):
            return
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        content = stdin.readline()
    arrange(json.loads(content))
    os.write(1, b"ready\n")
    reap_until_stdin_ends()
