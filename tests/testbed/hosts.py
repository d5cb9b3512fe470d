"""Simulated hosts: each with its own network, processes, name and file system view, on one machine, as root.

`ctl`, where servers run and users submit, `n1` and `n2`, where jobs run, on a network that only they see. /home is
shared, as over NFS; /tmp, /var/tmp, /run, /dev and /dev/shm are each host's own. Two ordinary users, `tester` and
`other`, exist only there. Nothing of the machine outside changes: a host is gone with its first process, which is a
shell, and all of them with the process that made them.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""
SOURCES = {"PYTHONPATH": str(ROOT)}
"""Environment by which a program runs this checkout, and not another one that is installed."""
PROGRAMS = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
PROGRAMS -= {path for path in PROGRAMS if PROGRAMS & set(path.parents)}
"""What every host sees where it lies here, whatever folders above it are closed to others."""
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
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
CONTROLLERS = ("cpuset", "cpu", "cpuacct", "devices", "freezer")
"""Of control groups version 1, those that a batch scheduler confines its jobs with."""
CGROUPS = Path("/sys/fs/cgroup")
HOLD = "echo ready; while read -t 0.2 || (( $? > 128 )); do :; done"
"""The first process of a host: until its input ends; bash waits for orphans meanwhile."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def obstacle(*programs: str) -> str:
    """Return why hosts with these programs cannot be simulated here, nothing where they can."""
    names = ("unshare", "nsenter", "setpriv", "ip", "timeout", *programs)
    absent = [name for name in names if shutil.which(name, path=SEARCH_PATH) is None]
    closed = [str(path) for path in PROGRAMS if path.stat().st_mode & 0o005 != 0o005]
    if os.geteuid() or closed:
        return f"simulated hosts need root, and {', '.join(closed) or 'a checkout'} to be open to other users"
    return f"not installed: {', '.join(absent)}" if absent else ""


class Host:
    """One simulated host; made by `simulated_hosts`."""

    def __init__(self, name: str, groups: Sequence[Path]) -> None:
        self.name, self.groups, self.pid = name, groups, 0
        """Its name, its control groups, and its first process, as this machine counts."""

    def start(self, commands: Sequence[Sequence[object]], log: Path) -> None:
        """Begin the host by commands that arrange its file system, which it has when this returns."""
        spaces = ["--net", "--mount", "--uts", "--pid", "--ipc", *(["--cgroup"] if self.groups else [])]
        words = ["unshare", *spaces, "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        lines = [shlex.join(map(str, each)) for each in commands]
        script = "\n".join(["set -e", "umask 022", f"hostname {self.name}", *lines, HOLD])
        with log.open("wb") as complaints:
            self._first = subprocess.Popen(
                [*self._join_groups(), *words, "bash", "-c", script],
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": complaints},
                start_new_session=True,
            )
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
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(OSError, psutil.Error):
                if process.pid == self.pid or Path(f"/proc/{process.pid}/ns/pid").readlink() != mine:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE and (not user or process.uids().real == USERS[user]):
                    found.append(process)
        return found

    def command_lines(self, user: str | None = None) -> list[str]:
        """Return what the same processes were started as."""
        return [" ".join(process.info["cmdline"] or ()) for process in self.processes(user)]

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
    try:
        for name in ADDRESSES:
            host = hosts.by_name[name] = Host(name, _make_groups(folder, name) if groups else ())
            mine = {source / name: target for source, target in (own or {}).items()}
            host.start(_arrangement(folder / f"root-{name}", common | mine, groups=groups), folder / f"{name}.log")
        _connect(hosts)
        yield hosts
    finally:
        for host in reversed(hosts.by_name.values()):
            if host.pid:
                host.end()
        for top in {group.parent for host in hosts.by_name.values() for group in host.groups}:
            top.rmdir()


def _arrangement(root: Path, binds: Mapping[Path, str], *, groups: bool) -> Iterator[Sequence[object]]:
    """Yield the commands that make a host's view of the file system below `root`, and make that its root."""
    closed = {place for path in PROGRAMS for place in path.parents if place.stat().st_mode & 0o005 != 0o005}
    fresh = {**dict.fromkeys(map(str, closed), "755"), **FRESH}
    root.mkdir()
    yield "ip", "link", "set", "lo", "up"
    yield "mount", "--rbind", "/", root
    for path, mode in sorted(fresh.items()):  # parents first
        yield "mkdir", "-p", f"{root}{path}"
        yield "mount", "-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", f"{root}{path}"
    again = {path: str(path) for path in PROGRAMS if any(map(path.is_relative_to, fresh))}
    devices = {Path("/dev", name): f"/dev/{name}" for name in DEVICES}
    for source, target in {**devices, **binds, **again}.items():
        place = Path(f"{root}{target}")
        yield "mkdir", "-p", place if source.is_dir() else place.parent
        if not source.is_dir():
            yield "touch", place
        yield "mount", "--bind", source, place
    yield "mkdir", root / "dev/pts"
    options = "newinstance,ptmxmode=0666,mode=620,gid=5"  # 5: group tty
    yield "mount", "-t", "devpts", "-o", options, "devpts", root / "dev/pts"
    streams = {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for link, target in {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", **streams}.items():
        yield "ln", "-s", target, root / "dev" / link
    for controller in CONTROLLERS if groups else ():  # again, so that paths begin at this host's own group
        yield "umount", f"{root}{CGROUPS}/{controller}"
        yield "mount", "-t", "cgroup", "-o", controller, "cgroup", f"{root}{CGROUPS}/{controller}"
    yield "cd", root
    yield "pivot_root", ".", "."
    yield "umount", "-l", "."


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
