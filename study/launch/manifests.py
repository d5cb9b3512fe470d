"""`launch ray-up` and `launch kuberay`: the files that these programs read, and what to type. Starts nothing.

The files and the commands are templates with values; one that is missing is an error, and a value is always written as
a quoted string, so that no name of a host, a file or an image can change the meaning of a file.

Checked against Ray 2.60 (`ray/autoscaler/ray-schema.json`,
`_private/local/`, `_private/commands.py` and `updater.py`) and KubeRay (its `RayJob` schema,
`controllers/ray/common/job.go`, `controllers/ray/utils/validation.go`).
"""

import dataclasses
import getpass
import hashlib
import json
import re
import secrets
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from study.cluster.environment import RAY_ENVIRONMENT
from study.designs.registry import make_plan
from study.harmless import mask_arguments
from study.launch.node import CELL, LOWEST_PORT
from study.launch.options import HostOptions, Hosts, LaunchOptions, Nodes
from study.launch.schedulers import dashboard_line, parse_hosts
from study.mirrors.tracking_uri import VARIABLE, asked_uri
from study.options import seconds, wrong_option
from study.planning.shape import ClusterShape, NodeShape

RAY_VERSION = "2.60.0"
"""Of the Ray in the image; KubeRay needs it for the token."""
LONGEST_NAME = 24
"""With Ray's own names behind it, a socket's path stays below 107 bytes. KubeRay's limit is 47."""
_LEAST_DEADLINE_S = 60
_HEAD_CPUS, _HEAD_GB = 2, 8
"""Of the pod of Ray's head."""
_PASSWORD = re.compile(r"://.*:.*@|[?&;]\w*(password|passwd|pwd|token|secret)\w*=", re.IGNORECASE | re.DOTALL)
"""What looks like one in a URI, well-formed or not."""


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """What another program reads, and how it is called.

    Attributes:
        files: Name -> content; the first is the one that `--print` shows.
        commands: What to type, in its order, each below what it is for.
    """

    files: dict[str, str]
    commands: str


@dataclass(frozen=True, kw_only=True)
class RayUpOptions(HostOptions):
    """Write the files for `ray up` on machines of your own, and say what to type."""

    example = "python -m study launch ray-up scaling.yaml --hosts lab-1:8,lab-2:16,lab-3:16"
    hosts: Hosts
    ssh_key: Annotated[str, typer.Option(help="Private key for the hosts; Ray copies it to the first.")] = ""
    head_ip: Annotated[str, typer.Option(help="Address at which the others reach the first host.")] = ""

    def __post_init__(self) -> None:
        """Refuse what a shell on a host would read as something else, and passwords."""
        super().__post_init__()
        _check_no_secret(self)
        for option, value, pattern, fix in (
            ("--interface", self.interface, r"[\w.:-]*", "Name one like eth0."),
            ("--python", self.python, r"[\w./+-]+", "Give a path, or a name that --activate puts on the PATH."),
            ("--head-ip", self.head_ip, r"(\d+(\.\d+){3})?", "Give the address at which the others reach the head."),
        ):
            if not re.fullmatch(pattern, value, flags=re.ASCII):
                raise wrong_option(option, rule=f"must match {pattern}", got=value, fix=fix)


@dataclass(frozen=True, kw_only=True)
class KubeRayOptions(LaunchOptions):
    """Write a RayJob for KubeRay and container recipes, and say what to type."""

    example = "python -m study launch kuberay scaling.yaml --nodes 3 --cpus-per-node 16 --image example.org/study:1"
    image: Annotated[str, typer.Option(help="Container image with this project, e.g. registry.example.org/me/study:1.")]
    cpus_per_node: Annotated[int, typer.Option(min=1, help="CPUs of each node.")]
    nodes: Nodes = 1
    memory_gb: Annotated[int | None, typer.Option(min=2, help="Memory of each node; by default its CPUs + 2.")] = None
    walltime: Annotated[str, typer.Option(help="Longest duration, waiting for pods included: 2:00:00, 90m.")] = ""

    def __post_init__(self) -> None:
        """Refuse what KubeRay or the two shells that read the arguments would not take as it is meant."""
        super().__post_init__()
        _check_no_secret(self)
        if self.deadline_s is not None and self.deadline_s < _LEAST_DEADLINE_S:
            rule = f"must be {_LEAST_DEADLINE_S} s or more"
            raise wrong_option("--walltime", rule=rule, got=self.walltime, fix="Raise it.")
        for word in self.run_arguments():
            if shlex.quote(word) != word:
                rule = "must have no signs of a shell, because two shells read it"
                raise wrong_option("argument", rule=rule, got=word, fix="Write it into the space file.")

    @property
    def deadline_s(self) -> int | None:
        """Seconds after which KubeRay ends the job; None without a limit."""
        return int(seconds(self.walltime, "--walltime")) if self.walltime else None


