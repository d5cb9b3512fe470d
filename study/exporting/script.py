"""A setting for use elsewhere: a plain RLlib script, and a space file of this project. Text; imports no engine.

What only this project does is refused by name and never left out without a word.
"""

import keyword
import pprint
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from study.errors import AnalysisError
from study.space.parameters import Calls, Value, set_all
from study.space.space_file import written
from study.space.spec import StudySpec

WIDTH = 110
"""Columns of what is written."""
_KEPT = ("environment", "algorithm", "model", "runner", "learner", "budget", "evaluation")
"""Sections of a space that a setting needs beside its numbers."""
_SCORES = ("floor", "reference", "target")
_ENVIRONMENT = ("id", "kwargs", "floor", "reference", "target", "max_episode_steps", "backend", "step_wait_ms")
"""Keys of `environment` that a plain script can do, or that training does not need."""


def plain_script(
    spec: StudySpec,
    setting: Mapping[str, Value],
    *,
    header: Iterable[str],
    seed: int = 1,
    iterations: int | None,
    fast: bool = False,
) -> str:
    """Return a script that trains a setting with RLlib alone, or with `study.fast` too.

    Args:
        spec: The space.
        setting: Every parameter with its value, the scale included.
        header: Comments at its beginning: where the numbers come from.
        seed: What the script takes where it is given none.
        iterations: After how many it ends; None: as the budget says.
        fast: Whether it takes the batched runner and the fused learner, where they serve.

    Raises:
        AnalysisError: The training needs more than Gymnasium and RLlib.
    """
    _check_rllib_can(spec)
    if fast and spec.algorithm != "PPO":
        fix = "Leave the option out."
        raise AnalysisError(where="--engine", rule="`fast` is for PPO", got=spec.algorithm, fix=fix)
    return f"{comment(header)}\n\n{_script(spec, setting, seed, iterations, fast)}"


def space_file(
    spec: StudySpec, setting: Mapping[str, Value], *, header: str, description: str, seeds: Sequence[int]
) -> str:
    """Return a space file that trains a setting once for each seed.

    Args:
        spec: The space.
        setting: Every parameter with its value, the scale included.
        header: Comments at its beginning, with their marks.
        description: Of the space.
        seeds: Of its trials.
    """
    content = spec.to_json()
    kept = {name: content[name] for name in _KEPT if content[name] is not None}
    if spec.config is not None:
        # What the script says is not said again: its environment, algorithm and network.
        scores = {
            name: value for name, value in kept.pop("environment").items() if name in _SCORES and value is not None
        }
        del kept["algorithm"], kept["model"]
        own = {name: content[name] for name in ("config", "config_args") if content[name]}
        kept = {**own, **({"environment": scores} if scores else {}), **kept}
    space: dict[str, Any] = {
        "description": description,
        **kept,
        "parameters": dict(setting),
        "search": {"sampler": "grid", "seeds": list(seeds)},
        "resources": content["resources"],
    }
    if content["rllib"]:
        space["rllib"] = content["rllib"]
    return written(space, header=header)


def comment(lines: Iterable[str]) -> str:
    """Return the lines as comments; what is too long goes on in the next line, indented."""
    wrapped = (textwrap.wrap(line, WIDTH, subsequent_indent="  ", drop_whitespace=False) for line in lines)
    return "\n".join(f"# {part.rstrip()}" for parts in wrapped for part in parts)


def _check_rllib_can(spec: StudySpec) -> None:
    """Refuse a script that would leave out what only this project does."""
    asked = spec.differing()
    lacking = [name for name in asked["environment"] if name not in _ENVIRONMENT]
    lacking += [name for name in ("conv_net",) if name in asked.get("model", {})]
    lacking += ["the update of A2C"] if spec.algorithm == "A2C" else []
    words = [word for section, arguments in spec.rllib.items() for word in (section, *arguments)]
    if foreign := [word for word in words if not word.isidentifier() or keyword.iskeyword(word)]:
        raise AnalysisError(
            where="export",
            rule="names under `rllib:` become names in the script",
            got=f"{foreign[0]!r}",
            fix="Do not run what this study's folder says: it was made by hand.",
        )
    if spec.environment.backend != "gymnasium":
        raise AnalysisError(
            where="environment.backend",
            rule="a plain script makes its environment with Gymnasium",
            got=spec.environment.backend,
            fix="Use `export --format yaml`, which keeps the backend.",
        )
    if lacking:
        raise AnalysisError(
            where="export",
            rule=f"a script of RLlib alone must do what was trained, and RLlib lacks {', '.join(lacking)}",
            fix="Use `export --format yaml`, and run it here.",
        )


