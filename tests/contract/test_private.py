"""What this project uses of Ray, RLlib, MLflow, JAX and tensorboardX beyond their public interfaces is still there.

A case for each access. The reasons are in `study/ray_private.py`, `study/jax_private.py`,
and for what classes of ours replace or read of RLlib's in these classes. `.ci/newest-ray` runs this file with the
newest Ray.
"""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from study.machine.cluster import PRIVATE_ENVIRONMENT, SHIPPING_ENVIRONMENT, TUNE_ENVIRONMENT
from study.trial.failures import LOST

ROOT = Path(__file__).resolve().parents[2]
RAY = Path(find_spec("ray").origin).parent
HOMES = (
    "study/ray_private.py",
    "study/jax_private.py",
    "study/trial/engine/extensions.py",  # of which an exported script holds the text, without any import of ours
)

GROUP = "ray.rllib.env.env_runner_group:EnvRunnerGroup"
MANAGER = "ray.rllib.utils.actor_manager:FaultTolerantActorManager"
RUNNER = "ray.rllib.env.single_agent_env_runner:SingleAgentEnvRunner"
RUNNER_OF_SEVERAL = "ray.rllib.env.multi_agent_env_runner:MultiAgentEnvRunner"
LEARNER = "ray.rllib.core.learner.torch.torch_learner:TorchLearner"
IMPALA_LEARNER = "ray.rllib.algorithms.impala.impala_learner:IMPALALearner"
TORCH_MODULE = "ray.rllib.core.rl_module.torch.torch_rl_module:TorchRLModule"
CONFIG = "ray.rllib.algorithms.algorithm_config:AlgorithmConfig"


def resolved(path):
    """Return what `package.module:Name.attribute` names."""
    module, _, names = path.partition(":")
    found = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def private(name):
    return name.startswith("_") and not name.startswith("__")


def parameters_of(function):
    """Return the names of a function's parameters, without the one that Ray adds to the methods of actors."""
    return " ".join(name for name in inspect.signature(function).parameters if name != "_ray_trace_ctx")


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("ray._private.utils:set_sigterm_handler", "sigterm_handler"),  # own_signal_handlers
        ("ray.air._internal.usage:tag_callbacks", "callbacks"),  # without_usage_tags
        ("ray._raylet:Config.initialize", None),  # authentication_as_in_environment
        ("ray._raylet:AuthenticationTokenLoader.instance", None),
        ("ray._raylet:AuthenticationTokenLoader.reset_cache", None),
        ("ray._private.ray_constants:ENABLE_RAY_CLUSTER", None),  # loopback_only
        ("ray._raylet:GcsClient", None),  # nodes_of
        ("ray._raylet:InnerGcsClient.get_all_node_info", None),
        ("ray._private.state:actors", None),  # died_alone
        ("ray.tune.registry:_global_registry.get", "category key"),  # maker_of
        ("ray.tune.registry:_global_registry.contains", "category key"),
        ("ray.tune.registry:ENV_CREATOR", None),
        ("ray._private.auto_init_hook:auto_init_ray", ""),  # refuse_auto_init
        (f"{MANAGER}.actors", "self"),  # actors_of, kill_actors
        (f"{MANAGER}.clear", "self"),
        (f"{MANAGER}.remove_actor", "self actor_id"),
        (
            f"{GROUP}._make_worker",  # hosted_runners
            "self env_creator validate_env worker_index num_workers recreated_worker config spaces",
        ),
        (f"{TORCH_MODULE}._forward", "self batch kwargs"),  # forward_of
        ("ray.rllib.env.env_runner_state_server:EnvRunnerStateServer.pull", "self"),  # merged_connectors
        (f"{RUNNER}._log_env_steps", "self metric num_steps"),  # BatchedEnvRunner
        (f"{RUNNER}._increase_sampled_metrics", "self num_steps num_episodes_completed"),
        (f"{LEARNER}._check_is_built", "self error"),  # a learner of ours, which replaces `update` as a whole
        (f"{LEARNER}._check_component", "self name components not_components"),
    ],
    ids=lambda value: value.partition(":")[2] if value and ":" in value else "",
)
def test_a_function_or_value_is_there(path, parameters):
    found = resolved(path)
    assert parameters is None or parameters_of(found) == parameters


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (GROUP, "_worker_manager"),  # actors_of
        (GROUP, "_tune_trial_id"),  # hosted_runners
        ("ray.rllib.core.learner.learner_group:LearnerGroup", "_worker_manager"),
        (
            CONFIG,  # option
            "_env_to_module_connector _module_to_env_connector _learner_connector _learner_class _model_config "
            "_rl_module_spec _torch_grad_scaler_class _torch_lr_scheduler_classes",
        ),
        (LEARNER, "_learner_connector"),  # connector_pieces
        ("ray.rllib.algorithms.impala:IMPALA", "_env_runner_state_server"),  # merged_connectors
        (RUNNER, "_env_to_module"),  # freeze_filters
        (RUNNER_OF_SEVERAL, "_env_to_module"),
        ("ray.rllib.connectors.env_to_module.mean_std_filter:MeanStdFilter", "_update_stats"),
        ("ray.rllib.algorithms.impala.impala_learner:_LearnerThread", "_update_method"),  # wrap_update
        # Read or set by classes of ours, of themselves.
        (IMPALA_LEARNER, "_learner_thread _learner_thread_in_queue _gpu_loader_in_queue"),
        ("ray.rllib.algorithms.appo.appo_learner:APPOLearner", "_learner_thread_in_queue"),
        (RUNNER, "_seed _done_episodes_for_metrics _ongoing_episodes_for_metrics"),
        (RUNNER_OF_SEVERAL, "_seed _done_episodes_for_metrics _ongoing_episodes_for_metrics"),
        (RUNNER, "_metrics_num_env_steps_sampled _needs_initial_reset _weights_seq_no _env_runner_state_server"),
        ("ray.rllib.algorithms.algorithm:Algorithm", "_logdir"),
        (LEARNER, "_weights_seq_no"),
    ],
    ids=lambda value: value.rpartition(":")[2],
)
def test_an_attribute_is_there(path, names):
    kind = resolved(path)
    assert [name for name in names.split() if not has_or_sets(kind, name)] == []


