"""`launch ray-up` and `launch kuberay`: the files that these programs read, and what to type. Starts nothing.

The files are the templates `cluster.yaml`, `node.sh`, `rayjob.yaml`, `Containerfile` and `apptainer.def` with values.
Checked against Ray 2.60 (`ray/autoscaler/ray-schema.json`, `_private/local/`, `_private/commands.py` and `updater.py`)
and KubeRay (its `RayJob` schema, `controllers/ray/common/job.go`, `controllers/ray/utils/validation.go`).
"""

import dataclasses
import getpass
import hashlib
import json
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, NoReturn
from urllib.parse import unquote

import typer

from study.console import write
from study.designs.registry import make_plan
from study.launch.files import WrittenFiles, fill
from study.launch.job import Host
from study.launch.node import LOWEST_PORT
from study.launch.options import HostOptions, Hosts, LaunchOptions, Nodes, refuse
from study.launch.ssh import dashboard_line, parse_hosts
from study.options import seconds
from study.planning.shape import ClusterShape, NodeShape

RAY_VERSION = "2.60.0"
"""Of the Ray in the image; KubeRay wants to know it where a token is asked for."""
LONGEST_NAME = 24
"""With Ray's own names behind it, a socket's path stays below 107 bytes. KubeRay's limit is 47."""
_LEAST_DEADLINE_S = 60
_HEAD_CPUS, _HEAD_GB = 2, 8
"""Of the pod of Ray's head."""
_PASSWORD = re.compile(r"://.*:.*@|[?&;]\w*(password|passwd|pwd|token|secret)\w*=", re.IGNORECASE | re.DOTALL)
"""What looks like one in a URI, well-formed or not."""

Step = tuple[str, str]
"""What a command is for, and the command."""


@dataclass(frozen=True, kw_only=True)
class RayUpOptions(HostOptions):
    """Write the files for `ray up` on machines of your own, and say what to type."""

    hosts: Hosts
    ssh_key: Annotated[str, typer.Option(help="Private key for the hosts; Ray copies it to the first.")] = ""
    head_ip: Annotated[str, typer.Option(help="Address at which the others reach the first host.")] = ""

    def __post_init__(self) -> None:
        """Refuse what a shell on a host would read as something else, and passwords."""
        super().__post_init__()
        _check_no_password(self)
        for option, value, pattern, fix in (
            ("--interface", self.interface, r"[\w.:-]*", "For instance eth0."),
            ("--python", self.python, r"[\w./+-]+", "Give a path, or a name that --activate puts on the PATH."),
            ("--head-ip", self.head_ip, r"(\d+(\.\d+){3})?", "Give the address at which the others reach the head."),
        ):
            if not re.fullmatch(pattern, value, flags=re.ASCII):
                refuse(option, f"must match {pattern}", value, fix)


@dataclass(frozen=True, kw_only=True)
class KubeRayOptions(LaunchOptions):
    """Write a RayJob for KubeRay and container recipes, and say what to type."""

    image: Annotated[str, typer.Option(help="Container image with this project, e.g. registry.example.org/me/study:1.")]
    cpus_per_node: Annotated[int, typer.Option(min=1, help="CPUs of each node.")]
    nodes: Nodes = 1
    memory_gb: Annotated[int | None, typer.Option(min=2, help="Memory of each node; by default its CPUs + 2.")] = None
    walltime: Annotated[str, typer.Option(help="Longest duration, waiting for pods included: 2:00:00, 90m.")] = ""

    def __post_init__(self) -> None:
        """Refuse what KubeRay or the two shells that read the arguments would not take as it is meant."""
        super().__post_init__()
        _check_no_password(self)
        if self.deadline_s is not None and self.deadline_s < _LEAST_DEADLINE_S:
            refuse("--walltime", f"must be {_LEAST_DEADLINE_S} s or more", self.walltime, "Raise it.")
        for word in self.run_arguments():
            if shlex.quote(word) != word:
                rule = "must have no signs of a shell, because two shells read it"
                refuse("argument", rule, word, "Write the value into the space file.")

    @property
    def deadline_s(self) -> int | None:
        """Seconds after which KubeRay ends the job; None without a limit."""
        return int(seconds(self.walltime, "--walltime")) if self.walltime else None


def show_ray_up(options: RayUpOptions) -> int:
    """Write what `ray up` reads, or only show it; return the exit code."""
    return _show(options, *ray_up_files(options), shown="cluster.yaml")


def show_kuberay(options: KubeRayOptions) -> int:
    """Write what KubeRay reads, or only show it; return the exit code."""
    return _show(options, *kuberay_files(options), shown="rayjob.yaml")


