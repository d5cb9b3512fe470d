"""The workload fingerprint: everything a time depends on except runners and placement, as one JSON text.

Two runs may be compared as "the same work on more runners" where their fingerprints are equal. What was asked comes
from the space and the setting, what really ran from the built algorithm, where it ran from the driver's provenance.
Below: in what two fingerprints differ, and what tells many apart.
"""

import hashlib
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import orjson
from pydantic import BaseModel

from study.engine import engine_of
from study.space.parameters import PARAMETERS, SCALE, Value
from study.space.sections import LEARNERS, EnvironmentSpec, EvaluationSpec, NetworkSpec
from study.text import mask_arguments

BATCH = "train_batch_size"
ENGINE = "engine"
"""Field that says which runner and learner were built, see `study.engine`."""
ABSENT = "absent"
"""Stands for the value of a field that one of two fingerprints lacks."""

_TOLD_APART = frozenset((SCALE, LEARNERS, "minibatch_size"))
"""Entries of a setting that are the scale, or appear in another way."""
_PACKAGES = ("python", "ray", "torch", "gymnasium", "numpy", "envpool", "jaxlib")
"""Versions that a training step passes through; Optuna and MLflow are in other processes."""
_ENVIRONMENT = ("id", "kwargs", "step_wait_ms", "max_episode_steps", "backend", "action_repeat", "frame_stack")
_WITHDRAWN = {"action_repeat": 1, "frame_stack": 1}
"""Keys of environments that earlier versions had, with the values by which trials run now."""
_EARLIER = ("normalize_observations", "normalize_rewards")
"""Keys of environments that earlier versions recorded; they are parameters now, which a setting may hold."""
_RUNNER = ("runner_class", "normalize_actions", "clip_actions", "fallbacks")
_LEARNER = (
    *("learner_class", "module_class", "optimizer", "grad_clip_by", "standardization", "device", "algorithm_class"),
)
_THREADS = (
    *("torch_threads_main", "torch_threads_runner", "torch_threads_learner"),
    *("omp_num_threads_main", "omp_num_threads_runner"),
)


def fingerprints(
    spec: Mapping[str, Any],
    provenances: Sequence[Mapping[str, Any]],
    kinds: Sequence[tuple[int, str | None, str, int | None]],
    settings: Sequence[Mapping[str, Value]],
    read_back: Sequence[str | None],
) -> list[str]:
    """Return the fingerprint of each trial of a study.

    Args:
        spec: `StudySpec.to_json()` of whichever version wrote the study.
        provenances: Of the drivers, per session.
        kinds: Session, variant, execution and learners of each trial: trials of one kind are built alike.
        settings: Of each trial.
        read_back: `effective_part` of each trial as JSON; None takes that of its kind's first.
    """
    first: dict[Hashable, str] = {}
    for kind, part in zip(kinds, read_back, strict=True):
        if part is not None:
            first.setdefault(kind, part)
    shared = {kind[:2]: common(spec, provenances[kind[0]], kind[1]) for kind in set(kinds)}
    built = {part: orjson.loads(part) for part in {"{}", *filter(None, read_back)}}
    return [
        fingerprint(
            shared[kind[:2]],
            asked(setting, execution=kind[2], num_learners=kind[3]),
            built[part or first.get(kind, "{}")],
        )
        for kind, setting, part in zip(kinds, settings, read_back, strict=True)
    ]


def common(spec: Mapping[str, Any], provenance: Mapping[str, Any], variant: str | None = None) -> dict[str, Any]:
    """Return the entries that all trials of a session and a variant share."""
    if variant == "stock":
        spec = {**spec, "runner": "stock", "learner": "rllib"}
    versions = provenance.get("versions") or {}
    physical, logical = provenance.get("physical_cpus"), provenance.get("logical_cpus")
    environment = _WITHDRAWN | (_whole(spec.get("environment"), EnvironmentSpec) or {})
    return {
        "algorithm": spec.get("algorithm"),
        "environment": {name: environment[name] for name in _ENVIRONMENT if name in environment}
        | {name: environment[name] for name in _EARLIER if environment.get(name)},
        "network": _whole(spec.get("model"), NetworkSpec),
        "evaluation": _whole(spec.get("evaluation"), EvaluationSpec),
        "runner": spec.get("runner"),
        "learner": spec.get("learner"),
        "rllib": spec.get("rllib") or {},
        "script": _script(spec),
        "versions": {name: versions[name] for name in _PACKAGES if versions.get(name)},
        "cpu_model": provenance.get("cpu_model"),
        "smt": logical > physical if physical and logical else None,
    }


def _whole(section: object, model: type[BaseModel]) -> dict[str, Any] | None:
    """Return a section with the defaults of keys that its version did not record."""
    if not isinstance(section, Mapping):
        return None
    return {name: info.get_default() for name, info in model.model_fields.items() if not info.is_required()} | {
        **section
    }


def _script(spec: Mapping[str, Any]) -> dict[str, str] | None:
    facts = mask_arguments(spec).get("script")  # a copy that is not private shows no secret
    if not isinstance(facts, Mapping):
        return None
    content = hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    source = facts.get("source") or {}
    return {"file": source.get("file", ""), "sha256": source.get("sha256", ""), "facts": content}


