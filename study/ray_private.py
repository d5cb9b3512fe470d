"""Every private access of Ray and RLlib: what no release of Ray promises to keep. Imports Ray inside functions only.

One function for each, with the reason in its docstring. Classes of ours that are derived from RLlib's replace private
methods and read private attributes of themselves, with the reason there; `machine/cluster.py` has variables without
documentation. `tests/contract/test_private.py` tests each, which `.ci/newest-ray` runs with the newest Ray too.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

# --- Ray and Ray Tune ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_signal_handlers() -> Iterator[None]:
    """Keep the process's handler of SIGTERM while `ray.init` runs.

    Ray's handler ends the process with an exit code of its own, before the records are closed.

    Source: https://github.com/ray-project/ray/pull/39482
    """
    from ray._private import utils

    before = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before


def without_usage_tags() -> None:
    """Keep Tune from counting callbacks for its statistics, for which it imports MLflow, W&B and Comet: two seconds."""
    from ray.air._internal import usage

    usage.tag_callbacks = lambda callbacks: False


def was_short_of_memory(said: str) -> bool:
    """Return whether Tune's text of a failure is that of an `OutOfMemoryError`: Tune keeps no class of it."""
    return "running low on memory" in said


@contextlib.contextmanager
def authentication_as_in_environment() -> Iterator[None]:
    """Make Ray's core, which reads its authentication variables once for each process, read them before and after.

    Source: https://github.com/ray-project/ray/pull/64755 (the mode sticks after a local init)
    """

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
    """Let this process, which may have imported Ray before, take the loopback address as its children do.

    On Linux Ray listens on the address of the host; the switch for macOS and Windows is read at the import.

    Source: https://github.com/ray-project/ray/pull/18904
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def nodes_of(address: str) -> set[str]:
    """Return the addresses of all nodes that the cluster at `host:port` ever had.

    Joining the cluster to ask it takes minutes where the head refuses the token, and cannot be stopped; this raises.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    nodes = GcsClient(address=address).get_all_node_info(timeout=10).values()
    return {node.node_manager_address for node in nodes}


def died_alone(actor_id: str | None) -> bool:
    """Return whether the process of an actor has ended while its node lives; False where Ray's head knows nothing.

    The exception that Ray raises has it in prose alone, and the public list of actors needs Ray's dashboard.
    """
    from ray._private import state
    from ray.core.generated.common_pb2 import ActorDiedErrorContext

    if actor_id is None:
        return False
    try:
        cause = state.actors(actor_id).get("DeathCause")
    except Exception:  # noqa: BLE001 (the head may be gone as well)
        return False
    if cause is None:
        return False
    reasons = ActorDiedErrorContext.Reason
    alone = (reasons.WORKER_DIED, reasons.RAY_KILL, reasons.OUT_OF_SCOPE, reasons.REF_DELETED)
    return cause.HasField("oom_context") or cause.actor_died_error_context.reason in alone


def maker_of(environment: str) -> Any | None:
    """Return what makes the environment registered under a name, which Tune shows nowhere; None where there is none."""
    from ray.tune.registry import ENV_CREATOR, _global_registry

    known = _global_registry.contains(ENV_CREATOR, environment)
    return _global_registry.get(ENV_CREATOR, environment) if known else None


def refuse_auto_init(refuse: Callable[[], Any]) -> None:
    """Let `refuse` be called, for the rest of this process, wherever Ray would start by itself.

    `ray.get`, `ray.put` and `.remote()` start a Ray where none runs; a person's script that is only read must not.
    """
    from ray._private import auto_init_hook

    auto_init_hook.auto_init_ray = refuse


# --- RLlib's processes -----------------------------------------------------------------------------------------------


def actors_of(group: Any) -> dict[int, Any]:
    """Return number -> actor of a group: runners are numbered from 1, learners from 0.

    The groups' public calls leave out actors that are slow or dead.

    Source: https://github.com/ray-project/ray/issues/63302 (late samples are dropped silently)
    """
    actors: dict[int, Any] = group._worker_manager.actors()
    return actors


def kill_actors(group: Any) -> None:
    """End the processes of a group; its public `stop` waits for those that hang."""
    import ray

    for number, actor in list(actors_of(group).items()):
        if not isinstance(actor, ray.actor.ActorHandle):  # hosted: there is no process
            group._worker_manager.remove_actor(number)
    group._worker_manager.clear()


@contextlib.contextmanager
def hosted_runners(host: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Let groups that are made meanwhile take `host(make)` for each remote runner, in place of an actor of Ray's.

    `make` makes the runner with a configuration of its own. RLlib has no place for another kind of process.
    """
    import ray
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    before = EnvRunnerGroup._make_worker

    def made(group: Any, *, worker_index: int, config: Any, **given: Any) -> Any:
        if worker_index == 0:
            return before(group, worker_index=0, config=config, **given)
        named = {"worker_index": worker_index, "tune_trial_id": group._tune_trial_id, **given}
        return host(lambda: group.env_runner_cls(config=ray.get(config), **named))

    EnvRunnerGroup._make_worker = made
    try:
        yield
    finally:
        EnvRunnerGroup._make_worker = before


# --- RLlib's configurations, modules, connectors, learners -----------------------------------------------------------


def option(config: Any, name: str) -> Any:
    """Return an option, such as `learner_connector`, that a configuration shows in an attribute with an underscore."""
    return getattr(config, f"_{name}")


def forward_of(module: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the forward pass of a module without RLlib's checks, which cost as much as a small network, every step."""
    forward: Callable[[dict[str, Any]], dict[str, Any]] = module._forward
    return forward


def connector_pieces(learner: Any) -> list[Any]:
    """Return the pieces of a learner's connector, which has no public name: one of them uses gamma and lambda."""
    return [*learner._learner_connector]


def merged_connectors(algorithm: Any, *, timeout_s: float) -> dict[str, Any]:
    """Return the states of connectors that the runners of an algorithm fetch; empty where they are given them.

    With `use_env_runner_state_server` APPO and IMPALA give them to their runners alone, by an actor of its own.
    """
    import ray
    from ray.rllib.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR

    server = getattr(algorithm, "_env_runner_state_server", None)
    state = {} if server is None else ray.get(server.pull.remote(), timeout=timeout_s) or {}
    names = (COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR)
    return {name: state[name] for name in names if name in state}


def pieces_to_module(runner: Any) -> list[Any]:
    """Return an env runner's connectors to the module, which have no public name: one may normalise observations."""
    return [*runner._env_to_module.connectors]


def freeze_filters(runner: Any) -> None:
    """Keep an env runner's `MeanStdFilter`s, RLlib's or ours, from collecting what they see in an evaluation."""
    for piece in pieces_to_module(runner):
        if hasattr(piece, "_update_stats"):
            piece._update_stats = False


def wrap_update(thread: Any, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Let the thread of an asynchronous learner call `wrapper(update)` in place of RLlib's `update`.

    RLlib hands batches to the thread and does not look after it: a dead one lets the algorithm wait for ever.

    Source: https://github.com/ray-project/ray/issues/36801 (the thread's death, on the old API stack)
    """
    thread._update_method = wrapper(thread._update_method)
