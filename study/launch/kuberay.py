"""A RayJob for KubeRay that runs a study on a Ray cluster of its own in Kubernetes. Pure.

Checked against KubeRay: its `RayJob` schema, `controllers/ray/common/job.go` (the entrypoint passes through two shells)
and `controllers/ray/utils/validation.go` (names, versions).
"""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from study.cluster.connection import RAY_ENVIRONMENT
from study.errors import LaunchError
from study.launch.manifest import Step, fill

RAY_VERSION = "2.60.0"
"""Of the Ray in the image; KubeRay wants to know it where a token is asked for."""
STORAGE, SPACES = PurePosixPath("/study"), PurePosixPath("/etc/study")
"""Where the head's pod sees the claim, and the space."""
_LONGEST_NAME = 47
"""KubeRay's limit: it appends to the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What one pod asks for, and is held to."""

    num_cpus: int
    memory_gb: int
    shm_gb: int = 1
    """Of its memory, in /dev/shm, where Ray keeps objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeRay:
    """A study, and the pods to run it on."""

    name: str
    """Of the RayJob: a DNS label."""
    study: str
    """Name of the study."""
    space_text: str
    """The space file's content."""
    image: str
    """With this project; `study.launch.containers` has the recipe."""
    num_workers: int
    worker: Pod
    head: Pod = Pod(num_cpus=2, memory_gb=8)
    use_head: bool = False
    """Whether trials may run in the head's pod too."""
    arguments: tuple[str, ...] = ()
    """More of `python run_study.py`."""
    namespace: str = "default"
    storage_gb: int = 10
    storage_class: str = ""
    """Of the claim for the study's folder; empty: the cluster's default."""
    submission_mode: Literal["K8sJobMode", "HTTPMode", "SidecarMode"] = "K8sJobMode"
    max_retries: int = 3
    """New Ray clusters after one that failed; the study goes on where it was."""
    deadline_s: int | None = None
    """Seconds after which KubeRay ends the job, waiting for pods included."""

    def __post_init__(self) -> None:
        """Refuse what Kubernetes or a shell would not take as it is meant.

        Raises:
            LaunchError: A name, a number or an argument breaks its law.
        """
        if len(self.name) > _LONGEST_NAME or not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", self.name):
            law = f"lower-case letters, digits and '-', at most {_LONGEST_NAME}"
            raise LaunchError(f"kuberay: name: must be {law}, got '{self.name}'. Fix: for instance scaling-study.")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.study):
            raise LaunchError(f"kuberay: study: must be a plain name, got '{self.study}'. Fix: give another --name.")
        for word in self.arguments:
            if shlex.quote(word) != word:
                raise LaunchError(
                    f"kuberay: argument: must need no quotes, since two shells read it, got '{word}'. "
                    "Fix: write the value into the space file."
                )
        numbers = (
            ("workers", self.num_workers, 0),
            *((f"{name} CPUs", pod.num_cpus, 1) for name, pod in (("head", self.head), ("worker", self.worker))),
            ("storage GB", self.storage_gb, 1),
            ("retries", self.max_retries, 0),
            ("deadline", 1 if self.deadline_s is None else self.deadline_s, 1),
        )
        for what, number, least in numbers:
            if number < least:
                raise LaunchError(f"kuberay: {what}: must be {least} or more, got {number}. Fix: give more.")
        for what, pod in (("head", self.head), ("worker", self.worker)):
            if not 0 < pod.shm_gb < pod.memory_gb:
                got = f"{pod.shm_gb} of {pod.memory_gb} GB"
                raise LaunchError(f"kuberay: {what}: /dev/shm must be a part of the memory, got {got}. Fix: give more.")

    @property
    def space(self) -> str:
        """Name of the space file; it names the study."""
        return f"{self.study}.yaml"

    @property
    def claim(self) -> str:
        """Name of the claim for the study's folder."""
        return f"{self.name}-studies"

    @property
    def config(self) -> str:
        """Name of the ConfigMap that holds the space."""
        return f"{self.name}-space"


def entrypoint(job: KubeRay) -> str:
    """Return what runs in the head's pod. Nothing in it needs quotes."""
    run = ["python", "run_study.py", "--space", str(SPACES / job.space), "--address", "auto", "--resume-or-start"]
    out = ["--out", str(STORAGE / "studies")]
    if not any(word.partition("=")[0] == "--tracking-uri" for word in job.arguments):
        out += ["--tracking-uri", f"sqlite:///{STORAGE / 'mlflow.db'}"]  # else it would go with the pod
    return shlex.join([*run, *out, *job.arguments])


def render(job: KubeRay) -> str:
    """Return the manifest: a claim for the study, the space, and the job."""
    environment = {name: value for name, value in RAY_ENVIRONMENT.items() if name != "RAY_AUTH_MODE"}
    return fill(
        "rayjob.yaml.j2",
        job=job,
        entrypoint=entrypoint(job),
        environment=environment,
        ray_version=RAY_VERSION,
        spaces=SPACES,
        storage=STORAGE,
    )


def commands(job: KubeRay, file: str) -> tuple[Step, ...]:
    """Return what to type, in this order.

    Args:
        job: The job.
        file: Where the manifest was written.
    """
    kubectl = f"kubectl -n {shlex.quote(job.namespace)}"
    pod = f"{job.name}-files"
    claim = {"name": "study", "persistentVolumeClaim": {"claimName": job.claim}}
    container = {
        "name": pod,
        "image": job.image,
        "command": ["sleep", "3600"],
        "volumeMounts": [{"name": "study", "mountPath": str(STORAGE)}],
    }
    overrides = shlex.quote(json.dumps({"spec": {"volumes": [claim], "containers": [container]}}))
    look = f"{kubectl} run {pod} --image={shlex.quote(job.image)} --restart=Never --overrides={overrides}"
    ready = f"{kubectl} wait --for=condition=Ready pod/{pod}"
    return (
        Step(f"{kubectl} apply -f {shlex.quote(file)}", "start, or go on with the study where no such RayJob is left"),
        Step(f"{kubectl} get rayjob {job.name} --watch", "how it stands"),
        Step(f"{kubectl} logs -f job/{job.name}", "what the study prints (K8sJobMode)"),
        Step(f"{kubectl} port-forward service/{job.name}-head-svc 8265", "the Ray dashboard at http://127.0.0.1:8265"),
        Step(look, "a pod that sees the results"),
        Step(f"{ready} && {kubectl} cp {pod}:{STORAGE}/studies studies", "fetch them"),
        Step(f"{kubectl} delete pod/{pod} rayjob/{job.name}", "end; the claim stays, and the study in it"),
    )
