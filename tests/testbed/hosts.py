"""Simulated hosts: each with its own network, processes, name and file system view, on one machine, as root.

`ctl`, where servers run and users submit, `n1` and `n2`, where jobs run, on a network that only they see. /home is
shared, as over NFS; /tmp, /var/tmp, /run, /dev and /dev/shm are each host's own. Two ordinary users, `tester` and
`other`, exist only there. Nothing of the machine outside changes: a host is gone with its first process, which is this
file as a program, and all of them with the process that made them.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
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
ADDRESSES = {"ctl": "10.77.0.254", "n1": "10.77.0.1", "n2": "10.77.0.2"}
NODES = ("n1", "n2")
USERS = {"tester": 20001, "other": 20002}
SHARED = Path("/srv/testbed")
"""Where the hosts see the folder `Hosts.shared`."""
FRESH = {
    **dict.fromkeys(("/dev", "/home", "/run", "/srv"), "755"),
    **dict.fromkeys(("/dev/shm", "/tmp", "/var/tmp"), "1777"),
}
"""Folders that every host has for itself, with their modes."""
CONTROLLERS = ("cpuset", "cpu", "cpuacct", "devices", "freezer")
"""Of control groups version 1, those that a batch scheduler confines its jobs with."""
CGROUPS = Path("/sys/fs/cgroup")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def obstacle(*programs: str) -> str:
    """Return why hosts with these programs cannot be simulated here, nothing where they can."""
    names = ("unshare", "nsenter", "setpriv", "ip", "timeout", *programs)
    absent = [name for name in names if shutil.which(name, path=SEARCH_PATH) is None]
    return "simulated hosts need root" if os.geteuid() else f"not installed: {', '.join(absent)}" if absent else ""


@dataclass(kw_only=True)
class Host:
    """One simulated host; made by `simulated_hosts`."""

    name: str
    groups: tuple[Path, ...] = ()
    """Its control groups."""
    _first: subprocess.Popen[bytes] = field(init=False)
    pid: int = field(init=False, default=0)
    """Of its first process, as this machine counts."""

    def start(self, plan: Mapping[str, object], log: Path) -> None:
        """Begin the host by a plan for `arrange`; its file system is arranged when this returns."""
        spaces = ["--net", "--mount", "--uts", "--pid", "--ipc", *(["--cgroup"] if self.groups else [])]
        words = ["unshare", *spaces, "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        words = [*self._join_groups(), *words, sys.executable, "-I", __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with log.open("wb") as complaints:
            self._first = subprocess.Popen(words, **pipes, stderr=complaints, start_new_session=True)  # type: ignore[call-overload]
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
        settings = ["env", "-C", cwd, *(f"{name}={value}" for name, value in given.items())]
        enter = ["nsenter", "-t", str(self.pid), *spaces, "--"]
        return [*self._join_groups(), *enter, *become, *settings, *map(str, words)]

    def run(
        self, *words: object, timeout_s: float = 60.0, check: bool = True, **given: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host to its end; where it fails, and `check` is set, so does the test."""
        full = self.words(["timeout", "-s", "KILL", str(timeout_s), *words], **given)  # type: ignore[arg-type]
        done = subprocess.run(full, input="", capture_output=True, text=True, timeout=timeout_s + 10, check=False)
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
                if process.status() != psutil.STATUS_ZOMBIE and (not user or process.uids().real == USERS[user]):
                    found.append(process)
        return found

    def command_lines(self, user: str | None = None) -> list[str]:
        """Return what the same processes were started as."""
        found = []
        for process in self.processes(user):
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(process.cmdline()))
        return found

    def end(self) -> None:
        """End every process of the host at once, and remove its control groups."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._first.communicate()
        limit = time.monotonic() + 10
        groups = [each for top in self.groups for each in (top, *(path for path in top.rglob("*") if path.is_dir()))]
        for group in sorted(groups, reverse=True):  # those in others first
            while group.exists() and time.monotonic() < limit:
                with contextlib.suppress(OSError):
                    group.rmdir()
                time.sleep(0.05)


@dataclass(kw_only=True)
class Hosts:
    """Three simulated hosts and what they share."""

    folder: Path
    """Outside the hosts."""
    by_name: dict[str, Host]

    @property
    def ctl(self) -> Host:
        """The host where servers run and users submit."""
        return self.by_name["ctl"]

    @property
    def nodes(self) -> list[Host]:
        """The hosts where jobs run."""
        return [self.by_name[name] for name in NODES]

    @property
    def shared(self) -> Path:
        """What the hosts see as `SHARED`."""
        return self.folder / "shared"

    def rays(self) -> dict[str, set[str]]:
        """Return the hosts where servers of Ray of `tester` run -> the tokens that they ask for, empty for none."""
        found: dict[str, set[str]] = {}
        for host in self.by_name.values():
            for process in host.processes("tester"):
                with contextlib.suppress(psutil.Error, OSError):
                    if process.name() in ("gcs_server", "raylet") and (settings := process.environ()):
                        token = settings.get("RAY_AUTH_MODE") == "token" and settings.get("RAY_AUTH_TOKEN")
                        found.setdefault(host.name, set()).add(token or "")
        return found

    def outside(self, path: str | Path) -> Path:
        """Return where a path below /home of the hosts lies outside them."""
        return self.folder / "home" / Path(path).relative_to("/home")


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
    common = {**_prepare(hosts), **(binds or {})}
    keep = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    keep -= {path for path in keep if keep & set(path.parents)}
    closed = {str(place) for path in keep for place in [path, *path.parents] if place.stat().st_mode & 0o005 != 0o005}
    try:
        for name in ADDRESSES:
            host = hosts.by_name[name] = Host(name=name, groups=_make_groups(folder, name) if groups else ())
            mine = common | {source / name: target for source, target in (own or {}).items()}
            plan = {
                "fresh": {**dict.fromkeys(closed, "755"), **FRESH},
                "keep": sorted(map(str, keep)),
                "binds": [(str(source), target) for source, target in mine.items()],
                "controllers": CONTROLLERS if groups else (),
            }
            host.start(plan, folder / f"{name}.log")
        _connect(hosts)
        yield hosts
    finally:
        for host in reversed(hosts.by_name.values()):
            if host.pid:
                host.end()
        for top in {group.parent for host in hosts.by_name.values() for group in host.groups}:
            top.rmdir()


def _prepare(hosts: Hosts) -> dict[Path, str]:
    """Write what the hosts share, their names, their users and the homes; return where they see it."""
    etc = hosts.folder / "etc"
    for place in (hosts.shared, hosts.folder / "home", etc):
        place.mkdir()
        place.chmod(0o755)
    names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    for name, entry in {
        "passwd": "{user}:x:{uid}:{uid}::/home/{user}:/bin/bash\n",
        "group": "{user}:x:{uid}:\n",
        "shadow": "{user}:*:20000:0:99999:7:::\n",
    }.items():
        original = Path("/etc", name)
        kept = [line for line in original.read_text().splitlines(True) if line.split(":")[0] not in USERS]
        (etc / name).write_text("".join([*kept, *(entry.format(user=user, uid=uid) for user, uid in USERS.items())]))
        shutil.copymode(original, etc / name)
        os.chown(etc / name, original.stat().st_uid, original.stat().st_gid)
    for user, uid in USERS.items():
        home = hosts.folder / "home" / user
        shutil.copytree("/etc/skel", home)
        home.chmod(0o755)  # as on most clusters: what others may not read must say so itself
        for path in (home, *home.rglob("*")):
            os.chown(path, uid, uid)
    seen = {etc / file: f"/etc/{file}" for file in ("hosts", "passwd", "group", "shadow")}
    return seen | {hosts.folder / "home" / user: f"/home/{user}" for user in USERS} | {hosts.shared: str(SHARED)}


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

    def ip(host: Host, words: str) -> None:
        subprocess.run(["nsenter", "-t", str(host.pid), "-n", "ip", *words.split()], check=True)

    ip(hosts.ctl, "link add br0 type bridge")
    ip(hosts.ctl, f"addr add {ADDRESSES['ctl']}/24 dev br0")
    ip(hosts.ctl, "link set br0 up")
    for host in hosts.nodes:
        ip(hosts.ctl, f"link add to-{host.name} type veth peer name eth0 netns {host.pid}")
        ip(hosts.ctl, f"link set to-{host.name} master br0 up")
        ip(host, f"addr add {ADDRESSES[host.name]}/24 dev eth0")
        ip(host, "link set eth0 up")


# --- the first process of a host: root in fresh namespaces, with its plan as one line of JSON on stdin ----------------

MS_BIND = 4096
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def mount(source: object, target: object, kind: str = "", flags: int = 0, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [text.encode() or None for text in (str(source), str(target), kind, options)]
    if libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")


def bind(source: Path, target: Path, *, opened: bool = False) -> None:
    """Show a file or folder at another place, made where there is none; a closed folder by what is in it, if opened."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    if opened and source.is_dir() and source.stat().st_mode & 0o005 != 0o005:
        for child in source.iterdir():
            if child.is_symlink():
                (target / child.name).symlink_to(child.readlink())
            else:
                bind(child, target / child.name)
    else:
        mount(source, target, flags=MS_BIND)