def _script(spec: StudySpec, setting: Mapping[str, Value], seed: int, iterations: int | None, fast: bool) -> str:
    """Return the script without its header, from the template beside this file."""
    environment = Environment(
        loader=PackageLoader("study.exporting", "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # Python, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "literal": _literal,
        "limit": lambda value: 'float("inf")' if value is None else repr(value),
    }
    module, colon, name = spec.environment.id.partition(":")
    calls = _calls(spec, setting)
    return environment.get_template("script.py.j2").render(
        algorithm=spec.algorithm,
        fast=fast,
        seed=seed,
        judged=("stochastic" if spec.evaluation.stochastic else "greedy") if spec.learns else "",
        # `module:name` is a class of the person's own, or an id that the module registers.
        module=module if colon else "",
        name=name if colon else spec.environment.id,
        kwargs=spec.environment.kwargs,
        max_episode_steps=spec.environment.max_episode_steps,
        step_wait_ms=spec.environment.step_wait_ms,
        calls=calls,
        extensions="" if fast else extensions_of(dict(calls)["learners"]),
        env_steps=spec.budget.env_steps,
        iterations=iterations,
        time_s=spec.budget.time_s,
    )


def values_set(
    setting: Mapping[str, Value],
    *,
    learners: int,
    env_steps: int | None,
    own: Mapping[str, Value],
    has_kl_term: bool = True,
) -> dict[str, dict[str, Any]]:
    """Return method of RLlib's configuration -> arguments that give it the values of a setting.

    Args:
        setting: Parameters with their values.
        learners: Among which RLlib divides a batch: its sizes are those of one.
        env_steps: Budget, over which a learning rate falls.
        own: Values that the configuration has already, which are left out.
        has_kl_term: Whether its loss has the term of `kl_coeff` by itself.
    """
    calls = Calls(num_learners=learners, lr=setting.get("lr"))
    changed = {name: value for name, value in setting.items() if name not in own or own[name] != value}
    set_all(calls, changed, env_steps=env_steps)
    if "kl_coeff" in changed and not has_kl_term:
        calls.training(use_kl_loss=changed["kl_coeff"] > 0)
    return calls.made


def extensions_of(learners: Mapping[str, Any]) -> str:
    """Return the text that a script needs for what RLlib has no option for; empty where it asks for nothing.

    It is that of the module with which a study trains, without its first lines.
    """
    if not learners.get("learner_config_dict"):
        return ""
    text = (files("study.trial.engine") / "extensions.py").read_text(encoding="utf-8")
    return text.partition('"""\n\n')[2].rstrip()


def _calls(spec: StudySpec, setting: Mapping[str, Value]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what is called on RLlib's configuration: methods with their arguments."""
    resources, traits = spec.resources, spec.traits
    calls = values_set(
        {name: value for name, value in setting.items() if name in traits.parameters},
        learners=max(resources.num_learners, 1),
        env_steps=spec.budget.env_steps,
        own={},
        has_kl_term=spec.algorithm != "APPO",
    )
    calls["env_runners"] |= {
        "num_cpus_per_env_runner": resources.num_cpus_per_env_runner,
        "sample_timeout_s": resources.sample_timeout_s,
    }
    calls["training"]["grad_clip_by"] = "global_norm"
    model, head = spec.model, "" if spec.model.conv_filters is None else "head_"
    network: dict[str, Any] = {} if model.conv_filters is None else {"conv_filters": model.conv_filters}
    network |= {f"{head}fcnet_hiddens": list(model.fcnet_hiddens), f"{head}fcnet_activation": model.fcnet_activation}
    network |= {"vf_share_layers": model.vf_share_layers, **({"free_log_std": True} if model.free_log_std else {})}
    learning: dict[str, Any] = {**calls.pop("learners"), "num_learners": resources.num_learners}
    if resources.num_learners:
        learning["num_cpus_per_learner"] = resources.num_cpus_per_learner
    if resources.num_gpus_per_learner:
        learning["num_gpus_per_learner"] = resources.num_gpus_per_learner
    main = {
        "num_cpus_for_main_process": resources.num_cpus_for_main_process,
        "placement_strategy": resources.placement.upper(),
    }
    return [
        ("environment", {"env": "study_env"}),
        *calls.items(),
        ("rl_module", network),
        ("learners", learning),
        ("resources", main),
        # RLlib's asynchronous algorithms would make iterations of ten seconds.
        *([("reporting", {"min_time_s_per_iteration": None})] if traits.asynchronous else []),
        ("debugging", {}),
        *spec.rllib.items(),
    ]


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=WIDTH - 20, sort_dicts=False).replace("\n", "\n        ")
