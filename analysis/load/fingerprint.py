"""The workload fingerprint: everything a time depends on except runners and placement, as one JSON text. Pure.

Two runs may be compared as "the same work on more runners" where their fingerprints are equal. What was asked comes
from the space and the setting, what really ran from the built algorithm, where it ran from the driver's provenance.
"""

import hashlib
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import orjson
from pydantic import BaseModel

from study.engine import engine_of
from study.harmless import mask_arguments
from study.space.parameters import SCALE, Value
from study.space.sections import LEARNERS, EnvironmentSpec, EvaluationSpec, NetworkSpec

_TOLD_APART = frozenset((SCALE, LEARNERS, "minibatch_size"))
"""Entries of a setting that are the scale, or appear in another way."""
_PACKAGES = ("python", "ray", "torch", "gymnasium", "numpy", "envpool", "jaxlib")
"""Versions that a training step passes through; Optuna and MLflow are in other processes."""
_ENVIRONMENT = (
    *("id", "kwargs", "step_wait_ms", "max_episode_steps", "backend", "step_cpu_ms", "action_repeat", "frame_stack"),
    *("normalize_observations", "normalize_rewards"),
)
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
) -> tuple[list[str], list[str | None]]:
    """Return the fingerprint and the engine of each trial of a study.

    Args:
        spec: `StudySpec.to_json()` of whichever version wrote the study.
        provenances: Of the drivers, per session.
        kinds: Session, variant, execution and learners of each trial: trials of one kind are built alike.
        settings: Of each trial.
        read_back: `effective_part` of each trial as JSON; one that never came up, None, takes that of its kind's first.
    """
    first: dict[Hashable, str] = {}
    for kind, part in zip(kinds, read_back, strict=True):
        if part is not None:
            first.setdefault(kind, part)
    shared = {kind[:2]: common(spec, provenances[kind[0]], kind[1]) for kind in set(kinds)}
    built = {part: orjson.loads(part) for part in {"{}", *filter(None, read_back)}}
    named = {
        part: engine_of({**content.get("effective_runner", {}), **content.get("effective_learner", {})})
        for part, content in built.items()
    }
    texts, engines = list[str](), list[str | None]()
    for kind, setting, part in zip(kinds, settings, read_back, strict=True):
        part = part or first.get(kind, "{}")
        own = asked(setting, execution=kind[2], num_learners=kind[3])
        texts.append(fingerprint(shared[kind[:2]], own, built[part]))
        engines.append(named[part])
    return texts, engines


def common(spec: Mapping[str, Any], provenance: Mapping[str, Any], variant: str | None = None) -> dict[str, Any]:
    """Return the entries that all trials of a session and a variant share."""
    spec = _as_run(spec, variant)
    versions = provenance.get("versions") or {}
    physical, logical = provenance.get("physical_cpus"), provenance.get("logical_cpus")
    environment = _whole(spec.get("environment"), EnvironmentSpec) or {}
    return {
        "algorithm": spec.get("algorithm"),
        "environment": {name: environment[name] for name in _ENVIRONMENT if name in environment},
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


def _as_run(spec: Mapping[str, Any], variant: str | None) -> Mapping[str, Any]:
    """Return the space of a variant's trials, as `study.space.settings.spec_of`, of any version."""
    if variant == "stock":
        return {**spec, "runner": "stock", "learner": "rllib"}
    if variant != "measured":
        return spec
    measure = (spec.get("holdup") or {}).get("measure") or {}
    environment = {**(spec.get("environment") or {}), "step_wait_ms": measure.get("step_wait_ms", 0.0)}
    evaluation = {**(spec.get("evaluation") or {}), "num_evaluations": 1, "episodes": 1}
    return {**spec, "environment": environment, "evaluation": evaluation}


def asked(setting: Mapping[str, Value], *, execution: str, num_learners: int | None) -> dict[str, Any]:
    """Return the entries that a trial's own setting gives.

    Args:
        setting: Its parameters.
        execution: real or emulated.
        num_learners: Learner processes; None where it is not known. They are no runners: a time that they shortened is
            no speed-up of the runners.
    """
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
    """Return the clusters of Grid'5000 nodes, whose names are `cluster-number`; empty for other names.

    Nodes of one cluster are alike, nodes of two are not; elsewhere a host's name says nothing about its hardware.
    """
    pattern = re.compile(r"([a-z]+)-\d+" if oar else r"([a-z]+)-\d+\.\w+\.grid5000\.fr")
    found = {match[1] for name in hostnames if (match := pattern.match(name))}
    return sorted(found)


def fingerprint(*parts: Mapping[str, Any]) -> str:
    """Return the parts as one JSON object with sorted keys; what does not exist is left out."""
    merged = {key: value for part in parts for key, value in part.items() if value is not None}
    return orjson.dumps(merged, option=orjson.OPT_SORT_KEYS).decode()
