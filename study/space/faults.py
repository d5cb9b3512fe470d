"""How a mistake is told: as a fault, with values as YAML has them, and the name that was probably meant. Pure."""

import difflib
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from study.errors import Fault

OTHER_NAMES: Mapping[str, str] = {
    "lr": "learning_rate alpha step_size",
    "train_batch_size": "batch_size train_batch train_batch_size_per_learner buffer_size",
    "num_env_runners": "num_workers num_rollout_workers workers runners env_runners",
    "num_envs_per_env_runner": "n_envs num_envs num_envs_per_worker envs_per_runner",
    "minibatch_size": "sgd_minibatch_size mini_batch_size",
    "num_epochs": "num_sgd_iter n_epochs update_epochs",
    "steps_per_env_runner": "n_steps num_steps",
    "gamma": "discount discount_factor",
    "lambda": "gae_lambda lam",
    "clip_param": "clip_range clip_ratio clip_coef",
    "entropy_coeff": "ent_coef entropy_coef",
    "vf_loss_coeff": "vf_coef value_loss_coef",
    "grad_clip": "max_grad_norm clip_grad_norm",
    "environment": "env environments",
    "id": "env_id env_name name",
    "kwargs": "env_config config args",
    "parameters": "params hyperparameters search_space param_space",
    "env_steps": "timesteps total_timesteps steps max_steps",
    "num_trials": "num_samples n_trials trials",
    "baselines": "anchors",
    "fcnet_hiddens": "layers hidden_sizes net_arch",
    "low": "min lower",
    "high": "max upper",
    "choices": "values grid_search",
}
"""Names of a space -> the names that other programs, and earlier versions of RLlib, have for the same thing."""
NEAR, ALIKE = 0.8, 0.6
"""How alike two names are, as `difflib` counts: a slip of the finger; and perhaps meant."""


def meant_by(name: str, known: Sequence[str], *, cutoff: float = NEAR) -> str | None:
    """Return the one of the known names that another program's name, or a misspelt one, stands for."""
    plain = name.lower().replace("-", "_").strip("_ ")
    own = (own for own, others in OTHER_NAMES.items() if own in known and plain in others.split())
    near = difflib.get_close_matches(plain, known, n=1, cutoff=cutoff)
    return plain if plain in known else next(own, near[0] if near else None)


def fault(where: str, rule: str, got: object, fix: str) -> Fault:
    """Return a fault; `got` as YAML has it, text as it is."""
    return Fault(where=where, rule=rule, got=got if isinstance(got, str) else as_yaml(got), fix=fix)


def unknown(where: str, known: Sequence[str]) -> Fault:
    """Return the fault of a key, the last part of a place, that is none of the known ones."""
    near = meant_by(where.rpartition(".")[2], known, cutoff=ALIKE)
    return fault(where, "unknown key", "", f"Did you mean '{near}'?" if near else f"Use one of: {', '.join(known)}.")


def as_yaml(value: object) -> str:
    """Return a value in a message as its YAML says it, a long one in part."""
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 4, 20, 20, 200, 200


# --- pydantic's errors ------------------------------------------------------------------------------------------------

_KEYS = "Write its keys below it, indented, without dashes"
_EXPLAINED: Mapping[str, tuple[str, str]] = {
    "missing": ("must be given", "Add it."),
    "int_type": ("must be a whole number", "Write a whole number, such as 1000000 or 1e6."),
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


def explained(where: str, item: Any, keys: Sequence[str]) -> Fault:
    """Return the fault of one of pydantic's errors, but for an unknown key; `keys` are those that may stand there."""
    kind, known = item["type"], {"keys": ", ".join(keys), **item.get("ctx", {})}
    rule, fix = _EXPLAINED.get(kind, ("must be another value", "Change the value."))
    got = "" if kind == "missing" else known.get("got", as_yaml(item.get("input")))
    if kind == "literal_error":
        options = re.findall(r"[\w-]+", known["expected"].replace(" or ", " "))
        near = difflib.get_close_matches(str(item["input"]), options, n=1)
        fix = f"Did you mean '{near[0]}'?" if near else fix
    if where.rpartition(".")[0] == "parameters" and kind in ("int_type", "float_type"):
        rule, fix = "must be a number, a list or a range", "Write 1, [1, 2] or a range such as {{low: 1, high: 46}}."
    return fault(where, rule.format(**known), got, fix.format(**known))
