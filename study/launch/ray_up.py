"""A `cluster.yaml` for `ray up` on machines of one's own, and the commands that run a study with it. Pure.

Checked against Ray 2.60: `ray/autoscaler/ray-schema.json`, `_private/local/` (the provider), `_private/commands.py` and
`_private/updater.py` (what runs where). The template's first lines say what `ray up` does not allow.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from study.cluster.connection import RAY_ENVIRONMENT
from study.errors import LaunchError
from study.launch.allocation import Host
from study.launch.manifest import Step, fill
from study.launch.ports import LOWEST

LONGEST_NAME = 24
"""With Ray's own names behind it, a socket's path stays below 107 bytes."""
_CORES = "from study.hosts.machine import machine; print(machine().num_cores)"
_STOP_TIMEOUT_S = 40
"""A raylet waits half a minute for a head that is gone."""
_RAY_PORTS = (
    "node-manager-port",
    "object-manager-port",
    "metrics-export-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
)
_NUM_PORTS = 10
"""Before those of worker processes: the head's, the six above, the dashboard's, Ray Client's, one to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayUp:
    """A cluster of one's own machines, and the study to run on it."""

    name: str
    """Of the cluster: lower-case letters, digits and '-'."""
    study: str
    """Name of the study."""
    space_file: str
    """The space, on the machine that launches."""
    token_file: str
    """A file with the token, for nobody else to read, on the machine that launches."""
    head: Host
    head_ip: str
    """Address at which the others reach the head."""
    workers: tuple[Host, ...]
    """Names or addresses without `user@`; where the CPUs are None, a host looks at itself."""
    arguments: tuple[str, ...] = ()
    """More of `python -m study run`."""
    ssh_user: str
    ssh_key: str = ""
    """Private key, on the machine that launches; Ray copies it to the head. Empty: ssh's own keys, on the head too."""
    ssh_proxy: str = ""
    """`ProxyCommand` to the head, for instance `ssh -W %h:%p me@front-end`."""
    python: str = "python3"
    """Interpreter on every host, in the environment that has this project."""
    activate: str = ""
    """Shell line before it, for instance `module load python`."""
    interface: str = ""
    """Network interface whose address the workers use; empty: the one by which the head reaches them."""
    port_base: int = LOWEST
    """First of the ports, the same on every host."""
    dashboard: bool = False
    use_head: bool = False
    """Whether trials may run on the head too."""
    wait_s: float = 300
    """How long the workers may take to join."""

    def __post_init__(self) -> None:
        """Refuse what would be read as something else on a host.

        Raises:
            LaunchError: A name, an address or a path is not plain.
        """
        for place, value, pattern, fix in (
            ("cluster name", self.name, rf"[a-z][a-z0-9-]{{0,{LONGEST_NAME - 1}}}", "For instance lab-study."),
            ("study name", self.study, r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "Give another --name."),
            ("--head-ip", self.head_ip, r"\d+(\.\d+){3}", "Give the address at which the others reach the head."),
            ("ssh user", self.ssh_user, r"[A-Za-z0-9_][\w.-]*", "Give --ssh-user."),
            ("--interface", self.interface, r"[\w.:-]*", "For instance eth0."),
            ("--python", self.python, r"[\w./+-]+", "Give a path, or a name that --activate puts on the PATH."),
            *((f"host {host.name}", host.name, r"[A-Za-z0-9][\w.-]*", "A name or an address.") for host in self.hosts),
        ):
            if not re.fullmatch(pattern, value, flags=re.ASCII):
                raise LaunchError(f"ray-up: {place}: must match {pattern}, got '{value}'. Fix: {fix}")
        if self.workers and self.head_ip.startswith("127."):
            raise LaunchError(
                f"ray-up: {self.head.name}: must have an address that the workers reach, got {self.head_ip}, which is "
                "each machine's own. Fix: give --head-ip."
            )
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise LaunchError(f"ray-up: hosts: must be different, got {', '.join(names)}. Fix: list each once.")

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All of them, the head first."""
        return (self.head, *self.workers)

    @property
    def address(self) -> str:
        """Of the head, host:port."""
        return f"{self.head_ip}:{self.port_base}"

    @property
    def dashboard_port(self) -> int:
        """Where the head's dashboard listens, on loopback only."""
        return self.port_base + 7

    @property
    def temp_dir(self) -> str:
        """Folder on every host's own disk: closed to others, and the mark of this cluster's processes."""
        return f"/tmp/ru-{self.name}"

    @property
    def folder(self) -> str:
        """Folder of the study on every host, in the home of the user."""
        return f"study-{self.name}"

    @property
    def space(self) -> str:
        """Name of the space file in that folder; it names the study."""
        return f"{self.study}.yaml"


