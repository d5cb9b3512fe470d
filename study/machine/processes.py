"""Processes of this host: children, starts, priorities, Ray's, and where Ray's servers listen. Linux; psutil."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_SAME_START_S = 2.0
"""Tolerance: the start of a process that the system tells shifts when the machine's clock is adjusted."""
_LOOPBACK = ("127.", "::1", "::ffff:127.")
_OWN_AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _PAUSE_S = 20, 0.1
"""The kernel takes ten values of autogroups in a second, from all processes together."""


def children_of(pid: int) -> set[int]:
    """Return the ids of a process's children from the kernel's list; to look at all processes takes seconds."""
    texts = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended, or the kernel does not tell
            texts.append(file.read_text())
    return {int(word) for text in texts for word in text.split()}


def started_at(pid: int | None = None) -> float:
    """Return the start of a process, by default of this one, in seconds since the epoch."""
    return psutil.Process(pid).create_time()


def set_back(niceness: int) -> None:
    """Give every thread of this process a nice value, and its session where the kernel divides CPUs among sessions.

    Above 0 others go before it; 0 is normal. Linux has a value for each thread. A session gets one from its leader.

    Source: sched(7), "The autogroup feature".
    """
    for thread in psutil.Process().threads():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread.id, niceness)
    if os.getsid(0) != os.getpid():
        return
    for _ in range(_TRIES):
        try:
            _OWN_AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(_PAUSE_S)
            continue
        except OSError:  # a kernel without autogroups
            pass
        return


def with_word(word: str) -> Iterator[psutil.Process]:
    """Yield the processes of this user that have this on their command line."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        uids = process.info["uids"]
        if uids and uids.real == os.getuid() and any(word in each for each in process.info["cmdline"] or ()):
            yield process


def own_raylets() -> Iterator[list[str]]:
    """Yield the command line of every raylet of this user here: the process of a Ray that starts its workers."""
    for process in psutil.process_iter(["name", "cmdline", "uids", "status"]):
        users, is_dead = process.info["uids"], process.info["status"] == psutil.STATUS_ZOMBIE
        if process.info["name"] == "raylet" and not is_dead and users is not None and users.real == os.getuid():
            yield process.info["cmdline"] or []


def open_ports(session: str) -> list[str]:
    """Return where the servers of a Ray session listen beyond the loopback interface, as far as this user may look."""
    found = set()
    for process in psutil.process_iter(["name", "cmdline"]):
        if any(session in word for word in process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error):
                found |= {
                    f"{process.info['name']} {_bracketed(at.laddr.ip)}:{at.laddr.port}"
                    for at in process.net_connections(kind="tcp")
                    if at.status == psutil.CONN_LISTEN and not at.laddr.ip.startswith(_LOOPBACK)
                }
    return sorted(found)


def _bracketed(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
