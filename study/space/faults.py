"""From pydantic's errors about a space to faults: place, rule, value, and what to write instead. Pure."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from study.errors import Fault
from study.space.algorithms import ALGORITHMS
from study.space.parameters import PARAMETERS, RULES
from study.space.plain import MAX_FAULTS, MAX_WHOLE, shown
from study.space.script import ScriptFacts
from study.space.space_file import Source
from study.space.spec import StudySpec

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning_rate", "alpha", "step_size"),
    "train_batch_size": ("batch_size", "batch", "train_batch", "train_batch_size_per_learner", "buffer_size"),
    "num_env_runners": ("num_workers", "num_rollout_workers", "workers", "runners", "num_runners", "env_runners"),
    "num_envs_per_env_runner": ("n_envs", "num_envs", "num_envs_per_worker", "envs_per_worker", "envs_per_runner"),
    "minibatch_size": ("sgd_minibatch_size", "mini_batch_size", "minibatch"),
    "num_epochs": ("num_sgd_iter", "n_epochs", "epochs", "update_epochs"),
    "num_minibatches": ("n_minibatches", "nminibatches"),
    "steps_per_env_runner": ("n_steps", "num_steps"),
    "gamma": ("discount", "discount_factor"),
    "lambda": ("gae_lambda", "lam"),
    "clip_param": ("clip_range", "clip_ratio", "clip_coef", "clip_epsilon", "clip"),
    "entropy_coeff": ("ent_coef", "entropy_coef", "entropy"),
    "vf_loss_coeff": ("vf_coef", "value_loss_coef", "value_coef"),
    "grad_clip": ("max_grad_norm", "clip_grad_norm"),
    "kl_target": ("target_kl",),
    "environment": ("env", "environments"),
    "id": ("env", "env_id", "name", "env_name"),
    "kwargs": ("env_config", "config", "args", "arguments"),
    "algorithm": ("algo", "agent"),
    "parameters": ("params", "hyperparameters", "config", "space", "search_space", "param_space"),
    "reference": ("solved_return", "max_return", "best"),
    "target": ("solved", "threshold", "reward_threshold"),
    "floor": ("random", "min_return", "worst"),
    "env_steps": ("timesteps", "total_timesteps", "num_timesteps", "steps", "total_steps", "max_steps"),
    "iterations": ("num_iterations", "training_iteration", "training_iterations", "max_iterations"),
    "time_s": ("time", "seconds", "time_total_s", "timeout", "time_budget_s"),
    "num_trials": ("num_samples", "n_trials", "trials", "samples", "max_trials"),
    "seeds": ("seed", "num_seeds", "n_seeds"),
    "sampler": ("algorithm", "search_alg", "method", "strategy"),
    "objective": ("metric",),
    "episodes": ("num_episodes", "n_eval_episodes", "evaluation_duration"),
    "fcnet_hiddens": ("layers", "hidden_layers", "hidden_sizes", "hiddens", "hidden", "net_arch"),
    "fcnet_activation": ("activation", "activation_fn"),
    "num_gpus_per_learner": ("num_gpus", "gpus", "gpu"),
    "num_cpus_per_env_runner": ("num_cpus_per_worker", "cpus_per_runner"),
    "low": ("min", "lower", "from", "start"),
    "high": ("max", "upper", "to", "end"),
    "log": ("log_scale", "loguniform"),
    "step": ("q", "increment"),
    "choices": ("values", "grid_search", "choice", "list", "options"),
}
"""Names of a space -> the names that other programs, and earlier versions of RLlib, have for the same thing."""

_FORMS = frozenset({"value", "choices", "range", "list", "int", "float", "list[int]", "constrained-int"})
"""Parts of a pydantic location that name a form of a value, not a key."""
_RANGE = ("low", "high", "log", "step", "choices")
"""Keys of what a space says about a parameter."""
_NEAR, _ALIKE = 0.8, 0.6
"""How alike two names are, as `difflib` counts: a slip of the finger; and perhaps meant."""


def faults_of(error: ValidationError, source: Source) -> tuple[list[Fault], set[str]]:
    """Return pydantic's errors as faults, and the places of missing keys that an unknown key stands for.

    One mistake is one fault: where an unknown key is probably another's name, that other one is not missing.
    """
    items = error.errors(include_url=False)
    faults: list[Fault] = []
    missing: list[Fault] = []
    meant: set[str] = set()
    for item in items[:MAX_FAULTS]:
        unknown = item["type"] == "extra_forbidden"  # its last part is a key, also where a form has that name
        *above, last = map(str, item["loc"] or ("",))
        parts = [*(part for part in above if part not in _FORMS), *([last] if unknown or last not in _FORMS else [])]
        # `choices.1` of a bare list has no key of its own in the file.
        where = ".".join(parts) or "file"
        if unknown:
            known = _known_keys(item["loc"], source.content)
            missed = [each["loc"] for each in items if each["type"] == "missing"]
            absent = [str(each[-1]) for each in missed if each[:-1] == item["loc"][:-1]]
            fix, named = _unknown_key(parts[-1], known, absent, item.get("input"))
            fault = Fault(where=where, rule="unknown key", fix=fix)
            if named is not None:
                meant |= {".".join([*parts[:-1], named])}
                meant |= {".".join([*parts[:-1], each]) for each in ("low", "high") if named == "choices"}
        else:
            fault = _fault_of(item, where, parts)
        (missing if item["type"] == "missing" else faults).append(replace(fault, line=source.line_of(where)))
    faults = _once_each([*(fault for fault in missing if fault.where not in meant), *faults])
    if (more := len(items) - MAX_FAULTS) > 0:
        faults.append(Fault(where="file", rule=f"{more} more faults", fix="Correct these first."))
    return faults, meant


def _once_each(faults: Sequence[Fault]) -> list[Fault]:
    """Return one fault for each place; of a value that fits none of several types, the one that says most."""
    places = {fault.where for fault in faults}
    first: dict[str, Fault] = {}
    for fault in faults:
        if not any(place.startswith(f"{fault.where}.") for place in places):
            first.setdefault(fault.where, fault)
    return list(first.values())


def is_reported(where: str, reported: Iterable[str]) -> bool:
    """Return whether a fault of this key, or of one below it, is reported already."""
    return any(each == where or each.startswith(f"{where}.") for each in reported)


def _known_keys(loc: tuple[str | int, ...], content: Mapping[str, Any]) -> list[str]:
    """Return the keys that a section of a space may have; of parameters those of its algorithm."""
    if loc[:-1] == ("parameters",):
        return parameters_of(content)
    model: Any = StudySpec
    for part in loc[:-1]:
        if get_origin(model) in (dict, list):
            model = get_args(model)[-1]  # the part is a key or an index of the person's own
            continue
        info = getattr(model, "model_fields", {}).get(str(part))
        if info is None:
            return list(_RANGE)
        model = _unless_none(info.annotation)
    fields = getattr(model, "model_fields", {})
    return [info.alias or name for name, info in fields.items()] or list(_RANGE)


def parameters_of(content: Mapping[str, Any]) -> list[str]:
    """Return the parameters and rules that a space of this algorithm may give."""
    algorithm = ALGORITHMS.get(str(content.get("algorithm", "PPO")), ALGORITHMS["PPO"])
    rules = [name for name in RULES if name not in algorithm.rules]
    return [*(name for name in PARAMETERS if name in algorithm.parameters), *rules]


def _unless_none(annotation: Any) -> Any:
    """Return the type that an optional one has when it is given."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return next((each for each in get_args(annotation) if each is not NoneType), annotation)