def _show(options: LaunchOptions, texts: dict[str, str], steps: Sequence[Step], *, shown: str) -> int:
    if options.print_:
        sys.stdout.write(texts[shown])
    else:
        WrittenFiles(options.folder, texts)
        write(f"Wrote {', '.join(str(options.folder / name) for name in texts)}. Now type:\n")
    write("".join(f"\n# {why}\n{command}\n" for why, command in steps))
    return 0


def ray_up_files(options: RayUpOptions) -> tuple[dict[str, str], list[Step]]:
    """Return the files of a cluster by their names, and the commands in their order.

    Raises:
        SpaceError: The space is wrong, or the head has no address that the workers reach.
    """
    from study.cluster.connection import RAY_ENVIRONMENT

    listed, me = parse_hosts(options.hosts), getpass.getuser()
    user = listed[0].name.rpartition("@")[0] or me
    name = plain_name(options.study_name, of=f"{me} {user}")  # its folder in /tmp is among those of other people
    hosts = [
        dataclasses.replace(host, name=host.name.rpartition("@")[2], num_cpus=options.cpus_per_node or host.num_cpus)
        for host in listed
    ]
    head, *workers = hosts
    head_ip = options.head_ip or _address_of(head.name)
    if len({host.name for host in hosts}) < len(hosts):
        refuse("--hosts", "must be different hosts", options.hosts, "List each once.")
    if workers and head_ip.startswith("127."):
        rule = "must be an address that the other hosts reach, and not that of every machine itself"
        refuse("--head-ip", rule, head_ip, "Give --head-ip.")
    base = options.port_base or LOWEST_PORT
    folder, yaml = options.folder, options.folder / "cluster.yaml"
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
        "folder": folder,
        "space_file": options.space_file.resolve(),
        "space": f"{options.study_name}.yaml",
        "python": PurePosixPath(options.python),
        "environment": RAY_ENVIRONMENT,
        "port": base,
        # Ray starts up to a few processes for each CPU.
        "last_worker_port": base + 10 + 99 + 4 * max(host.num_cpus or 64 for host in hosts),
        "arguments": ["--name", options.study_name, *options.run_arguments()],
    }
    texts = {
        yaml.name: fill("cluster.yaml.j2", **values),
        "node.sh": fill("node.sh.j2", **values),
        "ray.token": secrets.token_urlsafe(32),
    }
    return texts, _ray_up_steps(options, name=name, head=head, user=user, dashboard_port=base + 7)


def _ray_up_steps(options: RayUpOptions, *, name: str, head: Host, user: str, dashboard_port: int) -> list[Step]:
    yaml, temp = shlex.quote(str(options.folder / "cluster.yaml")), f"/tmp/ru-{name}"
    node = f"~/study-{name}/node.sh"
    # The newer autoscaler, Ray's default, counts the head among the workers of this provider, and starts one too few.
    # Ray keeps the provider's state in RAY_TMPDIR; by default in /tmp/ray, which belongs to its first user.
    prepare = f"mkdir -p -m 700 {temp} && export RAY_TMPDIR={temp} RAY_UP_enable_autoscaler_v2=0"
    steps = [
        ("a folder for the state of `ray up`, on this machine", prepare),
        ("start Ray on all hosts; needs rsync here and there", f"ray up --yes {yaml}"),
        (
            "run the study, or go on with it; with --tmux after `exec` it outlives this terminal",
            f"ray exec {yaml} '. {node} run'",
        ),
        ("fetch the results", f"ray rsync-down {yaml} '~/study-{name}/studies/' studies/"),
        ("stop this cluster's processes, and no others", f"ray exec {yaml} '. {node} stop-all'"),
        (
            "forget the cluster; runs `ray stop` on the head: leave it out where another Ray of yours runs there",
            f"ray down --yes {yaml}",
        ),
    ]
    if options.dashboard:
        line = dashboard_line(head.name, dashboard_port, jump=options.jump, user=user)
        steps.append(("from your own machine, once it runs", line))
    return steps


