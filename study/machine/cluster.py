"""Ray: start a private one or join a live one, read its shape, watch its servers. Imports Ray only inside functions.

A study never joins somebody else's Ray by accident: without an address it starts its own, in a folder of its own, with
a token that only this process and its children know, and takes it down at the end. A cluster that was joined is left
as it was found.
"""

import contextlib
import functools
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import psutil

from study.errors import ClusterError, StudyError
from study.machine.apart import called_apart
from study.machine.host import own_folder, this_node
from study.machine.shape import ClusterShape
from study.ray_private import authentication_as_in_environment, loopback_only, own_signal_handlers

# --- variables of the environment by which Ray and Tune are configured -----------------------------------------------
# Ray documents few of them: `tests/contract/test_private.py` checks that the installed one still reads each.

TUNE_ENVIRONMENT = {
    # Admission is ours (study.driver.admission): Tune may place every trial that we hand out.
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",
    # Records are ours; Tune's snapshots and log files would only cost time in its event loop.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    # Else Tune starts a trial anew by itself, under the same attempt, when its node is drained.
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",
    # The study's own handlers end it cleanly.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}
"""Environment of the driver while Tune runs."""
RAY_ENVIRONMENT = {
    # Ray lowers the priority of its workers, so that any foreign process on the machine disturbs a measurement.
    "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment of every Ray that this project starts."""
SHIPPING_ENVIRONMENT = {
    # What git ignores may well be needed: compiled parts of a package, its data. What a `.rayignore` names stays.
    "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1",
}
"""Environment of a driver that brings modules to the nodes of a Ray."""
PRIVATE_ENVIRONMENT = {
    **RAY_ENVIRONMENT,
    # No cluster: Ray's processes take the loopback address, and listen nowhere else. So Ray does on macOS and Windows.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Gloo, by which several learners meet, would listen on the address of the host's name.
    "GLOO_SOCKET_IFNAME": "lo",
}
"""Environment of a Ray on one machine, for nobody else."""


@contextlib.contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables for a while; None unsets one."""
    before = {name: os.environ.get(name) for name in values}
    _set_all(values)
    try:
        yield
    finally:
        _set_all(before)


def _set_all(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


# --- which Ray to join -----------------------------------------------------------------------------------------------

CONNECT_TIMEOUT_S = 3.0
"""How long an address may take to accept a connection."""
HANDSHAKE_TIMEOUT_S = 20.0
"""How long Ray's own handshake may take, the import of Ray included."""
_PRIVATE = re.compile(r"/rs-[0-9a-f]{4}-\d+/r")
"""The folder of every private Ray, and so on the command lines of its processes."""


def resolve_address(address: str | None) -> str | None:
    """Return the host:port to join, or None for a private Ray: the option, else `RAY_ADDRESS`, else private.

    Raises:
        ClusterError: No Ray that accepts us answers there within seconds.
    """
    chosen = address or os.environ.get("RAY_ADDRESS") or "local"
    if chosen == "local":
        return None
    found = _find_running() if chosen == "auto" else chosen
    check_address(found, "--address" if address else "RAY_ADDRESS")
    addresses_of_nodes(found)
    return found


def check_address(address: str, source: str) -> None:
    """Check that an address, of an option or a variable, is host:port, and that a server accepts a connection there.

    Raises:
        ClusterError: It does not; says what to check.
    """
    where = f"{source} {address}"
    if (place := re.fullmatch(r"([^/]+):(\d+)", address, flags=re.ASCII)) is None:
        fix = "Write it like 10.0.0.1:6379; those of a dashboard (http://…) and of Ray Client (ray://…) are others."
        raise ClusterError(where=where, rule="must be auto, local or host:port", fix=fix)
    try:
        socket.create_connection((place[1].strip("[]"), int(place[2])), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, UnicodeError) as error:
        rule = f"no answer within {CONNECT_TIMEOUT_S:.0f} s ({error})"
        fix = "Check that `ray start --head` runs there, the port (6379 by default) and the firewall."
        raise ClusterError(where=where, rule=rule, fix=fix) from error


@functools.cache
def addresses_of_nodes(address: str) -> frozenset[str]:
    """Return the addresses of all nodes that the Ray at host:port ever had.

    A process of its own asks: where Ray refuses a token, or another server answers, its client would try for minutes.

    Raises:
        ClusterError: The cluster refuses us or does not answer.
    """

    def refused(got: str) -> StudyError:
        return _refused(address, got)

    try:
        found = called_apart("study.ray_private:nodes_of", address, limit_s=HANDSHAKE_TIMEOUT_S, otherwise=refused)
    except Exception as error:  # noqa: BLE001 (whatever Ray's client raises there)
        raise error if isinstance(error, StudyError) else refused(_last_line(error)[:300]) from None
    return frozenset(found)


def _refused(address: str, reason: str) -> ClusterError:
    return ClusterError(
        where=address,
        rule="must be a Ray cluster of the same version that accepts us",
        got=reason,
        fix="Check `ray status`, the Ray and Python versions on both sides, and RAY_AUTH_MODE and RAY_AUTH_TOKEN.",
    )


def _find_running() -> str:
    """Return the address of this user's Ray on this machine; other studies' private ones do not count.

    Nor do those of other users: who joins a Ray runs what it is given there.
    """
    found: set[str] = set()
    for process in psutil.process_iter(["name", "cmdline", "uids"]):
        users, words = process.info["uids"], process.info["cmdline"] or ()
        if process.info["name"] == "raylet" and users is not None and users.real == os.getuid():
            addresses = [word.partition("=")[2] for word in words if word.startswith("--gcs-address=")]
            found |= set() if any(map(_PRIVATE.search, words)) else set(addresses)
    if len(found) == 1:
        return found.pop()
    rule, got = "one Ray of yours must run on this machine", ", ".join(sorted(found)) or "none"
    fix = "Give --address host:port, or leave it out for a private Ray."
    raise ClusterError(where="--address auto", rule=rule, got=got, fix=fix)


# --- a private Ray ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def private_ray(*, num_cpus: int, verbose: bool) -> Iterator[ClusterShape]:
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
        own_folder("rs") as folder,
    ):
        import ray

        shape = ClusterShape(nodes=(this_node(num_cpus),))
        try:
            _started(
                verbose,
                address="local",
                num_cpus=num_cpus,
                num_gpus=shape.num_gpus,  # what the plan was made for
                include_dashboard=False,
                _temp_dir=f"{folder}/r",  # Ray opens its folder to everybody, ours around it stays closed
            )
        except Exception as error:
            rule = "a private Ray must start on this machine"
            fix = f"Check free memory, /dev/shm, `ulimit -v` and `ulimit -f`, and that 127.0.0.1 answers; {folder}."
            raise ClusterError(where="ray", rule=rule, got=_last_line(error), fix=fix) from error
        try:
            yield shape
        finally:
            ray.shutdown()


def _started(verbose: bool, **options: Any) -> None:
    """Call `ray.init`, and keep Tune's own reports off the screen: what matters of them is in the records."""
    import ray

    level, quiet = (logging.INFO, logging.INFO) if verbose else (logging.ERROR, logging.CRITICAL)
    with own_signal_handlers():
        ray.init(**options, log_to_driver=verbose, logging_level=level)
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(quiet)


# --- a live Ray ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def joined_ray(
    address: str, *, runtime_env: Mapping[str, Any] | None = None, verbose: bool = False, asks_nodes: bool = True
) -> Iterator[ClusterShape]:
    """Join a live Ray, yield its shape, leave it as it was found.

    `runtime_env` is what its nodes need for this job, as `study.machine.shipping` returns it. With `verbose` the logs
    of Ray and of the trials are shown; the shape is empty where nodes are not asked.

    Raises:
        ClusterError: It refuses us, or a node does not answer.
    """
    # A Ray on loopback was started with PRIVATE_ENVIRONMENT. Without it, this process would look for it on the host's
    # own address: Ray replaces 127.0.0.1 by that.
    is_private = addresses_of_nodes(address) == {"127.0.0.1"}
    as_its_head = loopback_only() if is_private else contextlib.nullcontext()
    with environment({**TUNE_ENVIRONMENT, **SHIPPING_ENVIRONMENT}), as_its_head:
        import ray

        try:
            given = None if runtime_env is None else dict(runtime_env)
            _started(verbose, address=address, runtime_env=given, namespace=f"study-{os.getpid()}")
        except (Exception, SystemExit) as error:  # Ray exits the process when a handshake fails
            raise _refused(address, _last_line(error)) from error
        try:
            yield _read_shape() if asks_nodes else ClusterShape(nodes=())
        finally:
            ray.shutdown()


