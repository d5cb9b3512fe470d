"""RLlib's names for what this project records, of every generation of RLlib, however a logger spelt them. Pure.

Source: results of `Algorithm.train()` in Ray 2.0 to 2.60 on the old and the new API stack. Loggers flatten nested
results with slashes, dots or underscores; keys are compared without regard to that.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

HUGE = 1e308
"""MLflow stores infinity as the largest double: no number of a run is as large."""
ITERATION = "training_iteration"
EVAL_RETURN = "eval_return"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A smoothed timer of RLlib.

    Attributes:
        keys: RLlib's names.
        smoothed: Whether by the exponential mean of the new stack, which can be inverted; the old stack's windowed mean
            is told and left alone.
    """

    keys: tuple[str, ...]
    smoothed: bool = True


METRICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        ITERATION: (ITERATION,),
        "env_steps": (
            "num_env_steps_sampled_lifetime",
            "env_runners/num_env_steps_sampled_lifetime",
            "num_env_steps_trained_lifetime",
            "num_env_steps_sampled",
            "counters/num_env_steps_sampled",
            "info/num_env_steps_sampled",
            "timesteps_total",
        ),
        "wall_time_s": ("time_total_s",),
        "iteration_time_s": ("time_this_iter_s",),
        "training_return": (
            "env_runners/episode_return_mean",
            "env_runners/episode_reward_mean",
            "sampler_results/episode_reward_mean",
            "episode_return_mean",
            "episode_reward_mean",
        ),
        "num_episodes": ("env_runners/num_episodes", "episodes_this_iter", "sampler_results/episodes_this_iter"),
        "num_healthy_env_runners": (
            "fault_tolerance/num_healthy_workers",
            "num_healthy_workers",
            "env_runner_group/actor_manager_num_healthy_workers",
        ),
        "kl": ("learners/default_policy/mean_kl_loss", "info/learner/default_policy/learner_stats/kl"),
        "entropy": ("learners/default_policy/entropy", "info/learner/default_policy/learner_stats/entropy"),
        "policy_loss": ("learners/default_policy/policy_loss", "info/learner/default_policy/learner_stats/policy_loss"),
        "vf_loss": ("learners/default_policy/vf_loss", "info/learner/default_policy/learner_stats/vf_loss"),
        "vf_explained_var": (
            "learners/default_policy/vf_explained_var",
            "info/learner/default_policy/learner_stats/vf_explained_var",
        ),
        EVAL_RETURN: (
            "evaluation/env_runners/episode_return_mean",
            "evaluation/env_runners/episode_reward_mean",
            "evaluation/sampler_results/episode_reward_mean",
            "evaluation/episode_return_mean",
            "evaluation/episode_reward_mean",
        ),
    }
)
"""Our name -> RLlib's, the best source first."""

TIMERS: Mapping[str, tuple[Timer, ...]] = MappingProxyType(
    {
        "sampling_time_s": (
            Timer(keys=("timers/env_runner_sampling_timer",)),
            Timer(keys=("timers/sample_time_ms",), smoothed=False),
        ),
        "learning_time_s": (
            Timer(keys=("timers/learner_update_timer",)),
            Timer(keys=("timers/learn_time_ms",), smoothed=False),
        ),
        "sync_time_s": (
            Timer(keys=("timers/synch_weights",)),
            Timer(keys=("timers/synch_weights_time_ms",), smoothed=False),
        ),
    }
)
"""Our name -> RLlib's smoothed timers."""

SIGNS = ("env_steps", "training_return", EVAL_RETURN)
"""Metrics of which a run of RLlib has at least one, or else a timer."""

PARAMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "num_env_runners": ("num_env_runners", "num_rollout_workers", "num_workers"),
        "num_envs_per_env_runner": ("num_envs_per_env_runner", "num_envs_per_worker"),
        "minibatch_size": ("minibatch_size", "sgd_minibatch_size", "mini_batch_size_per_learner"),
        "num_epochs": ("num_epochs", "num_sgd_iter"),
        "num_learners": ("num_learners", "num_learner_workers"),
        "lr": ("lr",),
        "gamma": ("gamma",),
        "lambda": ("lambda", "lambda_"),
        "clip_param": ("clip_param",),
        "entropy_coeff": ("entropy_coeff",),
        "grad_clip": ("grad_clip",),
        "vf_clip_param": ("vf_clip_param",),
        "vf_loss_coeff": ("vf_loss_coeff",),
        "kl_coeff": ("kl_coeff",),
        "kl_target": ("kl_target",),
        "seed": ("seed",),
    }
)
"""Our name -> RLlib's settings that are the same quantity."""
TRAIN_BATCH, TRAIN_BATCH_PER_LEARNER = "train_batch_size", "train_batch_size_per_learner"
CPUS_MAIN = ("num_cpus_for_main_process", "num_cpus_for_local_worker", "num_cpus_for_driver")
CPUS_RUNNER = ("num_cpus_per_env_runner", "num_cpus_per_worker")
CPUS_LEARNER = ("num_cpus_per_learner", "num_cpus_per_learner_worker")
CONFIG = "config_"
"""How the canonical form of a configuration's entries among a run's metrics or parameters begins."""
ENVIRONMENT = ("env", "environment", "env_name", "env_id")


@lru_cache(maxsize=1 << 16)
def canonical(key: str) -> str:
    """Return a key without regard to case and to how its parts were joined."""
    return re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")


class Keys:
    """Finds RLlib's names among the keys of an experiment."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Take the keys that a run, or all runs, have."""
        self._found: dict[str, str] = {}
        for key in sorted(keys):
            spelling = canonical(key)
            self._found.setdefault(spelling, key)
            self._found.setdefault(spelling.removeprefix(CONFIG), key)

    def first(self, names: Iterable[str]) -> str | None:
        """Return the key that spells the first of `names` that is there; None when there is none."""
        return next((key for name in names if (key := self._found.get(canonical(name))) is not None), None)
