"""The winner for use elsewhere: a plain RLlib script, and a space file of this project. Text; imports no engine."""

import io
import keyword
import pprint
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML

from study.designs.holdup.certificate.making import Certificate, make_certificate
from study.errors import AnalysisError
from study.records.folder import StudyFolder
from study.space.algorithms import ALGORITHMS
from study.space.parameters import PARAMETERS, SCALE, Value, attribute
from study.space.settings import fitted
from study.space.spec import StudySpec

WIDTH = 110
"""Columns of what is written."""
TABLE = (SCALE, "train_batch_size", "minibatch_size", "lr", "num_epochs")
"""What the table of the rule shows."""
_PPO = ALGORITHMS["PPO"].parameters
TRAINING = tuple(name for name, each in PARAMETERS.items() if each.is_argument and name in _PPO)
"""Arguments of RLlib's `training`; batch sizes go by learner and are written apart."""


def export_python(folder: StudyFolder, scale: int) -> str:
    """Return a script that trains the winner at a scale with RLlib alone.

    Args:
        folder: A confirmed hold-up study.
        scale: Environment runners; one that was not confirmed is said to be so.

    Raises:
        RecordError: The study has no certificate yet, or its records break a rule.
        AnalysisError: The scale cannot be run, or the training needs more than Gymnasium and RLlib.
    """
    certificate, spec, setting = _resolved(folder, scale)
    if spec.environment.backend != "gymnasium":
        fix = "Use `export --format yaml`, which keeps the backend."
        got = spec.environment.backend
        raise AnalysisError(
            where="environment.backend",
            rule="a plain script makes its environment with Gymnasium",
            got=got,
            fix=fix,
            code="export-needs-gymnasium",
        )
    _check_rllib_can(spec)
    return f"{_comment(_header(certificate, spec, scale))}\n{_body(spec, setting)}"


def export_yaml(folder: StudyFolder, scale: int) -> str:
    """Return a space file that trains the winner at a scale, with the table of its rule in comments.

    Args:
        folder: A confirmed hold-up study.
        scale: Environment runners; one that was not confirmed is said to be so.

    Raises:
        RecordError: The study has no certificate yet, or its records break a rule.
        AnalysisError: The scale cannot be run.
    """
    certificate, spec, setting = _resolved(folder, scale)
    content = spec.to_json()
    kept = ("environment", "algorithm", "model", "runner", "learner", "standardization", "budget", "evaluation")
    space: dict[str, Any] = {
        "description": f"The winner of the hold-up study {certificate.study['name']} at {scale} environment runners",
        **{name: content[name] for name in kept if content[name] is not None},
        "parameters": setting,
        "search": {"sampler": "grid", "seeds": [1, 2, 3]},
        "resources": content["resources"],
    }
    if content["rllib"]:
        space["rllib"] = content["rllib"]
    stream, yaml = io.StringIO(), YAML()
    yaml.width = WIDTH
    yaml.dump(space, stream)
    header, rule = _comment(_header(certificate, spec, scale)), _comment(_rule(certificate, spec, scale))
    return f"{header}\n#\n{rule}\n{stream.getvalue()}"


def _comment(lines: Iterable[str]) -> str:
    """Return the lines as comments; what is too long goes on in the next line, indented."""
    wrapped = (textwrap.wrap(line, WIDTH, subsequent_indent="  ", drop_whitespace=False) for line in lines)
    return "\n".join(f"# {part.rstrip()}" for parts in wrapped for part in parts)


def _resolved(folder: StudyFolder, scale: int) -> tuple[Certificate, StudySpec, dict[str, Value]]:
    certificate, spec = make_certificate(folder), folder.identity().parse()
    if scale < 1:
        raise AnalysisError(
            where="scale",
            rule="must be at least 1",
            got=scale,
            fix="Name a number of environment runners.",
            code="export-scale-below-one",
        )
    return certificate, spec, fitted(spec, certificate.winner["rule"], scale)