def render(cluster: RayUp) -> str:
    """Return the text of `cluster.yaml`."""
    return fill(
        "cluster.yaml.j2",
        cluster=cluster,
        file_mounts={
            f"~/{cluster.folder}/ray.token": cluster.token_file,
            f"~/{cluster.folder}/{cluster.space}": cluster.space_file,
        },
        stop=stop_command(cluster),
        start_head=_start_head(cluster),
        start_worker=_start_worker(cluster),
    )


def commands(cluster: RayUp, file: str) -> tuple[Step, ...]:
    """Return what to type, in this order, on the machine that launches.

    Args:
        cluster: The cluster.
        file: Where `cluster.yaml` was written.
    """
    # The newer autoscaler, Ray's default, counts the head among the workers of this provider, and starts one too few.
    older = "RAY_UP_enable_autoscaler_v2=0"
    yaml, here = shlex.quote(file), cluster.temp_dir
    run, stop = shlex.quote(study_command(cluster)), shlex.quote(stop_all_command(cluster))
    results = shlex.quote(f"~/{cluster.folder}/studies/")
    return (
        Step(
            # Ray keeps the provider's state in this folder; by default in /tmp/ray, which is the first user's.
            f"mkdir -p -m 700 {here} && export RAY_TMPDIR={here} {older}",
            "a folder for the state of `ray up`, on this machine",
        ),
        Step(f"ray up --yes {yaml}", "start Ray on all hosts; needs rsync here and there"),
        Step(
            f"ray exec {yaml} {run}",
            "run the study, or go on with it; with --tmux after `exec` it outlives this terminal",
        ),
        Step(f"ray rsync-down {yaml} {results} studies/", "fetch the results"),
        Step(f"ray exec {yaml} {stop}", "stop this cluster's processes, and no others"),
        Step(
            f"ray down --yes {yaml}",
            "forget the cluster; runs `ray stop` on the head: leave it out where another Ray of yours runs there",
        ),
    )


def study_command(cluster: RayUp) -> str:
    """Return the shell line that runs the study on the head, once all hosts have joined."""
    wait = ["study.launch.await_nodes", cluster.address, str(len(cluster.hosts)), f"{cluster.wait_s:g}"]
    run = ["study", "run", "--space", cluster.space, "--address", cluster.address, "--resume-or-start"]
    python = [_python(cluster), "-m"]
    lines = (shlex.join([*python, *wait]), shlex.join([*python, *run, *cluster.arguments]))
    return " && ".join([*_entered(cluster), f'cd "$HOME"/{cluster.folder}', *lines])


def stop_command(cluster: RayUp) -> str:
    """Return the shell line that ends this cluster's processes on one host, and no others.

    They have its folder on their command line. The autoscaler goes first, since it starts again what is gone, and waits
    for Ray's head when that is gone; then the raylet, which waits for it too, and takes its workers along.
    """
    return _end(cluster, "/monitor.py ", "/raylet ", "")


def stop_all_command(cluster: RayUp) -> str:
    """Return the shell line that does so everywhere, run on the head: workers first, which would wait for the head."""
    if not cluster.workers:
        return stop_command(cluster)
    key = ["-i", "~/ray_bootstrap_key.pem"] if cluster.ssh_key else []
    ssh = " ".join(["ssh", *key, "-o BatchMode=yes", "-o StrictHostKeyChecking=accept-new", "-l", cluster.ssh_user])
    names = " ".join(host.name for host in cluster.workers)
    there = f"for host in {names}; do {ssh} $host {shlex.quote(stop_command(cluster))} & done; wait"
    return "; ".join([_end(cluster, "/monitor.py "), there, stop_command(cluster)])


def _end(cluster: RayUp, *kinds: str) -> str:
    """Return the shell line that ends processes of this cluster, one kind after the other.

    The brackets keep the pattern from finding the shell that looks.
    """
    marks = " ".join(f"'{kind}.*[/]tmp/ru-{cluster.name}/'" for kind in kinds)
    find = '$(pgrep -u "$(id -u)" -f -- "$mark")'
    wait = f'timeout {_STOP_TIMEOUT_S} tail --pid="$pid" -f /dev/null || kill -KILL "$pid"'
    return (
        f'for mark in {marks}; do for pid in {find}; do kill -TERM "$pid" 2>/dev/null; done; '
        f"for pid in {find}; do {wait}; done; done"
    )