def ray_up(options: RayUpOptions) -> Manifests:
    """Return the files of a cluster on listed hosts, and the commands of `ray`.

    Raises:
        SpaceError: The space is wrong, or the head has no address that the workers reach.
        LaunchError: A host or a user could be read as an option of ssh.
    """
    listed, me = parse_hosts(options.hosts), getpass.getuser()
    user = listed[0].name.rpartition("@")[0] or me
    if {each.name.rpartition("@")[0] for each in listed} - {user, ""}:
        rule, fix = f"must have one user, here {user}: `ray up` has the same for all", "Write it before the first host."
        raise wrong_option("--hosts", rule=rule, got=options.hosts, fix=fix)
    name = plain_name(options.study_name, of=f"{me} {user}")  # its folder in /tmp is among those of other people
    hosts = [
        dataclasses.replace(host, name=host.name.rpartition("@")[2], num_cpus=options.cpus_per_node or host.num_cpus)
        for host in listed
    ]
    if len({host.name for host in hosts}) < len(hosts):
        raise wrong_option("--hosts", rule="must be different hosts", got=options.hosts, fix="List each once.")
    head, *workers = hosts
    head_ip = options.head_ip or _address_of(head.name)
    if workers and head_ip.startswith("127."):
        rule = "must be an address that the other hosts reach, and not that of every machine itself"
        raise wrong_option("--head-ip", rule=rule, got=head_ip, fix="Give --head-ip.")
    base = -(-(options.port_base or LOWEST_PORT) // CELL) * CELL
    dashboard = dashboard_line(head.name, base + 7, jump=options.jump, user=user) if options.dashboard else ""
    values = {
        "options": options,
        "name": name,
        "home": f"study-{name}",
        "temp": f"/tmp/ru-{name}",
        "user": user,
        "ssh_key": str(Path(options.ssh_key).resolve()) if options.ssh_key else "",
        "head": head,
        "head_ip": head_ip,
        "workers": workers,
        "num_hosts": len(hosts),
        "equal_cpus": len({host.num_cpus for host in workers}) <= 1,
        "folder": options.folder,
        "yaml": options.folder / "cluster.yaml",
        "space_file": options.space_file.resolve(),
        "space": f"{options.study_name}.yaml",
        "python": PurePosixPath(options.python),
        "environment": RAY_ENVIRONMENT,
        "port": base,
        # Ray starts up to a few processes for each CPU.
        "last_worker_port": base + 10 + 99 + 4 * max(host.num_cpus or 64 for host in hosts),
        "arguments": ["--name", options.study_name, *options.run_arguments()],
        "dashboard_line": dashboard,
    }
    files = {name: fill(f"{name}.j2", **values) for name in ("cluster.yaml", "node.sh")}
    files["ray.token"] = secrets.token_urlsafe(32)
    return Manifests(files=files, commands=fill("ray-up.txt.j2", **values))


def kuberay(options: KubeRayOptions) -> Manifests:
    """Return the RayJob and the recipes of its container, and the commands of podman and kubectl.

    Raises:
        SpaceError: The space is wrong.
        ClusterError: A trial of the space can never fit into these pods.
    """
    memory_gb = options.memory_gb or options.cpus_per_node + 2
    pods = [(f"worker {index}", options.cpus_per_node, memory_gb) for index in range(1, options.nodes + 1)]
    pods += [("head", _HEAD_CPUS, _HEAD_GB)] if options.use_head else []
    nodes = [NodeShape(address=pod, num_cpus=cpus, physical_cpus=cpus, memory_mb=gb * 1024) for pod, cpus, gb in pods]
    make_plan(options.spec, ClusterShape(nodes=tuple(nodes)))
    space = f"{options.study_name}.yaml"
    arguments = ["--name", options.study_name, *options.run_arguments()]
    if "--tracking-uri" not in arguments:
        arguments = ["--tracking-uri", "sqlite:////study/mlflow.db", *arguments]  # else it would go with the pod
    entrypoint = f"python run_study.py --space /etc/study/{space} --address auto --resume-or-start --out /study/studies"
    values = {
        "options": options,
        "name": plain_name(options.study_name),
        "folder": options.folder,
        "space": space,
        "space_text": options.space_file.read_text(encoding="utf-8-sig"),
        "head": {"num_cpus": _HEAD_CPUS, "memory_gb": _HEAD_GB},
        "worker": {"num_cpus": options.cpus_per_node, "memory_gb": memory_gb},
        "entrypoint": f"{entrypoint} {shlex.join(arguments)}",
        "environment": {key: value for key, value in RAY_ENVIRONMENT.items() if key != "RAY_AUTH_MODE"},
        "ray_version": RAY_VERSION,
    }
    files = {name: fill(f"{name}.j2", **values) for name in ("rayjob.yaml", "Containerfile", "apptainer.def")}
    return Manifests(files=files, commands=fill("kuberay.txt.j2", **values))


def plain_name(name: str, *, of: str = "") -> str:
    """Return a name as Ray's autoscaler and Kubernetes take it: a letter first, then letters, digits, dashes.

    What is lost of it becomes six digits, so that no two studies get one name.

    Args:
        name: Of the study.
        of: Whose it is, where several people share the place.
    """
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower())
    plain = (plain if plain[:1].isalpha() else f"s-{plain}").strip("-")
    whole = f"{of} {name}".strip()
    if whole == plain and len(plain) <= LONGEST_NAME:
        return plain
    mark = hashlib.sha256(whole.encode()).hexdigest()[:6]
    return f"{plain[: LONGEST_NAME - len(mark) - 1].strip('-')}-{mark}"