def _unknown_key(name: str, known: Sequence[str], absent: Sequence[str], value: object) -> tuple[str, str | None]:
    """Return the fix of a key that its section does not have, and the key of the section that was meant."""
    first, colon, rest = name.partition(":")
    if colon and value is None:
        return f"Write a space behind the colon: {first}: {rest}.", first if first in known else None
    if (near := meant_by(name, known) or meant_by(name, absent, cutoff=_ALIKE)) is not None:
        return f"Did you mean '{near}'?", near
    if (place := _elsewhere(name)) is not None:
        return f"Did you mean '{place}'?", None
    if (near := meant_by(name, known, cutoff=_ALIKE)) is not None:
        return f"Did you mean '{near}'?", near
    return f"Use one of: {', '.join(known)}.", None


def meant_by(name: str, known: Sequence[str], *, cutoff: float = _NEAR) -> str | None:
    """Return the one of the known names that another program's name, or a misspelt one, stands for."""
    plain = name.lower().replace("-", "_").strip("_ ")
    if plain in known:
        return plain
    for own, others in OTHER_NAMES.items():
        if own in known and plain in others:
            return own
    near = difflib.get_close_matches(plain, known, n=1, cutoff=cutoff)
    return near[0] if near else None


def _elsewhere(name: str) -> str | None:
    """Return the place of a key that another section has."""
    places: dict[str, str] = {}
    for place in _places(StudySpec, ""):
        places.setdefault(place.rpartition(".")[2], place)
    near = meant_by(name, list(places))
    return None if near is None or near in _RANGE else places[near]