def kuberay_files(options: KubeRayOptions) -> tuple[dict[str, str], list[Step]]:
    """Return the RayJob and the recipes of its container by their names, and the commands in their order.

    Raises:
        SpaceError: The space is wrong.
        ClusterError: A trial of the space can never fit into these pods.
    """
    from study.cluster.connection import RAY_ENVIRONMENT

    memory_gb = options.memory_gb or options.cpus_per_node + 2
    pods = [(f"worker {index}", options.cpus_per_node, memory_gb) for index in range(1, options.nodes + 1)]
    pods += [("head", _HEAD_CPUS, _HEAD_GB)] if options.use_head else []
    nodes = [NodeShape(address=pod, num_cpus=cpus, physical_cpus=cpus, memory_mb=gb * 1024) for pod, cpus, gb in pods]
    make_plan(options.spec, ClusterShape(nodes=tuple(nodes)))
    name, space = plain_name(options.study_name), f"{options.study_name}.yaml"
    arguments = ["--name", options.study_name, *options.run_arguments()]
    if "--tracking-uri" not in arguments:
        arguments = ["--tracking-uri", "sqlite:////study/mlflow.db", *arguments]  # else it would go with the pod
    texts = {
        "rayjob.yaml": fill(
            "rayjob.yaml.j2",
            options=options,
            name=name,
            space=space,
            space_text=options.space_file.read_text(),
            head={"num_cpus": _HEAD_CPUS, "memory_gb": _HEAD_GB},
            worker={"num_cpus": options.cpus_per_node, "memory_gb": memory_gb},
            entrypoint=(
                f"python run_study.py --space /etc/study/{space} --address auto --resume-or-start --out /study/studies "
                + shlex.join(arguments)
            ),
            environment={key: value for key, value in RAY_ENVIRONMENT.items() if key != "RAY_AUTH_MODE"},
            ray_version=RAY_VERSION,
        ),
        "Containerfile": fill("Containerfile.j2"),
        "apptainer.def": fill("apptainer.def.j2"),
    }
    return texts, _kuberay_steps(options, name)


def _kuberay_steps(options: KubeRayOptions, name: str) -> list[Step]:
    rayjob, recipe, apptainer = (
        shlex.quote(str(options.folder / file)) for file in ("rayjob.yaml", "Containerfile", "apptainer.def")
    )
    image, sif, pod = shlex.quote(options.image), f"{name}.sif", f"{name}-files"
    claim = {"name": "study", "persistentVolumeClaim": {"claimName": f"{name}-studies"}}
    mount = {"name": "study", "mountPath": "/study"}
    container = {"name": pod, "image": options.image, "command": ["sleep", "3600"], "volumeMounts": [mount]}
    overrides = shlex.quote(json.dumps({"spec": {"volumes": [claim], "containers": [container]}}))
    index = "--build-arg PIP_EXTRA_INDEX_URL=…"
    return [
        (
            f"in the project's folder; {index} names an index with PyTorch for CPUs, which is gigabytes smaller",
            f"podman build -f {recipe} -t {image} .",
        ),
        ("to where the cluster gets its images", f"podman push {image}"),
        ("start, or go on with the study where no such RayJob is left", f"kubectl apply -f {rayjob}"),
        ("show its state", f"kubectl get rayjob {name} --watch"),
        ("what the study prints", f"kubectl logs -f job/{name}"),
        ("the Ray dashboard at http://127.0.0.1:8265", f"kubectl port-forward service/{name}-head-svc 8265"),
        (
            "a pod that sees the results",
            f"kubectl run {pod} --image={image} --restart=Never --overrides={overrides}",
        ),
        (
            "fetch them",
            f"kubectl wait --for=condition=Ready pod/{pod} && kubectl cp {pod}:/study/studies studies",
        ),
        ("end; the claim stays, and the study in it", f"kubectl delete pod/{pod} rayjob/{name}"),
        (
            "for a cluster without Docker, instead of all above; in the project's folder",
            f"apptainer build --fakeroot {sif} {apptainer}",
        ),
        ("try it", f"apptainer exec {sif} python -m study run --space quickstart.yaml --dry-run"),
    ]


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


def _check_no_password(options: LaunchOptions) -> None:
    """Refuse a password in what is printed, and in what others read: a RayJob, the command line of `ray exec`."""
    for option, uri in (("--tracking-uri", options.tracking_uri), ("--optuna-storage", options.optuna_storage)):
        if uri is not None and _PASSWORD.search(unquote(uri)):
            _refuse_password(option)


def _refuse_password(option: str) -> NoReturn:
    fix = (
        "Leave it out; MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, PostgreSQL PGPASSWORD, "
        "from the environment of Ray's head (--activate, or a Secret that you add to rayjob.yaml)."
    )
    refuse(option, "must be a URI without a password, because others can read what is written", "one with it", fix)


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)  # 127.0.1.1 for a Debian machine's own name: refused where others must join
    except OSError:
        refuse("--hosts", "must begin with a host whose address is known here", host, "Give --head-ip.")