def _check_rllib_can(spec: StudySpec) -> None:
    """Refuse a script that would leave out what only this project does."""
    asked = spec.to_json()
    plain = ("id", "kwargs", "floor", "reference", "target", "max_episode_steps", "backend", "step_wait_ms")
    lacking = [name for name in asked["environment"] if name not in plain]
    lacking += [name for name in ("conv_net",) if name in asked["model"]]
    lacking += ["standardization: none"] if spec.standardization == "none" else []
    words = [word for section, arguments in spec.rllib.items() for word in (section, *arguments)]
    if foreign := [word for word in words if not word.isidentifier() or keyword.iskeyword(word)]:
        raise AnalysisError(
            where="export",
            rule="names under `rllib:` become names in the script",
            got=f"{foreign[0]!r}",
            fix="Do not run what this study's folder says: it was made by hand.",
            code="export-of-unsafe-names",
        )
    if lacking:
        raise AnalysisError(
            where="export",
            rule=f"a script of RLlib alone must do what was trained, and RLlib lacks {', '.join(lacking)}",
            fix="Use `export --format yaml`, and run it here.",
            code="export-lacks-in-rllib",
        )


def _header(certificate: Certificate, spec: StudySpec, scale: int) -> Iterator[str]:
    """Yield what a reader must know of where the numbers come from."""
    study, scales = certificate.study, certificate.scales
    yield f"The winner of the hold-up study '{study['name']}' ({study['id']}) at {scale} environment runners."
    yield f"Setting {certificate.winner['digest']}, space {study['space_digest']}."
    yield f"Verdict at {scales['target']} environment runners: {certificate.verdict.sentence}."
    confirmed = [scales["target"], scales["small"], *scales["unseen"]]
    if scale not in confirmed:
        shown = ", ".join(str(each) for each in sorted(confirmed))
        yield f"WARNING: this setting was not confirmed at {scale} environment runners, only at {shown}."
    arm = certificate.arms.get(f"winner@{scale}")
    if arm is not None:
        yield f"Confirmed at {scale}: score {arm.score:.3f}, solved {arm.solved} of {arm.n} test seeds."
    used = f"runner: {spec.runner}, learner: {spec.learner}, standardization: {spec.standardization_in_use}"
    if (spec.runner, spec.learner) != ("stock", "rllib"):
        stock = next((each for each in certificate.arms.values() if each.variant == "stock"), None)
        found = (
            "it was not confirmed with them"
            if stock is None
            else f"with them at {stock.scale}: score {stock.score:.3f}, solved {stock.solved} of {stock.n}"
        )
        yield f"The study trained with {used}; RLlib's own differ in detail ({found})."