def _places(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the place of every key, those of a section before those of the sections in it."""
    inner: list[tuple[type[BaseModel], str]] = []
    for name, info in model.model_fields.items():
        place = f"{prefix}{info.alias or name}"
        yield place
        kind = _unless_none(info.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not ScriptFacts:  # which nobody writes
            inner.append((kind, f"{place}."))
    for kind, within in inner:
        yield from _places(kind, within)


_FIXES: Mapping[str, str] = {
    "finite_number": "Write a finite number.",
    "greater_than": "Write a larger number.",
    "greater_than_equal": "Write a larger number.",
    "less_than": "Write a smaller number.",
    "less_than_equal": "Write a smaller number.",
    "string_too_short": "Write it.",
    "too_short": "Add an item.",
    "too_long": "Remove an item.",
}
_TYPES: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}


def _fault_of(item: Any, where: str, parts: Sequence[str]) -> Fault:
    """Return the fault of every error but an unknown key."""
    kind, message, got = item["type"], item["msg"], _as_yaml(item.get("input"))
    if kind == "rule":
        return Fault(where=where, **item["ctx"])
    if kind == "missing":
        return Fault(where=where, rule="must be given", fix="Add it.")
    if kind in _TYPES:
        fix = _fix_of_type(kind, item.get("input"), parts)
        return Fault(where=where, rule=f"must be {_TYPES[kind]}", got=got, fix=fix)
    rule = message.split(" after validation")[0]
    for subject in ("Input should", "List should", "String should"):
        rule = rule.replace(subject, "must")
    if kind == "literal_error":
        options = [option.strip("'") for option in item["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        near = difflib.get_close_matches(str(item["input"]).lower(), [each.lower() for each in options], n=1)
        same = next((each for each in options if near and each.lower() == near[0]), None)
        fix = (
            f"Did you mean '{same}'?" if same else f"Write {options[0]}." if len(options) == 1 else "Use one of these."
        )
        return Fault(where=where, rule=rule, got=got, fix=fix)
    return Fault(where=where, rule=rule, got=got, fix=_FIXES.get(kind, "Change the value."))


def _as_yaml(value: object) -> str:
    """Return a value as its YAML says it."""
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else shown(value)


def _fix_of_type(kind: str, got: object, parts: Sequence[str]) -> str:
    """Return what to write in place of a value of another type."""
    whole = kind in ("int_type", "int_from_float")
    if whole or kind == "float_type":
        if isinstance(got, str) and (number := _number_meant(got, parts[-1], whole=whole)) is not None:
            return f"Write {number}."
        if len(parts) == 2 and parts[0] == "parameters" and not isinstance(got, (float, bool)):
            one = "[1, 2, 4]" if whole else "[0.0003, 0.001]"
            ends = "{low: 1, high: 46}" if whole else "{low: 0.0001, high: 0.01, log: true}"
            return f"Write a number, a list such as {one}, or a range such as {ends}."
        return f"Write {_TYPES[kind]}."
    if kind == "bool_type":
        said = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
        return f"Write {said.get(str(got).lower(), 'true or false')}."
    if kind == "string_type":
        return f"Write it in quotes: '{got}'." if isinstance(got, (int, float)) else "Write text."
    if kind == "list_type":
        return f"Write [{got}]." if isinstance(got, (int, float, str)) else "Write a list, such as [1, 2]."
    if isinstance(got, list):
        return "Write its keys without dashes, one in each line."
    keys = _known_keys((*parts, ""), {})
    value = "" if got is None or isinstance(got, bool) else f" {shown(got).strip(chr(39))}"
    example = f", such as `{keys[0]}:{value}`" if kind == "model_type" else ""
    return f"Write its keys below it, indented{example}."


_UNITS: Mapping[str, int] = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_SECONDS: Mapping[str, int] = {"": 1, "s": 1, "m": 60, "h": 3600}


def _number_meant(text: str, name: str, *, whole: bool) -> str | None:
    """Return the number that a text means, as YAML writes it.

    Such as `1,000,000`, `40k`, `2**15`, `10^-4`, `'1e-4'`; for seconds `10m`.
    """
    units = _SECONDS if name.endswith("_s") else _UNITS
    plain = text.strip().replace("_", "").lower()
    if re.fullmatch(r"[1-9]\d{0,2}([, ']\d{3})+", plain):
        plain = re.sub(r"\D", "", plain)
    plain = re.sub(r"^(\d+),(\d+)$", r"\1.\2", plain)
    if match := re.fullmatch(r"(\d{1,3})(?:\*\*|\^)(-?\d{1,2})", plain):
        value = float(match[1]) ** int(match[2])
    elif match := re.fullmatch(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,2})?) ?([a-z]?)", plain):
        if match[2] not in units:
            return None
        value = float(match[1]) * units[match[2]]
    else:
        return None
    if value.is_integer() and abs(value) <= MAX_WHOLE:
        return str(int(value))
    return None if whole else repr(value)
