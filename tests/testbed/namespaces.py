"""Simulated hosts: each with its own network, processes, name and file system view, on one machine, as root.

`ctl`, where servers run and users submit, `n1` and `n2`, where jobs run, on a network that only they see. /home is
shared, as over NFS; /tmp, /var/tmp, /run, /dev and /dev/shm are each host's own. Two ordinary users, `tester` and
`other`, exist only there. Nothing of the machine outside changes: a host is gone with its first process, and all of
them with the process that made them.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""
SOURCES = {"PYTHONPATH": str(ROOT)}
"""Environment by which a program runs this checkout, and not another one that is installed."""
CTL = "ctl"
NODES = ("n1", "n2")
ADDRESSES = {CTL: "10.77.0.254", "n1": "10.77.0.1", "n2": "10.77.0.2"}
USERS = {"tester": 20001, "other": 20002}
SHARED = Path("/srv/testbed")
"""Where the hosts see the folder `Hosts.shared`."""
FRESH = {
    "/dev": "755",
    "/dev/shm": "1777",
    "/home": "755",
    "/run": "755",
    "/srv": "755",
    "/tmp": "1777",
    "/var/tmp": "1777",
}
"""Folders that every host has for itself, with their modes."""
CONTROLLERS = ("cpuset", "cpu", "cpuacct", "devices", "freezer")
"""Of control groups version 1, those that a batch scheduler confines its jobs with."""
CGROUPS = Path("/sys/fs/cgroup")
PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "timeout")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GONE_TIMEOUT_S = 10.0


def obstacle(*programs: str) -> str | None:
    """Return why hosts with these programs cannot be simulated here, None where they can."""
    if os.geteuid() != 0:
        return "simulated hosts need root"
    absent = [name for name in (*PROGRAMS, *programs) if shutil.which(name, path=SEARCH_PATH) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def has_controllers() -> bool:
    """Return whether this machine has the control groups that OAR needs."""
    return all((CGROUPS / name / "tasks").exists() for name in CONTROLLERS)


@dataclass(kw_only=True)
class Host:
    """One simulated host; made by `simulated_hosts`."""

    name: str
    groups: tuple[Path, ...] = ()
    """Its control groups."""
    _first: subprocess.Popen[bytes] = field(init=False)
    pid: int = field(init=False)
    """Of its first process, as this machine counts."""

    def start(self, plan: Mapping[str, object], log: Path) -> None:
        """Begin the host by a plan for `host_init.py`; its file system is arranged when this returns."""
        spaces = ["--net", "--mount", "--uts", "--pid", "--ipc", *(["--cgroup"] if self.groups else [])]
        words = ["unshare", *spaces, "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        with log.open("wb") as complaints:
            self._first = subprocess.Popen(
                [*self._join_groups(), *words, sys.executable, "-IS", str(Path(__file__).with_name("host_init.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            )
        assert self._first.stdin and self._first.stdout
        self._first.stdin.write(json.dumps({"name": self.name, **plan}).encode() + b"\n")
        self._first.stdin.flush()
        if self._first.stdout.readline() != b"ready\n":
            self._first.kill()
            raise RuntimeError(f"host {self.name} did not start: {log.read_text()}")
        self.pid = psutil.Process(self._first.pid).children()[0].pid

    def _join_groups(self) -> list[str]:
        """Return words that put the command after them into the host's control groups."""
        if not self.groups:
            return []
        return ["sh", "-c", 'for g in $0; do echo $$ > $g/tasks; done; exec "$@"', " ".join(map(str, self.groups))]

    def words(
        self,
        words: Sequence[object],
        *,
        user: str = "root",
        cwd: str = "/",
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return a command of this machine that runs `words` in the host, in the environment of a fresh login."""
        spaces = ["-n", "-m", "-u", "-p", "-i", *(["-C"] if self.groups else [])]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]
        given = {"LANG": "C.UTF-8", "PATH": SEARCH_PATH, "PWD": cwd, **(environment or {})}
        settings = [f"{name}={value}" for name, value in given.items()]
        return [
            *(*self._join_groups(), "nsenter", "-t", str(self.pid), *spaces, "--", *become),
            *("env", "-C", cwd, *settings, *map(str, words)),
        ]

    def run(
        self,
        *words: object,
        user: str = "root",
        cwd: str = "/",
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host to its end; where it fails, and `check` is set, so does the test."""
        limited = ["timeout", "-s", "KILL", str(timeout_s), *words]
        full = self.words(limited, user=user, cwd=cwd, environment=environment)
        done = subprocess.run(full, input=stdin, capture_output=True, text=True, timeout=timeout_s + 10, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{self.name}: {words} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def processes(self, user: str | None = None) -> list[psutil.Process]:
        """Return what runs in the host now, its first process excepted; only those of `user` when given."""
        mine = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if process.pid == self.pid or Path(f"/proc/{process.pid}/ns/pid").readlink() != mine:
                    continue
                if process.status() == psutil.STATUS_ZOMBIE or (user and process.uids().real != USERS[user]):
                    continue
                found.append(process)
        return found

    def command_lines(self, user: str | None = None) -> list[str]:
        """Return what the same processes were started as."""
        found = []
        for process in self.processes(user):
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(process.cmdline()))
        return found

    @property
    def root(self) -> Path:
        """The host's file system, as seen from outside."""
        return Path(f"/proc/{self.pid}/root")

    def crash(self) -> None:
        """End every process of the host at once, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._first.wait()
        for pipe in (self._first.stdin, self._first.stdout):
            assert pipe
            pipe.close()
        end = time.monotonic() + GONE_TIMEOUT_S
        for group in reversed([place for top in self.groups for place in [top, *_below(top)]]):
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.05)


def _below(group: Path) -> list[Path]:
    """Return the control groups in a control group, those in others after them."""
    return sorted(path for path in group.rglob("*") if path.is_dir())


@dataclass(kw_only=True)
class Hosts:
    """Three simulated hosts and what they share."""

    folder: Path
    """Outside the hosts."""
    by_name: dict[str, Host]

    @property
    def ctl(self) -> Host:
        """The host where servers run and users submit."""
        return self.by_name[CTL]

    @property
    def nodes(self) -> list[Host]:
        """The hosts where jobs run."""
        return [self.by_name[name] for name in NODES]

    @property
    def shared(self) -> Path:
        """What the hosts see as `SHARED`."""
        return self.folder / "shared"

    def outside(self, path: str | Path) -> Path:
        """Return where a path below /home of the hosts lies outside them."""
        return self.folder / "home" / Path(path).relative_to("/home")

    def make_place(self, name: str, user: str = "tester") -> str:
        """Make a folder in a user's home; return its path in the hosts."""
        path = f"/home/{user}/{name}"
        place = self.outside(path)
        place.mkdir()
        place.chmod(0o755)
        os.chown(place, USERS[user], USERS[user])
        return path

    def write(self, path: str, text: str, user: str = "tester", mode: int = 0o644) -> str:
        """Write a user's file, named as the hosts see it; return that name."""
        place = self.outside(path)
        place.write_text(text)
        place.chmod(mode)
        os.chown(place, USERS[user], USERS[user])
        return path

    def study(self, *words: object, cwd: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run one of the project's commands as `tester` on `ctl`."""
        full = (sys.executable, "-m", "study", *words)
        return self.ctl.run(*full, user="tester", cwd=cwd, environment=SOURCES, timeout_s=timeout_s, check=False)


@contextlib.contextmanager
def simulated_hosts(
    folder: Path,
    *,
    binds: Mapping[Path, str] | None = None,
    own: Mapping[Path, str] | None = None,
    groups: bool = False,
) -> Iterator[Hosts]:
    """Start three hosts in an empty folder, yield them, remove them.

    `binds` has file or folder of this machine -> where every host sees it; with `own` each host sees a folder of its
    own name in it. Hosts may have control groups of their own (version 1).
    """
    hosts = Hosts(folder=folder, by_name={})
    _prepare(hosts)
    try:
        for name in ADDRESSES:
            host = Host(name=name, groups=_make_groups(folder, name) if groups else ())
            hosts.by_name[name] = host
            host.start(_plan(hosts, name, binds or {}, own or {}, groups=groups), folder / f"{name}.log")
        _connect(hosts)
        yield hosts
    finally:
        for host in reversed(hosts.by_name.values()):
            if hasattr(host, "pid"):
                host.crash()
        for top in {group.parent for host in hosts.by_name.values() for group in host.groups}:
            top.rmdir()


def _prepare(hosts: Hosts) -> None:
    """Write what the hosts share: their names, their users and the homes."""
    for place in (hosts.shared, hosts.folder / "home"):
        place.mkdir()
        place.chmod(0o755)
    etc = hosts.folder / "etc"
    etc.mkdir()
    names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    for name, entry in {
        "passwd": "{user}:x:{uid}:{uid}::/home/{user}:/bin/bash\n",
        "group": "{user}:x:{uid}:\n",
        "shadow": "{user}:*:20000:0:99999:7:::\n",
    }.items():
        original = Path("/etc", name)
        with (etc / name).open("w") as file:
            kept = [line for line in original.read_text().splitlines(True) if line.split(":")[0] not in USERS]
            file.writelines([*kept, *(entry.format(user=user, uid=uid) for user, uid in USERS.items())])
        shutil.copymode(original, etc / name)
        os.chown(etc / name, original.stat().st_uid, original.stat().st_gid)
    for user, uid in USERS.items():
        home = hosts.folder / "home" / user
        shutil.copytree("/etc/skel", home)
        home.chmod(0o755)  # as on most clusters: what others may not read must say so itself
        for path in (home, *home.rglob("*")):
            os.chown(path, uid, uid)


def _plan(
    hosts: Hosts, name: str, binds: Mapping[Path, str], own: Mapping[Path, str], *, groups: bool
) -> dict[str, object]:
    """Return what `host_init.py` is told."""
    common = {hosts.folder / "etc" / file: f"/etc/{file}" for file in ("hosts", "passwd", "group", "shadow")}
    common |= {hosts.folder / "home" / user: f"/home/{user}" for user in USERS} | {hosts.shared: str(SHARED)}
    common |= {**binds, **{source / name: target for source, target in own.items()}}
    keep = _outermost({ROOT, Path(sys.prefix), Path(sys.base_prefix)})
    closed = {str(place): "755" for path in keep for place in [path, *path.parents] if not _is_open(place)}
    return {
        "fresh": {**closed, **FRESH},
        "keep": [str(path) for path in keep],
        "binds": [(str(source), target) for source, target in common.items()],
        "controllers": CONTROLLERS if groups else (),
    }


def _outermost(paths: set[Path]) -> list[Path]:
    return sorted(path for path in paths if not any(parent in paths for parent in path.parents))


def _is_open(path: Path) -> bool:
    """Return whether an ordinary user may go through a folder; into the home of root, usually not."""
    return path.stat().st_mode & 0o005 == 0o005


def _make_groups(folder: Path, name: str) -> tuple[Path, ...]:
    """Make a host's control groups, below one of this testbed."""
    made = []
    for controller in CONTROLLERS:
        top = CGROUPS / controller / f"testbed-{os.getpid()}-{folder.name}"
        for group in (top, top / name):
            group.mkdir(exist_ok=True)
            if controller == "cpuset":  # empty at first, and then nothing may enter
                for what in ("cpuset.cpus", "cpuset.mems"):
                    (group / what).write_text((CGROUPS / controller / what).read_text())
        made.append(top / name)
    return tuple(made)


def _connect(hosts: Hosts) -> None:
    """Join the hosts by a bridge in `ctl`."""

    def ip(host: Host, *words: object) -> None:
        subprocess.run(["nsenter", "-t", str(host.pid), "-n", "ip", *map(str, words)], check=True)

    ip(hosts.ctl, "link", "add", "br0", "type", "bridge")
    ip(hosts.ctl, "addr", "add", f"{ADDRESSES[CTL]}/24", "dev", "br0")
    ip(hosts.ctl, "link", "set", "br0", "up")
    for host in hosts.nodes:
        port = f"to-{host.name}"
        ip(hosts.ctl, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.pid)
        ip(hosts.ctl, "link", "set", port, "master", "br0", "up")
        ip(host, "addr", "add", f"{ADDRESSES[host.name]}/24", "dev", "eth0")
        ip(host, "link", "set", "eth0", "up")
