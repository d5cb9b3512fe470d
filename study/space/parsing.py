"""From a space file to a `StudySpec`, with every fault at once: place, rule, value, and what to write instead. Pure.

Imports no Ray, torch or Optuna.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from study.errors import Fault, SpaceError
from study.space.domains import MAX_LISTED, Rule, Setting
from study.space.parameters import ALGORITHMS, SCALE
from study.space.rules import ASKED, BATCHES, COMMON, HOLDUP, SCRIPT, SEARCH, YOUNGER
from study.space.script import ScriptFacts
from study.space.space_file import MAX_FAULTS, Source, as_yaml, unfit
from study.space.spec import KINDS, VERSION, StudySpec
from study.space.throughput import TIMED

OF_KIND: Mapping[str, tuple[Rule, ...]] = {
    "search": (*SCRIPT, *COMMON, *TIMED, *BATCHES, *SEARCH, *HOLDUP),
    "throughput": (*SCRIPT, *COMMON, *TIMED),
}
"""Kind of study -> its rules between sections; a kind that is added later has them in `study.space.spec.KINDS`."""
NOT_FOR_PEOPLE: Mapping[str, tuple[str, str]] = {
    "search.anchors": (f"is called search.baselines since version {VERSION} of space files", "Write baselines."),
    "script": ("is found in the script, and not written", "Remove it; `config` names the script."),
}
"""What a program wrote or writes, and a file may not have: key -> rule and fix."""
_SCORING = ("environment.floor", "environment.reference", "environment.target")
"""Returns that give a score its meaning."""
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


def parse_space(source: Source, *, scored: bool = True, asked: bool = False) -> StudySpec:
    """Validate the content of a space file.

    Args:
        source: The content.
        scored: Whether the returns that give a score its meaning must be there, and in order.
        asked: Whether a person starts this study now: some rules do not apply to studies on record.

    Raises:
        SpaceError: With every fault found.
    """
    if faults := list(unfit(source.content))[:MAX_FAULTS]:  # the code below expects no such values
        raise SpaceError(source.name, [_with_line(fault, source) for fault in faults])
    faults = [
        Fault(where=key, rule=rule, fix=fix) for key, (rule, fix) in NOT_FOR_PEOPLE.items() if key in source.lines
    ]
    reported = set() if scored else {*_SCORING}
    spec: StudySpec | None = None
    try:
        spec = StudySpec.model_validate(source.without(fault.where for fault in faults if fault.where != "script"))
    except ValidationError as error:
        found, meant = _faults_of(error, source)
        faults, reported = faults + [each for each in found if each.where not in NOT_FOR_PEOPLE], reported | meant
        spec = _without(source, faults)
    if spec is not None:
        reported |= {fault.where for fault in faults}
        faults += [fault for fault in _broken(spec, asked=asked) if not _is_reported(fault.where, reported)]
    if faults or spec is None:
        faults = [_with_line(fault, source) for fault in faults]
        raise SpaceError(source.name, sorted(faults, key=lambda fault: fault.line or 0))
    return spec


def _broken(spec: StudySpec, *, asked: bool) -> Iterator[Fault]:
    """Yield a fault for every rule between sections that the spec breaks."""
    if len(spec.scales) > MAX_LISTED:  # rules look at every scale with every number of environments
        got, fix = str(len(spec.scales)), "List fewer."
        yield Fault(where=f"parameters.{SCALE}", rule=f"at most {MAX_LISTED} scales", got=got, fix=fix)
        return
    found = [fault for rule in OF_KIND.get(spec.kind, KINDS[spec.kind].rules) for fault in rule.faults(spec)]
    yield from found
    if asked and spec.learns:
        for rule in (*ASKED, *(() if found else YOUNGER)):
            yield from rule.faults(spec)


def _with_line(fault: Fault, source: Source) -> Fault:
    return replace(fault, line=source.line_of(fault.where))


def _is_reported(where: str, reported: Iterable[str]) -> bool:
    """Return whether a fault of this key, or of one below it, is reported already."""
    return any(each == where or each.startswith(f"{where}.") for each in reported)


def _without(source: Source, faults: Sequence[Fault]) -> StudySpec | None:
    """Validate what is left without the faulty keys, so that rules between sections are checked in the same run."""
    content = source.without([fault.where for fault in faults])
    if isinstance(parameters := content.get("parameters"), dict):
        parameters.setdefault(SCALE, 1)  # required: a stand-in lets the other rules be checked
    try:
        return StudySpec.model_validate(content)
    except ValidationError:
        return None


# --- pydantic's errors as faults --------------------------------------------------------------------------------------


def _faults_of(error: ValidationError, source: Source) -> tuple[list[Fault], set[str]]:
    """Return pydantic's errors as faults, and the places of missing keys that an unknown key stands for.

    One mistake is one fault: where an unknown key is probably another's name, that other one is not missing.
    """
    items = error.errors(include_url=False)
    missed = [item["loc"] for item in items if item["type"] == "missing"]
    faults, meant = [], set()
    for item in sorted(items[:MAX_FAULTS], key=lambda item: item["type"] != "missing"):
        unknown = item["type"] == "extra_forbidden"  # its last part is a key, also where a form has that name
        *above, last = map(str, item["loc"] or ("",))
        # `choices.1` of a bare list has no key of its own in the file.
        parts = [*(part for part in above if part not in _FORMS), *([last] if unknown or last not in _FORMS else [])]
        if unknown:
            absent = [str(loc[-1]) for loc in missed if loc[:-1] == item["loc"][:-1]]
            fix, named = _unknown_key(last, _known_keys(item["loc"][:-1], source.content), absent, item.get("input"))
            rule, got = "unknown key", ""
            instead = [named, *(("low", "high") if named == "choices" else ())] if named else []
            meant |= {".".join([*parts[:-1], name]) for name in instead}
        else:
            rule, got, fix = _explained(item, parts)
        faults.append(Fault(where=".".join(parts) or "file", rule=rule, got=got, fix=fix))
    first: dict[str, Fault] = {}
    for fault in faults:  # of a value that fits none of several types, the fault that says most
        if fault.where not in meant and not any(each.where.startswith(f"{fault.where}.") for each in faults):
            first.setdefault(fault.where, fault)
    if (more := len(items) - MAX_FAULTS) > 0:
        first["file"] = Fault(where="file", rule=f"{more} more faults", fix="Correct these first.")
    return list(first.values()), meant


_DOMAIN = "Write a number, a list such as [1, 2], or a range such as {low: 1, high: 46}."
_KEYS = "Write its keys below it, indented, without dashes"
_EXPLAINED: Mapping[str, tuple[str, str]] = {
    "missing": ("must be given", "Add it."),
    "int_type": ("must be a whole number", "Write a whole number, such as 1000000 or 1e6."),
    "int_from_float": ("must be a whole number", "Write a whole number."),
    "float_type": ("must be a number", "Write a number, such as 0.0003 or 3e-4."),
    "finite_number": ("must be a finite number", "Write a finite number."),
    "string_type": ("must be text", "Write it in quotes."),
    "bool_type": ("must be true or false", "Write true or false."),
    "list_type": ("must be a list", "Write a list, such as [1, 2]."),
    "dict_type": ("must be a mapping of keys to values", f"{_KEYS}."),
    "model_type": ("must be a mapping of keys to values", f"{_KEYS}: {{keys}}."),
    "greater_than": ("must be greater than {gt:g}", "Write a larger number."),
    "greater_than_equal": ("must be at least {ge:g}", "Write a larger number."),
    "less_than": ("must be less than {lt:g}", "Write a smaller number."),
    "less_than_equal": ("must be at most {le:g}", "Write a smaller number."),
    "string_too_short": ("must not be empty", "Write it."),
    "too_short": ("must have at least {min_length}", "Add an item."),
    "too_long": ("must have at most {max_length}", "Remove an item."),
    "literal_error": ("must be {expected}", "Use one of these."),
    "rule": ("{rule}", "{fix}"),
}
"""Kind of pydantic's error -> what must hold, and what to do; both with what pydantic knows of it."""