def ask_nodes(question: Callable[..., Any], *, timeout_s: float, **arguments: Any) -> list[tuple[dict[str, Any], Any]]:
    """Ask every living node of the Ray that was joined, by a task that reserves nothing there.

    Returns:
        For each node what Ray knows of its shape, and its answer, or a text that says why there is none.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(question)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    asked = [ask.options(scheduling_strategy=place).remote(**arguments) for place in places]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
    answers: list[tuple[dict[str, Any], Any]] = []
    for node, question_there in zip(nodes, asked, strict=True):
        try:
            answer = ray.get(question_there) if question_there in ready else f"no answer within {timeout_s:.0f} s"
        except Exception as error:  # noqa: BLE001 (Ray wraps whatever happened there)
            answer = _last_line(error)[:200]
        if question_there not in ready:
            ray.cancel(question_there, force=True)
        cpus, gpus = int(node["Resources"].get("CPU", 0)), node["Resources"].get("GPU", 0)
        answers.append(({"address": node["NodeManagerAddress"], "num_cpus": cpus, "num_gpus": gpus}, answer))
    return answers


def _read_shape() -> ClusterShape:
    nodes = []
    for shape, answer in ask_nodes(this_node, timeout_s=120):
        if isinstance(answer, str):
            rule = "every node must be able to run this project"
            fix = "Install it on each node, in the same environment that runs Ray there."
            raise ClusterError(where=shape["address"], rule=rule, got=answer, fix=fix)
        nodes.append(replace(answer, **shape))
    return ClusterShape(nodes=tuple(nodes))


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


# --- while a study runs ----------------------------------------------------------------------------------------------

PERIOD_S = 2.0
"""How often Ray's servers are asked."""
PATIENCE_S = 30.0
"""How long it may be away: Ray itself gives up after 60 s (`RAY_gcs_rpc_server_reconnect_timeout_s`)."""


def servers_of_ray() -> dict[str, str]:
    """Return what this driver cannot do without, as host:port: the head of its cluster and the raylet of its node."""
    import ray

    context = ray.get_runtime_context()
    here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
    return {"the head of the Ray cluster": context.gcs_address, "the raylet of this machine": raylet}


@contextlib.contextmanager
def watching_ray(servers: Mapping[str, str], on_lost: Callable[[str], None]) -> Iterator[None]:
    """Watch meanwhile, in a thread, whether servers still take connections; call `on_lost` once with what happened."""
    ended = threading.Event()

    def watch() -> None:
        seen = dict.fromkeys(servers, time.monotonic())
        while not ended.wait(PERIOD_S):
            for name, address in servers.items():
                host, _, port = address.rpartition(":")
                with contextlib.suppress(OSError):
                    socket.create_connection((host.strip("[]"), int(port)), timeout=PERIOD_S).close()
                    seen[name] = time.monotonic()
                if time.monotonic() - seen[name] > PATIENCE_S and not ended.is_set():
                    on_lost(f"{name} ({address}) has not answered for {PATIENCE_S:g} s")
                    return

    threading.Thread(target=watch, daemon=True, name="ray watch").start()
    try:
        yield
    finally:
        ended.set()
