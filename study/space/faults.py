"""How a mistake is told: as a fault, with values as YAML has them, and the name that was probably meant. Pure."""

import difflib
import reprlib
from collections.abc import Mapping, Sequence

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
}
"""Names of a space -> the names that other programs, and earlier versions of RLlib, have for the same thing."""
NEAR, ALIKE = 0.8, 0.6
"""How alike two names are, as `difflib` counts: a slip of the finger; and perhaps meant."""


def meant_by(name: str, known: Sequence[str], *, cutoff: float = ALIKE) -> str | None:
    """Return the one of the known names that another program's name, or a misspelt one, stands for."""
    plain = name.lower().replace("-", "_").strip("_ ")
    own = (own for own, others in OTHER_NAMES.items() if own in known and plain in others.split())
    near = difflib.get_close_matches(plain, known, n=1, cutoff=cutoff)
    return plain if plain in known else next(own, near[0] if near else None)


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return what to write in place of a name that is none of the known ones."""
    near = meant_by(name, known)
    return f"Did you mean '{near}'?" if near else f"Use one of: {', '.join(known)}."


def fault(where: str, rule: str, got: object, fix: str) -> Fault:
    """Return a fault; `got` as YAML has it, text as it is."""
    return Fault(where=where, rule=rule, got=got if isinstance(got, str) else as_yaml(got), fix=fix)


def as_yaml(value: object) -> str:
    """Return a value in a message as its YAML says it, a long one in part."""
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 4, 20, 20, 200, 200
