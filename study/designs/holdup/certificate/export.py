"""The winner for use elsewhere: a plain RLlib script, and a space file of this project. Text; imports no engine."""

import io
import keyword
import pprint
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
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
        raise AnalysisError(
            where="environment.backend",
            rule="a plain script makes its environment with Gymnasium",
            got=spec.environment.backend,
            fix="Use `export --format yaml`, which keeps the backend.",
            code="export-needs-gymnasium",
        )
    _check_rllib_can(spec)
    return f"{_comment(_header(certificate, spec, scale))}\n\n{_script(spec, setting)}"


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


def _script(spec: StudySpec, setting: Mapping[str, Value]) -> str:
    """Return the script without its header, from the template beside this file."""
    environment = Environment(
        loader=PackageLoader("study.designs.holdup.certificate", "templates"),
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
    return environment.get_template("winner.py.j2").render(
        # `module:name` is a class of the person's own, or an id that the module registers.
        module=module if colon else "",
        name=name if colon else spec.environment.id,
        kwargs=spec.environment.kwargs,
        max_episode_steps=spec.environment.max_episode_steps,
        step_wait_ms=spec.environment.step_wait_ms,
        calls=_calls(spec, setting),
        env_steps=spec.budget.env_steps,
        iterations=max((each for each in spec.iterations_axis if each), default=None),
        time_s=spec.budget.time_s,
    )


def _calls(spec: StudySpec, setting: Mapping[str, Value]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what is called on RLlib's configuration: methods with their arguments."""
    resources, learners = spec.resources, max(spec.resources.num_learners, 1)
    runners = {
        "num_env_runners": int(setting[SCALE]),
        "num_envs_per_env_runner": int(setting["num_envs_per_env_runner"]),
        "num_cpus_per_env_runner": resources.num_cpus_per_env_runner,
        "rollout_fragment_length": "auto",
        "sample_timeout_s": resources.sample_timeout_s,
    }
    training: dict[str, Any] = {
        "train_batch_size_per_learner": int(setting["train_batch_size"]) // learners,
        "minibatch_size": int(setting["minibatch_size"]) // learners,
        **{attribute(name): setting[name] for name in TRAINING},
        "grad_clip_by": "global_norm",
    }
    model, head = spec.model, "" if spec.model.conv_filters is None else "head_"
    network: dict[str, Any] = {} if model.conv_filters is None else {"conv_filters": model.conv_filters}
    network |= {f"{head}fcnet_hiddens": list(model.fcnet_hiddens), f"{head}fcnet_activation": model.fcnet_activation}
    network |= {"vf_share_layers": model.vf_share_layers}
    learning: dict[str, Any] = {"num_learners": resources.num_learners}
    if resources.num_learners:
        learning["num_cpus_per_learner"] = resources.num_cpus_per_learner
    if resources.num_gpus_per_learner:
        learning["num_gpus_per_learner"] = resources.num_gpus_per_learner
    main = {
        "num_cpus_for_main_process": resources.num_cpus_for_main_process,
        "placement_strategy": resources.placement.upper(),
    }
    return [
        ("environment", {"env": "winner_env"}),
        ("env_runners", runners),
        ("training", training),
        ("rl_module", network),
        ("learners", learning),
        ("resources", main),
        ("debugging", {}),
        *spec.rllib.items(),
    ]


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=WIDTH - 20, sort_dicts=False).replace("\n", "\n        ")