def asked(setting: Mapping[str, Value], *, execution: str, num_learners: int | None) -> dict[str, Any]:
    """Return the entries that a trial's own setting gives. Learners are among them: they are no runners."""
    return {
        **{name: value for name, value in setting.items() if name not in _TOLD_APART},
        # A setting's minibatch is what all learners take together.
        "minibatch_times_learners": setting.get("minibatch_size"),
        LEARNERS: num_learners,
        "execution": execution,
    }


def effective_part(effective: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that the built algorithm gives; empty where nothing was read back."""
    groups = {"effective_runner": _RUNNER, "effective_learner": _LEARNER, "threads": _THREADS}
    parts: dict[str, Any] = {
        key: {name: effective[name] for name in names if name in effective} for key, names in groups.items()
    }
    scheduler = (provenance.get("scheduler") or {}).get("name")
    parts["node_type"] = node_types(effective.get("hostnames") or (), oar=scheduler == "oar")
    return {key: part for key, part in parts.items() if part}


def node_types(hostnames: Iterable[str], *, oar: bool) -> list[str]:
    """Return the clusters of Grid'5000 nodes, whose names are `cluster-number` and which differ in hardware."""
    pattern = re.compile(r"([a-z]+)-\d+" if oar else r"([a-z]+)-\d+\.\w+\.grid5000\.fr")
    found = {match[1] for name in hostnames if (match := pattern.match(name))}
    return sorted(found)


def fingerprint(*parts: Mapping[str, Any]) -> str:
    """Return the parts as one JSON object with sorted keys; what does not exist is left out."""
    merged = {key: value for part in parts for key, value in part.items() if value is not None}
    return orjson.dumps(merged, option=orjson.OPT_SORT_KEYS).decode()


# --- fingerprints beside each other -------------------------------------------------------------------------------

SETTINGS = frozenset(PARAMETERS) - {SCALE} | {"minibatch_times_learners", LEARNERS}
"""Fields that a space gives. Missing combinations of these can be run, so their effect can be told apart from that of
the scale; that of hardware, versions or code cannot be."""
IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "train_batch_size": "batch",
        "lr": "learning rate",
        "minibatch_size": "minibatch",
        "minibatch_times_learners": "minibatch",
        "num_epochs": "epochs",
        "num_envs_per_env_runner": "environments per runner",
        "steps_per_env_runner": "steps per runner",
        "env_steps_per_runner": "steps per runner",
        "clip_param": "clip",
        "entropy_coeff": "entropy coefficient",
        "grad_clip": "gradient clip",
        "vf_loss_coeff": "value loss coefficient",
        "vf_clip_param": "value clip",
        LEARNERS: "learners",
        "max_iterations": "iterations",
        "cpu_model": "CPU model",
        "id": "environment",
    }
)
"""Parameter or field -> what people call it; in a sentence the first ones are named first."""
_BUILT, _ASKED = ("effective_runner.runner_class", "effective_learner.learner_class"), ("runner", "learner")


@lru_cache(maxsize=4096)
def fields(fingerprint: str) -> Mapping[str, Any]:
    """Return the fields of a fingerprint, nested ones by dotted names (`environment.id`).

    The field `engine` stands in place of those that say which runner and learner were asked and built.
    """
    content = dict(_flat(orjson.loads(fingerprint)))
    engine = engine_of({name.rpartition(".")[2]: content[name] for name in _BUILT if name in content})
    if engine is None:
        return content
    return {name: value for name, value in content.items() if name not in (*_BUILT, *_ASKED)} | {ENGINE: engine}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", tuple(value) if isinstance(value, list) else value


def differing(first: str, second: str) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two fingerprints differ, each with its two values."""
    one, two = fields(first), fields(second)
    names = sorted(one.keys() | two.keys())
    pairs = {name: (one.get(name, ABSENT), two.get(name, ABSENT)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def without_batch(fingerprint: str, **others: float) -> str:
    """Return the fingerprint without the train batch size, and with other fields in its place."""
    content = {name: value for name, value in orjson.loads(fingerprint).items() if name != BATCH}
    return orjson.dumps(content | others, option=orjson.OPT_SORT_KEYS).decode()


def labels(fingerprints: Sequence[str]) -> list[str]:
    """Return a short name for each fingerprint: the fields in which they are not all equal, else the environment."""
    contents = [fields(fingerprint) for fingerprint in fingerprints]
    names = sorted({name for content in contents for name in content})
    varying = [name for name in names if len({repr(content.get(name)) for content in contents}) > 1]
    shown = varying or [
        name
        for name in ("environment.id", BATCH, "env_steps_per_runner", "digest")
        if any(name in content for content in contents)
    ]
    return [
        ", ".join(f"{in_words(name.rpartition('.')[2])} {text_of(content[name])}" for name in shown if name in content)
        for content in contents
    ]


def in_words(name: str) -> str:
    """Return what people call a parameter or a field."""
    return IN_WORDS.get(name, name.replace("_", " "))


def value_in_words(value: float) -> str:
    """Return a parameter's value as one says it: whole digits in full, decimals to three significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1_000 else f"{float(value):.3g}"


def text_of(value: Any) -> str:
    """Return a value of a field as text: whole numbers in full, others to six digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