def has_or_sets(kind, attribute):
    """Return whether a class has an attribute, or its source sets it, as its constructor may."""
    sources = (inspect.getsource(each) for each in kind.__mro__ if each.__module__.startswith("ray."))
    return hasattr(kind, attribute) or any(
        re.search(rf"self\.{attribute}\b(?::[^=]+)?\s*=[^=]", text) for text in sources
    )


REPLACED = [
    ("study.trial.measured:MeasuredAlgorithm._setup_logdir", "ray.rllib.algorithms.algorithm:Algorithm"),
    ("study.trial.measured:Overlapping._sample_and_get_connector_states", "ray.rllib.algorithms.impala:IMPALA"),
    ("study.trial.engine.learning.asynchronous_learner:CountingLearner._compute_off_policyness", LEARNER),
    ("study.trial.engine.extensions:ExtendedPPOTorchLearner._make_module", LEARNER),
    ("study.trial.engine.extensions:ExtendedPPOTorchLearner._set_optimizer_lr", LEARNER),
    ("study.trial.engine.sampling.runner:AsRLlib._try_env_reset", RUNNER),
    ("study.trial.engine.sampling.runner:AsRLlib._try_env_reset", RUNNER_OF_SEVERAL),
]
"""Methods of ours that take the place of RLlib's private ones, and whose."""


@pytest.mark.parametrize(("ours", "theirs"), REPLACED, ids=lambda path: path.rpartition(":")[2])
def test_a_method_that_ours_replaces_is_there_and_takes_the_same(ours, theirs):
    replaced = resolved(f"{theirs}.{ours.rpartition('.')[2]}")
    assert parameters_of(resolved(ours)) == parameters_of(replaced)


def test_no_other_method_of_ours_replaces_a_private_one():
    """A newer release may have a private method of a name that we use for another purpose."""
    wanted = {path.rpartition(".")[2] for path, _ in REPLACED} | {"_abc_impl"}
    for kind in classes_of_ours():
        mine = [each for each in kind.__mro__ if each.__module__.startswith("study.")]
        theirs = {name for each in kind.__mro__ if each not in mine for name in vars(each) if private(name)}
        assert {name for each in mine for name in vars(each)} & theirs <= wanted, kind