def hold(path: str) -> Path:
    """Return a path that still leads to `path` when something is mounted over it."""
    return Path(f"/proc/self/fd/{os.open(path, os.O_PATH)}")


def arrange(plan: Mapping[str, Sequence[str]]) -> None:
    """Give this host its name, and its view of the file system."""
    os.umask(0o022)
    socket.sethostname(str(plan["name"]))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    devices = hold("/dev")
    binds = [(hold(source), Path(target)) for source, target in plan["binds"]]
    keep = [(hold(path), Path(path)) for path in plan["keep"] if any(map(Path(path).is_relative_to, plan["fresh"]))]
    for path, mode in sorted(plan["fresh"].items()):  # type: ignore[attr-defined]  # parents first
        Path(path).mkdir(parents=True, exist_ok=True)
        mount("tmpfs", path, "tmpfs", options=f"mode={mode}")
        if path == "/dev":
            for name in DEVICES:
                bind(devices / name, Path("/dev", name))
            Path("/dev/pts").mkdir()
            mount("devpts", "/dev/pts", "devpts", options="newinstance,ptmxmode=0666,mode=620,gid=5")  # 5: group tty
            links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
            links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
            for link, target in links.items():
                Path("/dev", link).symlink_to(target)
    for held, place in binds:
        bind(held, place)
    for held, place in keep:
        bind(held, place, opened=True)
    for controller in plan["controllers"]:  # again, so that paths begin at this host's own group
        subprocess.run(["umount", CGROUPS / controller], check=True)
        mount("cgroup", CGROUPS / controller, "cgroup", options=controller)


if __name__ == "__main__":
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        arrange(json.loads(stdin.readline()))
    os.write(1, b"ready\n")
    while True:  # reap orphans until stdin ends
        ready, _, _ = select.select([0], [], [], 0.2)
        if ready and not os.read(0, 1):
            break
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