def _explained(item: Any, parts: Sequence[str]) -> tuple[str, str, str]:
    """Return rule, value and fix of every error but an unknown key."""
    kind, known = item["type"], {"keys": "", **item.get("ctx", {})}
    rule, fix = _EXPLAINED.get(kind, ("must be another value", "Change the value."))
    got = "" if kind == "missing" else known.get("got", as_yaml(item.get("input")))
    if kind == "literal_error":
        options = re.findall(r"[\w-]+", known["expected"].replace(" or ", " "))
        near = difflib.get_close_matches(str(item["input"]).lower(), [each.lower() for each in options], n=1)
        meant = [each for each in options if each.lower() in near] or options[: 2 - len(options)]
        fix = f"Did you mean '{meant[0]}'?" if meant else fix
    if kind == "model_type":
        known["keys"] = ", ".join(_known_keys(parts, {}))
    if parts[:-1] == ["parameters"] and kind in ("int_type", "float_type") and not isinstance(item["input"], bool):
        return rule, got, _DOMAIN
    return rule.format(**known), got, fix.format(**known)


# --- did you mean -----------------------------------------------------------------------------------------------------


def _unknown_key(name: str, known: Sequence[str], absent: Sequence[str], value: object) -> tuple[str, str | None]:
    """Return the fix of a key that its section does not have, and the key of the section that was meant."""
    first, colon, rest = name.partition(":")
    if colon and value is None:
        return f"Write a space behind the colon: {first}: {rest}.", first if first in known else None
    if (near := _meant_by(name, known) or _meant_by(name, absent, cutoff=_ALIKE)) is not None:
        return f"Did you mean '{near}'?", near
    places: dict[str, str] = {}
    for place in _places(StudySpec, ""):
        places.setdefault(place.rpartition(".")[2], place)
    if (other := _meant_by(name, list(places))) is not None and other not in _RANGE:
        return f"Did you mean '{places[other]}'?", None
    if (near := _meant_by(name, known, cutoff=_ALIKE)) is not None:
        return f"Did you mean '{near}'?", near
    return f"Use one of: {', '.join(known)}.", None