def _rule(certificate: Certificate, spec: StudySpec, scale: int) -> Iterator[str]:
    """Yield the numbers that the rule gives at the scales of the study and at the one asked for."""
    scales, rule = certificate.scales, certificate.winner["rule"]
    confirmed = {scales["target"], scales["small"], *scales["unseen"]}
    yield "Rule: " + ", ".join(f"{name}: {value}" for name, value in rule.items())
    rows = [[*TABLE, "confirmed"]]
    for each in sorted({scale, *scales["searched"], *confirmed}):
        numbers = fitted(spec, rule, each)
        rows.append([*(f"{numbers[name]:.6g}" for name in TABLE), "yes" if each in confirmed else "no"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _body(spec: StudySpec, setting: Mapping[str, Value]) -> str:
    learners = max(spec.resources.num_learners, 1)
    environment, resources = spec.environment, spec.resources
    training: dict[str, Any] = {
        "train_batch_size_per_learner": int(setting["train_batch_size"]) // learners,
        "minibatch_size": int(setting["minibatch_size"]) // learners,
        **{attribute(name): setting[name] for name in TRAINING},
        "grad_clip_by": "global_norm",
    }
    calls = [
        _call("environment", {"env": "winner_env"}),
        _call(
            "env_runners",
            {
                "num_env_runners": int(setting[SCALE]),
                "num_envs_per_env_runner": int(setting["num_envs_per_env_runner"]),
                "num_cpus_per_env_runner": resources.num_cpus_per_env_runner,
                "rollout_fragment_length": "auto",
                "sample_timeout_s": resources.sample_timeout_s,
            },
        ),
        _call("training", training),
        f"    config.rl_module(model_config={_network(spec)})",
    ]
    learning: dict[str, Any] = {"num_learners": resources.num_learners}
    if resources.num_learners:
        learning["num_cpus_per_learner"] = resources.num_cpus_per_learner
    if resources.num_gpus_per_learner:
        learning["num_gpus_per_learner"] = resources.num_gpus_per_learner
    main = {
        "num_cpus_for_main_process": resources.num_cpus_for_main_process,
        "placement_strategy": resources.placement.upper(),
    }
    calls += [
        _call("learners", learning),
        _call("resources", main),
        "    config.debugging(seed=seed)",
        *(_call(method, arguments) for method, arguments in spec.rllib.items()),
    ]
    limits = {
        "env_steps": _limit(spec.budget.env_steps),
        "iterations": _limit(max((each for each in spec.iterations_axis if each), default=None)),
        "time_s": _limit(spec.budget.time_s),
    }
    return _SCRIPT.format(
        make_env=_make_env(spec),
        calls="\n".join(calls),
        env_steps=limits["env_steps"],
        iterations=limits["iterations"],
        time_s=limits["time_s"],
        wait="" if not environment.step_wait_ms else _WAIT.format(wait=environment.step_wait_ms),
    )


def _limit(value: float | None) -> str:
    """Return a limit of the budget as Python text."""
    return 'float("inf")' if value is None else repr(value)


def _call(method: str, arguments: Mapping[str, Any]) -> str:
    inside = "\n".join(f"        {name}={_literal(value)}," for name, value in arguments.items())
    return f"    config.{method}(\n{inside}\n    )"


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=WIDTH - 20, sort_dicts=False).replace("\n", "\n        ")


def _network(spec: StudySpec) -> str:
    model = spec.model
    hiddens, activation = list(model.fcnet_hiddens), model.fcnet_activation
    arguments: dict[str, Any] = {"fcnet_hiddens": hiddens, "fcnet_activation": activation}
    if model.conv_filters is not None:
        arguments = {
            "conv_filters": model.conv_filters,
            "head_fcnet_hiddens": hiddens,
            "head_fcnet_activation": activation,
        }
    arguments["vf_share_layers"] = model.vf_share_layers
    inside = "\n".join(f"            {name}={_literal(value)}," for name, value in arguments.items())
    return f"DefaultModelConfig(\n{inside}\n        )"


def _make_env(spec: StudySpec) -> str:
    environment = spec.environment
    kwargs, limit = _literal(environment.kwargs), environment.max_episode_steps
    module, colon, name = environment.id.partition(":")
    # `module:name` is a class of the person's own, or an id that the module registers.
    if not colon:
        return f"    env = gymnasium.make({environment.id!r}, max_episode_steps={limit}, **{kwargs})"
    lines = [f"    module = importlib.import_module({module!r})", f"    kwargs = {kwargs}"]
    lines += [f"    maker = getattr(module, {name!r}, None)"]
    lines += [f"    env = maker(**kwargs) if maker else gymnasium.make({name!r}, **kwargs)"]
    if limit is not None:
        lines += [f"    env = gymnasium.wrappers.TimeLimit(env, {limit})"]
    return "\n".join(lines)


_WAIT = """
# In the study every training step of an environment waited {wait:g} ms; here it does not."""

_SCRIPT = """
# Needs `ray[rllib]`, torch and gymnasium, and nothing of the project that found the numbers.
# What is printed is the return of the exploring training episodes; the study judged greedy evaluations.{wait}

import importlib
import sys

import gymnasium
import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env


def make_env(context=None):
{make_env}
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        return env  # an image, or a space that RLlib's own connectors flatten
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return gymnasium.wrappers.TransformObservation(
        env, lambda observation: np.asarray(observation, np.float32), gymnasium.spaces.Box(low, high, dtype=np.float32)
    )


def make_config(seed=1):
    register_env("winner_env", make_env)
    config = PPOConfig()
{calls}
    return config


def main():
    algorithm = make_config(seed=int(sys.argv[1]) if len(sys.argv) > 1 else 1).build_algo()
    env_steps = iterations = time_s = 0
    while env_steps < {env_steps} and iterations < {iterations} and time_s < {time_s}:
        result = algorithm.train()
        runners = result["env_runners"]
        env_steps = runners["num_env_steps_sampled_lifetime"]
        iterations, time_s = result["training_iteration"], result["time_total_s"]
        print(iterations, env_steps, runners.get("episode_return_mean", "no episode has ended"), sep="\\t")
    print("policy:", algorithm.save_to_path())
    algorithm.stop()


if __name__ == "__main__":
    main()
"""