def _entered(cluster: RayUp) -> Iterator[str]:
    """Yield the shell lines after which Ray and this project are there, and Ray's token is known."""
    if cluster.activate:
        yield cluster.activate
    if "/" in cluster.python:
        yield f'export PATH={shlex.quote(str(PurePosixPath(cluster.python).parent))}:"$PATH"'
    yield "unset OMP_NUM_THREADS"  # `ray up` sets it to 1 for all that it starts, and so for every learner
    values = {**RAY_ENVIRONMENT, "RAY_AUTH_TOKEN_PATH": f"$HOME/{cluster.folder}/ray.token"}
    yield "export " + " ".join(f'{name}="{value}"' for name, value in values.items())


def _python(cluster: RayUp) -> str:
    return PurePosixPath(cluster.python).name


def _closed_folder(cluster: RayUp) -> Iterator[str]:
    folder = cluster.temp_dir
    yield f"mkdir -p -m 700 {folder}"
    yield f"{{ test -O {folder} || {{ echo {folder}: must be yours >&2; exit 1; }}; }}"


def _start_head(cluster: RayUp) -> str:
    works = cluster.use_head or not cluster.workers
    cpus = _cpus(cluster, cluster.head) if works else "0"
    words = [
        "ray start --head",
        f"--port={cluster.port_base}",
        f"--node-ip-address={cluster.head_ip}",
        f"--num-cpus={cpus}",
        f"--include-dashboard={str(cluster.dashboard).lower()}",
        f"--dashboard-host=127.0.0.1 --dashboard-port={cluster.dashboard_port}",
        *_common(cluster),
        "--autoscaling-config=~/ray_bootstrap_config.yaml",
        "$client",
    ]
    # Where grpc is installed, the head has a server for Ray Client too: at 10001, which it would share with other Rays.
    client = f"--ray-client-server-port={cluster.port_base + 8}"
    find_client = f"client=$({_python(cluster)} -c 'import grpc' 2>/dev/null && echo {client} || true)"
    # Its autoscaler keeps its state there too; what an earlier life has left would have it wait for dead workers.
    state = f"export RAY_TMPDIR={cluster.temp_dir} && rm -f {cluster.temp_dir}/ray/cluster-{cluster.name}.state"
    return " && ".join([*_entered(cluster), *_closed_folder(cluster), state, find_client, " ".join(words)])


def _start_worker(cluster: RayUp) -> str:
    if cluster.interface:
        ip = f"$(ip -4 -o address show dev {cluster.interface} | awk '{{split($4, a, \"/\"); print a[1]; exit}}')"
    else:
        ip = "$(echo $SSH_CONNECTION | cut -d ' ' -f 3)"  # where the head's connection arrived
    words = [
        f"ray start --address={cluster.address}",
        '--node-ip-address="$ip"',
        '--num-cpus="$cpus"',
        *_common(cluster),
    ]
    lines = (
        *_entered(cluster),
        *_closed_folder(cluster),
        f"ip={ip}",
        '{ test -n "$ip" || { echo "no IPv4 address for Ray here" >&2; exit 1; }; }',
        *_find_cpus(cluster),
        " ".join(words),
    )
    return " && ".join(lines)


def _find_cpus(cluster: RayUp) -> Iterator[str]:
    """Yield the shell lines that set a worker's CPUs: there is one command for all, so each looks for its own name."""
    if len({host.num_cpus for host in cluster.workers}) <= 1:
        yield from (f"cpus={_cpus(cluster, host)}" for host in cluster.workers[:1])
        return
    cases = " ".join(f"{host.name}) cpus={_cpus(cluster, host)};;" for host in cluster.workers)
    names = '"$(echo $SSH_CONNECTION | cut -d " " -f 3)" "$ip" "$(hostname)" "$(hostname -s)" "$(hostname -f)"'
    yield f'cpus= && for name in {names}; do case "$name" in {cases} esac; done'
    yield '{ test -n "$cpus" || { echo "$(hostname), $ip: not among the hosts; list addresses" >&2; exit 1; }; }'


def _common(cluster: RayUp) -> Iterator[str]:
    yield f"--temp-dir={cluster.temp_dir}/r"
    for offset, name in enumerate(_RAY_PORTS, start=1):
        yield f"--{name}={cluster.port_base + offset}"
    most = max(host.num_cpus or 64 for host in cluster.hosts)
    first = cluster.port_base + _NUM_PORTS
    yield f"--min-worker-port={first} --max-worker-port={first + 99 + 4 * most}"
    yield "--disable-usage-stats"


def _cpus(cluster: RayUp, host: Host) -> str:
    """Return the CPUs of a host, or what asks it: Ray itself would claim the whole machine."""
    if host.num_cpus is None:
        return f"$({shlex.join([_python(cluster), '-c', _CORES])})"
    return str(host.num_cpus)