def _meant_by(name: str, known: Sequence[str], *, cutoff: float = _NEAR) -> str | None:
    """Return the one of the known names that another program's name, or a misspelt one, stands for."""
    plain = name.lower().replace("-", "_").strip("_ ")
    own = (own for own, others in OTHER_NAMES.items() if own in known and plain in others)
    near = difflib.get_close_matches(plain, known, n=1, cutoff=cutoff)
    return plain if plain in known else next(own, near[0] if near else None)


def _known_keys(place: Sequence[str | int], content: Mapping[str, Any]) -> list[str]:
    """Return the keys that a section of a space may have; of parameters those of its algorithm."""
    if tuple(place) == ("parameters",):
        algorithm = ALGORITHMS.get(str(content.get("algorithm", "PPO")), ALGORITHMS["PPO"])
        return list(algorithm.names)
    model: Any = StudySpec
    for part in place:
        if get_origin(model) in (dict, list):
            model = get_args(model)[-1]  # the part is a key or an index of the person's own
        elif (info := getattr(model, "model_fields", {}).get(str(part))) is not None:
            setting = (each.model for each in info.metadata if isinstance(each, Setting))
            model = next(setting, _unless_none(info.annotation))
        else:
            return list(_RANGE)
    return [info.alias or name for name, info in getattr(model, "model_fields", {}).items()] or list(_RANGE)


def _unless_none(annotation: Any) -> Any:
    """Return the type that an optional one has when it is given."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return next((each for each in get_args(annotation) if each is not NoneType), annotation)


def _places(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the place of every key, those of a section before those of the sections in it."""
    fields = model.model_fields.items()
    kinds = {f"{prefix}{info.alias or name}": _unless_none(info.annotation) for name, info in fields}
    yield from kinds
    for place, kind in kinds.items():
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not ScriptFacts:  # which nobody writes
            yield from _places(kind, f"{place}.")