def _check_no_secret(options: LaunchOptions) -> None:
    """Refuse a secret in what is printed, and in what others read: a RayJob, the command line of `ray exec`."""
    variable = VARIABLE if options.tracking_uri is None else "--tracking-uri"
    for place, uri in ((variable, asked_uri(options.tracking_uri)), ("--optuna-storage", options.optuna_storage)):
        if uri is not None and _PASSWORD.search(unquote(uri)):
            fix = (
                "Leave it out; MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, PostgreSQL "
                "PGPASSWORD, from the environment of Ray's head (--activate, or a Secret that you add to rayjob.yaml)."
            )
            rule = "must be a URI without a password, because others can read what is written"
            raise wrong_option(place, rule=rule, got="one with it", fix=fix)
    given = {name: getattr(options.spec, name) for name in ("config_args", "config_kwargs")}
    for name, shown in mask_arguments(given).items():
        if shown != given[name]:
            rule = "must hold no secret: others can read the files that this command writes"
            fix = "Let the script read it from a variable of the environment, or from a file."
            raise wrong_option(name, rule=rule, got=str(shown), fix=fix)


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)  # 127.0.1.1 for a Debian machine's own name: refused where others must join
    except OSError as error:
        rule, fix = "must begin with a host whose address is known here", "Give --head-ip."
        raise wrong_option("--hosts", rule=rule, got=host, fix=fix) from error


def fill(template: str, **values: Any) -> str:
    """Return a template with its values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("study.launch", "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # YAML and scripts, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"json": json.dumps, "tojson": quoted, "sh": lambda value: shlex.quote(str(value))}
    return environment.get_template(template).render(values)


def quoted(value: Any) -> str:
    r"""Return a value as JSON that YAML reads as the same.

    JSON is YAML, except for characters that YAML 1.1 folds or refuses, and for those that JSON writes as two
    surrogates: all but printable ASCII becomes `\uXXXX` or `\UXXXXXXXX`, which YAML reads.
    """

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

    return re.sub(r"[^ -~]", escape, json.dumps(value, ensure_ascii=False))