def classes_of_ours():
    """Yield every class of a trial or of the driver that is derived from one of Ray's."""
    for file in sorted((*ROOT.glob("study/trial/**/*.py"), *ROOT.glob("study/driver/**/*.py"))):
        text = file.read_text()
        if "class " in text and file.stem != "__main__" and ("import jax\n" not in text or find_spec("jax")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            kinds = [each for each in vars(importlib.import_module(name)).values() if inspect.isclass(each)]
            own = [each for each in kinds if each.__module__ == name]
            yield from (each for each in own if any(base.__module__.startswith("ray.") for base in each.mro()))


# --- words in Ray's sources ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("_private/worker.py", "ray._private.utils.set_sigterm_handler(sigterm_handler)"),  # own_signal_handlers
        ("tune/tune.py", "air_usage.tag_callbacks(callbacks)"),  # without_usage_tags
        ("_private/services.py", "ENABLE_RAY_CLUSTER"),  # loopback_only
        ("_private/worker.py", '"_temp_dir"'),  # private_ray
        ("_private/auto_init_hook.py", "auto_init_ray()"),  # refuse_auto_init
        ("actor.py", "@wrap_auto_init"),
        ("remote_function.py", "@wrap_auto_init"),
    ],
)
def test_ray_uses_what_is_replaced(file, words):
    assert words in (RAY / file).read_text()


def test_ray_reads_the_variables_that_it_is_given():
    parts = ("_private", "_common", "tune", "train", "air")
    text = "\n".join(file.read_text() for part in parts for file in (RAY / part).rglob("*.py"))
    given = {*TUNE_ENVIRONMENT, *SHIPPING_ENVIRONMENT, *PRIVATE_ENVIRONMENT, "RAY_AUTH_MODE"}
    of_others = {"GLOO_SOCKET_IFNAME", "RAY_worker_niceness"}  # of torch, and of Ray's servers, which are binary
    assert [name for name in given - of_others if name.removeprefix("RAY_AUTH_") not in text and name not in text] == []


def test_ray_says_what_an_actor_died_of():  # died_alone
    assert all(issubclass(resolved(f"ray.exceptions:{name}"), Exception) for name in LOST)
    messages = importlib.import_module("ray.core.generated.common_pb2")
    assert {"oom_context", "actor_died_error_context"} <= {*messages.ActorDeathCause.DESCRIPTOR.fields_by_name}
    reasons = {*messages.ActorDiedErrorContext.Reason.keys()}
    assert {"WORKER_DIED", "NODE_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED"} <= reasons


@pytest.mark.minutes
def test_ray_says_that_memory_was_short():  # was_short_of_memory
    code = """
import time, ray
from study.ray_private import was_short_of_memory
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
try:
    ray.get(ray.remote(max_retries=0)(lambda: time.sleep(60)).remote())
except ray.exceptions.OutOfMemoryError as error:
    print(was_short_of_memory(str(error)))
"""
    few = {**os.environ, "RAY_memory_usage_threshold": "0.01", "RAY_task_oom_retries": "0"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=few, capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[-1:] == ["True"], done.stderr


# --- JAX and tensorboardX --------------------------------------------------------------------------------------------


def test_jax_says_whether_it_was_used():
    assert pytest.importorskip("jax._src.xla_bridge").backends_are_initialized() in (False, True)


def test_tensorboardx_writes_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; from tensorboardX import event_file_writer, summary; "
        "from tensorboardX.proto import event_pb2; "
        "event_file_writer.EventsWriter, summary.scalar, event_pb2.Event, event_pb2.SessionLog"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- nothing private is used elsewhere -------------------------------------------------------------------------------

ENGINE = re.compile(r"\.?(ray|torch|optuna|mlflow|tensorboardX|gymnasium|numpy|jax)\b")
ALLOWED = ("_asdict", "_exit", "_replace")
"""Names with an underscore that Python documents, of `os` and of named tuples."""


def test_private_names_are_used_in_these_files_alone():
    """What a class of ours reads of itself may be RLlib's: it is listed above."""
    found = []
    for file in sorted((ROOT / "study").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        own = {each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)}
        own |= {each.attr for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)}
        names = [
            (each.lineno, each.attr)
            for each in nodes
            if isinstance(each, ast.Attribute) and ast.unparse(each.value) not in ("self", "cls", "super()")
        ]
        for each in nodes:
            if isinstance(each, ast.Import | ast.ImportFrom):
                paths = [f"{getattr(each, 'module', '')}.{alias.name}" for alias in each.names]
                names += [(each.lineno, part) for path in paths for part in path.split(".") if ENGINE.match(path)]
        if str(file.relative_to(ROOT)) not in HOMES:
            found += [f"{file}:{line} {name}" for line, name in names if private(name) and name not in {*own, *ALLOWED}]
    assert found == []
