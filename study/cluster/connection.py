"""Ray: start a private one or join a live one, and read its shape. Imports Ray only inside functions.

A study never joins somebody else's Ray by accident: without an address it starts its own, in a folder of its own, with
a token that only this process and its children know, and takes it down at the end. A cluster that was joined is left
as it was found.
"""

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from study.cluster.address import addresses_of_nodes, refused
from study.cluster.environment import PRIVATE_ENVIRONMENT, SHIPPING_ENVIRONMENT, TUNE_ENVIRONMENT, environment
from study.designs.registry import design_of
from study.errors import ClusterError
from study.hosts.machine import Machine, machine
from study.hosts.mounts import short_temporary_folder
from study.planning.shape import LOCAL, ClusterShape, NodeShape
from study.ray_private import authentication_as_in_environment, loopback_only, own_signal_handlers
from study.space.spec import StudySpec


def local_shape(*, at_least: int = 0) -> ClusterShape:
    """Return the shape of a private Ray on this machine.

    Args:
        at_least: CPUs of the largest trial, as it will be executed. Ray is given at least so many, so that the
            study runs on any machine; the timings of trials with more processes than cores say so.
    """
    here = machine()
    node = NodeShape(
        address=LOCAL,
        num_cpus=max(here.num_cores, at_least),
        physical_cpus=here.num_cores,
        memory_mb=here.memory_mb,
        num_gpus=here.num_gpus,
        niceness=here.niceness,
    )
    return ClusterShape(nodes=(node,))


def private_shape(spec: StudySpec) -> ClusterShape:
    """Return the shape of the private Ray that a study gets on this machine."""
    here = local_shape()
    return local_shape(at_least=design_of(spec).num_cpus(spec, here))


@contextlib.contextmanager
def private_ray(*, num_cpus: int, verbose: bool = False) -> Iterator[ClusterShape]:
    """Start a Ray of our own, yield its shape, take it down.

    Raises:
        ClusterError: Ray does not start.
    """
    token = {"RAY_AUTH_TOKEN": secrets.token_urlsafe(32)}  # in the environment: no file, nothing in `ps`
    with (
        authentication_as_in_environment(),
        environment({**PRIVATE_ENVIRONMENT, **token, **TUNE_ENVIRONMENT, "RAY_ADDRESS": None}),
        authentication_as_in_environment(),
        loopback_only(),
    ):
        import ray

        shape = local_shape(at_least=num_cpus)
        folder = _session_folder() / "r"  # Ray opens its folder to everybody, ours around it stays closed
        _remove_dead_sessions(folder)
        try:
            with own_signal_handlers():
                ray.init(
                    address="local",
                    num_cpus=num_cpus,
                    num_gpus=shape.num_gpus,  # what the plan was made for
                    include_dashboard=False,
                    log_to_driver=verbose,
                    logging_level=logging.INFO if verbose else logging.ERROR,
                    _temp_dir=str(folder),  # private; Ray's own folder is open to everybody
                )
            _quieten(verbose)
        except Exception as error:
            raise ClusterError(
                where="ray",
                rule="a private Ray must start on this machine",
                got=_last_line(error),
                fix=f"Check free memory and {folder}.",
            ) from error
        session = folder / ray.get_runtime_context().get_session_name()
        try:
            yield shape
        finally:
            ray.shutdown()
            shutil.rmtree(session, ignore_errors=True)


def _quieten(verbose: bool) -> None:
    """Keep Tune's own reports off the screen: what matters of them is in the records and in the study's messages."""
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)


