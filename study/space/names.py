"""Did you mean: what other programs, and slips of the finger, call the keys of a space. Pure."""

import difflib
from collections.abc import Mapping, Sequence

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
NEAR, ALIKE = 0.8, 0.6
"""How alike two names are, as `difflib` counts: a slip of the finger; and perhaps meant."""


def meant_by(name: str, known: Sequence[str], *, cutoff: float = NEAR) -> str | None:
    """Return the one of the known names that another program's name, or a misspelt one, stands for."""
    plain = name.lower().replace("-", "_").strip("_ ")
    own = (own for own, others in OTHER_NAMES.items() if own in known and plain in others)
    near = difflib.get_close_matches(plain, known, n=1, cutoff=cutoff)
    return plain if plain in known else next(own, near[0] if near else None)
