"""`launch ray-up` and `launch kuberay`: the files that these programs read, and what to type. Starts nothing.

The files and the commands are templates with values; one that is missing is an error, and a value is always written as
a quoted string, so that no name of a host, a file or an image can change the meaning of a file.

Checked against Ray 2.60 (`ray/autoscaler/ray-schema.json`,
`_private/local/`, `_private/commands.py` and `updater.py`) and KubeRay (its `RayJob` schema,
`controllers/ray/common/job.go`, `controllers/ray/utils/validation.go`).
"""

import getpass
import hashlib
import json
import re
import secrets
import shlex
import socket
from pathlib import Path, PurePosixPath
from typing import Any

from study.designs.registry import make_plan
from study.harmless import mask_arguments
from study.launch.job import Host, Job, parse_hosts
from study.launch.node import LOWEST_PORT
from study.machine.cluster import RAY_ENVIRONMENT
from study.machine.shape import ClusterShape, NodeShape
from study.options import wrong_option
from study.space.spec import StudySpec

RAY_VERSION = "2.60.0"
"""Of the Ray in the image; KubeRay needs it for the token."""
LONGEST_NAME = 24
"""With Ray's own names behind it, a socket's path stays below 107 bytes. KubeRay's limit is 47."""
_HEAD_CPUS, _HEAD_GB = 2, 8
"""Of the pod of Ray's head."""
_PASSWORD = re.compile(r"://.*:.*@|[?&;]\w*(password|passwd|pwd|token|secret)\w*=", re.IGNORECASE | re.DOTALL)
"""What looks like one in a URI, well-formed or not."""


def ray_up(job: Job, folder: Path, spec: StudySpec) -> tuple[dict[str, str], str]:
    """Return the files of a cluster on listed hosts by their names, and the commands of `ray`.

    Args:
        job: The launch.
        folder: Where the files will be, on this machine.
        spec: The space.

    Raises:
        SpaceError: An option holds a secret, or names no head that the other hosts reach.
    """
    _check_no_secret(job, spec)
    listed, me = parse_hosts(job.hosts), getpass.getuser()
    user = listed[0].name.rpartition("@")[0] or me
    if {each.name.rpartition("@")[0] for each in listed} - {user, ""}:
        rule, fix = f"must have one user, here {user}: `ray up` has the same for all", "Write it before the first host."
        raise wrong_option("--hosts", rule=rule, got=job.hosts, fix=fix)
    name = plain_name(job.name, of=f"{me} {user}")  # its folder in /tmp is among those of other people
    hosts = [Host(each.name.rpartition("@")[2], job.cpus_per_node or each.num_cpus) for each in listed]
    head, *workers = hosts
    values = {
        "job": job,
        "name": name,
        "home": f"study-{name}",
        "temp": f"/tmp/ru-{name}",
        "user": user,
        "head": head,
        "head_ip": _address_of(head.name, is_alone=not workers),
        "workers": workers,
        "num_hosts": len(hosts),
        "equal_cpus": len({host.num_cpus for host in workers}) <= 1,
        "folder": folder,
        "space": f"{job.name}.yaml",
        "python": PurePosixPath(job.python),
        "environment": RAY_ENVIRONMENT,
        "port": LOWEST_PORT,
        # Ray starts up to a few processes for each CPU.
        "worker_ports": 10 + 99 + 4 * max(host.num_cpus or 64 for host in hosts),
        "arguments": ["--name", job.name, *job.arguments],
    }
    files = {name: fill(f"{name}.j2", **values) for name in ("cluster.yaml", "node.sh")}
    files["ray.token"] = secrets.token_urlsafe(32)
    return files, fill("ray-up.txt.j2", **values)


def _address_of(host: str, *, is_alone: bool) -> str:
    """Return the address by which the other hosts reach the first one."""
    fix = "Write the address by which the others reach it as the first of --hosts."
    try:
        found = socket.gethostbyname(host)  # 127.0.1.1 for a Debian machine's own name
    except OSError as error:
        rule = "must begin with a host whose address is known here"
        raise wrong_option("--hosts", rule=rule, got=host, fix=fix) from error
    if found.startswith("127.") and not is_alone:
        rule = "must begin with a host that the others reach"
        raise wrong_option("--hosts", rule=rule, got=f"{host} ({found})", fix=fix)
    return found


def kuberay(job: Job, folder: Path, spec: StudySpec) -> tuple[dict[str, str], str]:
    """Return the RayJob and the recipe of its container by their names, and the commands of podman and kubectl.

    Args:
        job: The launch.
        folder: Where the files will be, on this machine.
        spec: The space.

    Raises:
        SpaceError: An option holds a secret, or would be read as something else.
        ClusterError: A trial of the space can never fit into these pods.
    """
    _check_no_secret(job, spec)
    for word in job.arguments:
        if shlex.quote(word) != word:
            rule, fix = "must have no signs of a shell, because two shells read it", "Write it into the space file."
            raise wrong_option("argument", rule=rule, got=word, fix=fix)
    head = {"num_cpus": _HEAD_CPUS, "memory_gb": _HEAD_GB}
    num_cpus = job.cpus_per_node or 1
    worker = {"num_cpus": num_cpus, "memory_gb": num_cpus + 2}
    pods = [worker] * job.nodes + [head] * job.use_head
    nodes = [
        NodeShape(address="pod", num_cpus=cpus, physical_cpus=cpus, memory_mb=gigabytes * 1024)
        for cpus, gigabytes in (pod.values() for pod in pods)
    ]
    make_plan(spec, ClusterShape(nodes=tuple(nodes)))
    space = f"{job.name}.yaml"
    arguments = ["--name", job.name, *job.arguments]
    if "--tracking-uri" not in arguments:
        arguments = ["--tracking-uri", "sqlite:////study/mlflow.db", *arguments]  # else it would go with the pod
    entrypoint = f"python run_study.py --space /etc/study/{space} --address auto --resume-or-start --out /study/studies"
    values = {
        "job": job,
        "name": plain_name(job.name),
        "folder": folder,
        "space": space,
        "head": head,
        "worker": worker,
        "entrypoint": f"{entrypoint} {shlex.join(arguments)}",
        "environment": {key: value for key, value in RAY_ENVIRONMENT.items() if key != "RAY_AUTH_MODE"},
        "ray_version": RAY_VERSION,
    }
    files = {name: fill(f"{name}.j2", **values) for name in ("rayjob.yaml", "Containerfile")}
    return files, fill("kuberay.txt.j2", **values)


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


def _check_no_secret(job: Job, spec: StudySpec) -> None:
    """Refuse a secret in what is printed, and in what others read: a RayJob, the command line of `ray exec`."""
    given = {"config_args": spec.config_args}
    holders = [name for name, shown in mask_arguments(given).items() if shown != given[name]]
    for option, word in zip(job.arguments, job.arguments[1:], strict=False):
        if option in ("--tracking-uri", "--optuna-storage") and _PASSWORD.search(word):
            holders.append(option)  # or the environment variable in its place
    if holders:
        rule = "must hold no secret: others can read the files that this command writes"
        fix = (
            "Leave it out, and let the environment of Ray's head have it (--activate, or a Secret that you add to "
            "rayjob.yaml): MLFLOW_TRACKING_PASSWORD, PGPASSWORD, a variable that the script reads."
        )
        raise wrong_option(holders[0], rule=rule, got="one with it", fix=fix)


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
