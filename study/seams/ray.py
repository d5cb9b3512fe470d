"""Seams of Ray's core and of Ray Tune."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from study.seams.base import Seam, has, mentions

_seam = functools.partial(Seam, distribution="ray", versions="==2.60.*")
LOST = (
    "ActorDiedError",
    "ActorUnavailableError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectLostError",
    "OwnerDiedError",
    "RayActorError",
    "WorkerCrashedError",
)
"""Names of Ray's exceptions for a process or node that is gone; what Ray calls an actor is a process."""

SIGNAL_HANDLERS = _seam(
    name="ray-signal-handlers",
    does="keep `ray.init` from replacing the driver's handler of SIGTERM",
    why="Ray's handler ends the process with an exit code of its own, before the records are closed.",
    upstream="https://github.com/ray-project/ray/pull/39482",
    needs=(
        has("ray._private.utils:set_sigterm_handler", "sigterm_handler"),
        mentions("ray", "_private/worker.py", "ray._private.utils.set_sigterm_handler(sigterm_handler)"),
    ),
)
AUTHENTICATION = _seam(
    name="ray-authentication",
    does="make Ray's core read its authentication variables again, before and after a private Ray",
    why="The core reads them once for each process, so that a second Ray in one process would be refused.",
    upstream="https://github.com/ray-project/ray/pull/64755 (the mode sticks after a local init)",
    needs=(
        has("ray._raylet:Config.initialize"),
        has("ray._raylet:AuthenticationTokenLoader.instance"),
        has("ray._raylet:AuthenticationTokenLoader.reset_cache"),
    ),
)
LOOPBACK = _seam(
    name="ray-loopback",
    does="let a private Ray listen on the loopback address alone",
    why="On Linux Ray listens on the address of the host; the switch for macOS and Windows is read at the import.",
    upstream="https://github.com/ray-project/ray/pull/18904",
    needs=(
        has("ray._private.ray_constants:ENABLE_RAY_CLUSTER"),
        mentions("ray", "_private/ray_constants.py", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"),
        mentions("ray", "_private/services.py", "ENABLE_RAY_CLUSTER"),
    ),
)
NODES = _seam(
    name="ray-nodes-of-a-head",
    does="ask the head of a cluster for its nodes without joining it",
    why="`ray.init` tries for minutes where the head refuses the token, and cannot be stopped.",
    needs=(has("ray._raylet:GcsClient"), has("ray._raylet:InnerGcsClient.get_all_node_info")),
)
SESSION_FOLDER = _seam(
    name="ray-session-folder",
    does="put the files of a private Ray into a folder that only this user can enter",
    why="Ray's own folder is open to everybody; the argument of `ray.init` for it has an underscore.",
    needs=(mentions("ray", "_private/worker.py", '"_temp_dir"'),),
)
ENVIRONMENT = _seam(
    name="ray-environment",
    does="configure Ray and Tune by variables of the environment",
    why="Several are not documented; one that Ray has renamed would be ignored silently.",
    needs=(
        mentions("ray", "_private/ray_constants.py", "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"),
        mentions("ray", "_common/usage/usage_constants.py", "RAY_USAGE_STATS_ENABLED"),
        mentions("ray", "_private/authentication/authentication_token_setup.py", "AUTH_MODE"),
        mentions(
            "ray",
            "tune/constants.py",
            "TUNE_MAX_PENDING_TRIALS_PG",
            "TUNE_GLOBAL_CHECKPOINT_S",
            "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS",
            "TUNE_DISABLE_STRICT_METRIC_CHECKING",
            "TUNE_RESULT_BUFFER_LENGTH",
            "TUNE_DISABLE_SIGINT_HANDLER",
        ),
        mentions("ray", "tune/tune.py", "RAY_AIR_NEW_OUTPUT", "RAY_CHDIR_TO_TRIAL_DIR"),
        mentions(
            "ray",
            "train/constants.py",
            "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE",
            "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS",
        ),
    ),
)
LOST_PROCESSES = _seam(
    name="ray-lost-processes",
    does="tell a trial that lost a process or a node from one that failed by itself, by the names of Ray's exceptions",
    why="The driver looks at them without importing Ray's modules; a new name would make a lost trial a failed one.",
    needs=tuple(has(f"ray.exceptions:{name}") for name in LOST),
)
REGISTRY = _seam(
    name="tune-registry",
    does="look up what makes the environment that a configuration names",
    why="Tune has a public function that registers a maker of environments, and none that returns it.",
    needs=(has("ray.tune.registry:_global_registry.get"), has("ray.tune.registry:ENV_CREATOR")),
)

AUTO_INIT = _seam(
    name="ray-auto-init",
    does="keep Ray from starting by itself in the process that reads a person's script",
    why="`ray.get`, `ray.put` and `.remote()` start a Ray where none runs; no option ends the process there instead.",
    needs=(
        has("ray._private.auto_init_hook:auto_init_ray"),
        mentions("ray", "_private/auto_init_hook.py", "auto_init_ray()", "def wrap_auto_init"),
        mentions("ray", "actor.py", "@wrap_auto_init"),
        mentions("ray", "remote_function.py", "@wrap_auto_init"),
    ),
)


@contextlib.contextmanager
def own_signal_handlers() -> Iterator[None]:
    """Keep the process's handler of SIGTERM while `ray.init` runs."""
    from ray._private import utils

    before = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before


@contextlib.contextmanager
def authentication_as_in_environment() -> Iterator[None]:
    """Make Ray's core read its authentication variables again, at the beginning and at the end."""

    def reload() -> None:
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()

    reload()
    try:
        yield
    finally:
        reload()


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Let this process, which may have imported Ray before, take the loopback address as its children do."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def nodes_of(address: str) -> Sequence[Any]:
    """Return all nodes that the cluster at `host:port` ever had, as messages of type `GcsNodeInfo`.

    Raises:
        Exception: Of Ray's core: the head does not answer within 10 s, or refuses the token.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    return list(GcsClient(address=address).get_all_node_info(timeout=10).values())


def maker_of(environment: str) -> Any | None:
    """Return what makes the environment registered under a name; None where there is none."""
    from ray.tune.registry import ENV_CREATOR, _global_registry

    if not _global_registry.contains(ENV_CREATOR, environment):
        return None
    return _global_registry.get(ENV_CREATOR, environment)


def refuse_auto_init(refuse: Callable[[], Any]) -> None:
    """Let `refuse` be called, for the rest of this process, wherever Ray would start by itself."""
    from ray._private import auto_init_hook

    auto_init_hook.auto_init_ray = refuse
