"""`study.fast`: anybody's PPO with the batched runner and the fused learner, in plain RLlib. Imports RLlib.

A thin use of the check by which a study chooses its parts. What a part cannot do the same as RLlib's stays with RLlib,
and one line says why.
"""

import logging

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPO

from study.errors import SpaceError
from study.jax_private import jax_obstacle
from study.trial.engine import extensions
from study.trial.engine.learning.fused_learner import FusedPPOLearner, fused_obstacle
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.experiment import with_spaces
from study.trial.parts import learner_obstacle, runner_obstacle

_LOGGER = logging.getLogger("study.fast")


def fast(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a copy of a configuration with the batched runner and the fused learner where they serve.

    It works with `build_algo` and `tune.Tuner`; checkpoints are RLlib's. What stays RLlib's own is logged as a warning
    by the logger `study.fast`, with the reason. Evaluations of RLlib's own (`evaluation_interval`) keep its runner.

    Args:
        config: Of PPO, as you would train with it: complete, since what is set afterwards is not looked at. Not
            changed.

    Raises:
        SpaceError: It is of another algorithm: none of its parts can be replaced here.
        Exception: Whatever making the environment raises, which is made once for its spaces where nobody has said them.
    """
    if config.algo_class is not PPO:
        got = str(getattr(config.algo_class, "__name__", config.algo_class))
        rule, fix = "must be of RLlib's PPO", "Train it as it is."
        raise SpaceError.of("study.fast", where="config", rule=rule, got=got, fix=fix)
    known, quick = with_spaces(config), config.copy(copy_frozen=False)
    own_runner = runner_obstacle(known)
    own_learner = learner_obstacle(known) or fused_obstacle(known) or jax_obstacle()
    if own_runner is None:
        quick.env_runners(env_runner_cls=BatchedEnvRunner)
        quick.evaluation(evaluation_config=_evaluated_by_rllib(config))
    if own_learner is None:
        quick.learners(learner_class=FusedPPOLearner)
    extensions.install(quick)
    for part, obstacle in (("runner", own_runner), ("learner", own_learner)):
        if obstacle:
            _LOGGER.warning("RLlib's own %s stays: %s.", part, obstacle)
    return quick


def _evaluated_by_rllib(config: AlgorithmConfig) -> AlgorithmConfig | dict[str, object]:
    """Return what the configuration says of evaluations, with RLlib's runner, which counts episodes."""
    given = config.evaluation_config
    if isinstance(given, AlgorithmConfig):
        return given.copy(copy_frozen=False).env_runners(env_runner_cls=config.env_runner_cls)
    return {**(given or {}), "env_runner_cls": config.env_runner_cls}
