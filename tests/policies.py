"""Plays a network or random actions in the environment of a space, as an evaluation of a trial does."""

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModule

from study.space.spec import StudySpec
from study.trial.engine.envs.probing import probe
from study.trial.evaluation import EvaluationResult, evaluate
from study.trial.experiment import Experiment, experiment_of


def evaluate_module(
    module: RLModule | None, space: StudySpec, *, config: AlgorithmConfig | None = None, **options: Any
) -> EvaluationResult:
    """Play the episodes; `config` is that of the network, where it is not the space's own."""
    judged = space.evaluated_environment
    if module is None:
        return evaluate(Experiment(config=PPOConfig(), judged=judged), None, space, **options)
    config = config or experiment_of(space, spaces=probe(space.environment, "")).config
    state = {"rl_module": {"default_policy": module.get_state()}}
    return evaluate(Experiment(config=config, judged=judged), state, space, **options)