def session_path() -> Path:
    """Return where private Rays of this user live."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]  # a file system may be shared between hosts
    return Path(short_temporary_folder()) / f"rs-{os.getuid()}-{host}"


def _session_folder() -> Path:
    """Make the folder of this user's private Rays where it is missing.

    Raises:
        ClusterError: Somebody else has made a folder of that name.
    """
    folder = session_path()
    with contextlib.suppress(FileExistsError):  # perhaps a file, or a link
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise ClusterError(
            where=str(folder),
            rule="must be a folder that only you may use",
            fix="Remove it, or set TMPDIR to another folder with a path of at most 20 bytes.",
        )
    return folder


def _remove_dead_sessions(folder: Path) -> None:
    """Remove what drivers that were killed left behind; a session's name ends with its driver's process id."""
    for session in folder.glob("session_*_*"):
        pid = session.name.rpartition("_")[2]
        if not session.is_symlink() and pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(session, ignore_errors=True)


@contextlib.contextmanager
def tune_storage() -> Iterator[str]:
    """Yield a folder for what Tune writes; nothing is ever read back, and after a kill the next study removes it."""
    folder = _session_folder() / "r" / f"session_tune_{os.getpid()}"
    _remove_dead_sessions(folder.parent)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def joined_ray(
    address: str, *, runtime_env: Mapping[str, Any] | None = None, verbose: bool = False
) -> Iterator[ClusterShape]:
    """Join a live Ray, yield its shape, leave it as it was found.

    Args:
        address: What `resolve_address` returned.
        runtime_env: What its nodes need for this job, as `study.cluster.shipping` returns it.
        verbose: Show the logs of Ray and of the trials.

    Raises:
        ClusterError: It refuses us, or a node does not answer.
    """
    with connected_ray(address, runtime_env=runtime_env, verbose=verbose):
        yield read_shape()


@contextlib.contextmanager
def connected_ray(
    address: str, *, runtime_env: Mapping[str, Any] | None = None, verbose: bool = False
) -> Iterator[None]:
    """Join a live Ray without a question to its nodes; arguments and errors as of `joined_ray`."""
    # A Ray on loopback was started with PRIVATE_ENVIRONMENT. Without it, this process would look for it on the host's
    # own address: Ray replaces 127.0.0.1 by that.
    is_private = addresses_of_nodes(address) == {"127.0.0.1"}
    as_its_head = loopback_only() if is_private else contextlib.nullcontext()
    with environment({**TUNE_ENVIRONMENT, **SHIPPING_ENVIRONMENT}), as_its_head:
        import ray

        try:
            with own_signal_handlers():
                ray.init(
                    address=address,
                    runtime_env=None if runtime_env is None else dict(runtime_env),
                    log_to_driver=verbose,
                    logging_level=logging.INFO if verbose else logging.ERROR,
                    namespace=f"study-{os.getpid()}",
                )
            _quieten(verbose)
        except (Exception, SystemExit) as error:  # Ray exits the process when a handshake fails
            raise refused(address, _last_line(error)) from error
        try:
            yield
        finally:
            ray.shutdown()


def servers_of_ray() -> dict[str, str]:
    """Return what this driver cannot do without, as host:port: the head of its cluster and the raylet of its node."""
    import ray

    context = ray.get_runtime_context()
    here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
    return {"the head of the Ray cluster": context.gcs_address, "the raylet of this machine": raylet}


def read_shape() -> ClusterShape:
    """Return the shape of the cluster that this process has joined, asking every node about itself.

    Raises:
        ClusterError: A node does not answer, or cannot import this package.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    ask = ray.remote(num_cpus=0)(machine)
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in nodes
    ]
    try:
        answers: list[Machine] = ray.get(asked, timeout=120)
    except Exception as error:
        raise ClusterError(
            where="cluster",
            rule="every node must be able to run this project",
            got=_last_line(error),
            fix="Install it on each node, in the same environment that runs Ray there.",
        ) from error
    return ClusterShape(
        nodes=tuple(
            NodeShape(
                address=node["NodeManagerAddress"],
                num_cpus=int(node["Resources"].get("CPU", 0)),
                physical_cpus=here.num_cores,
                memory_mb=here.memory_mb,
                num_gpus=node["Resources"].get("GPU", 0),
                niceness=here.niceness,
            )
            for node, here in zip(nodes, answers, strict=True)
        )
    )


def _last_line(error: BaseException) -> str:
    lines: list[Any] = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


# --- while a study runs ----------------------------------------------------------------------------------------------

PERIOD_S = 2.0
"""How often Ray's servers are asked."""
PATIENCE_S = 30.0
"""How long it may be away: Ray itself gives up after 60 s (`RAY_gcs_rpc_server_reconnect_timeout_s`)."""


class RayWatch:
    """Watches, in a thread, whether Ray's servers still take connections. Use as a context manager."""

    def __init__(self, servers: Mapping[str, str], on_lost: Callable[[str], None]) -> None:
        """Watch nothing yet.

        Args:
            servers: What each server is to this driver -> host:port.
            on_lost: Called once, in another thread, with what happened.
        """
        self._servers, self._on_lost, self._ended = dict(servers), on_lost, threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True, name="ray watch").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        seen = dict.fromkeys(self._servers, time.monotonic())
        while not self._ended.wait(PERIOD_S):
            for name, address in self._servers.items():
                if answers(address):
                    seen[name] = time.monotonic()
                elif time.monotonic() - seen[name] > PATIENCE_S and not self._ended.is_set():
                    self._on_lost(f"{name} ({address}) has not answered for {PATIENCE_S:g} s")
                    return


def answers(address: str) -> bool:
    """Return whether host:port takes a connection."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=PERIOD_S):
        return True
    return False
