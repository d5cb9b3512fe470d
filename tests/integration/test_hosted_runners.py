"""Hosted runners do what RLlib's runners do in processes of their own, to the bit."""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tree
from gymnasium.spaces import Box, Discrete
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from study.adopted.describing import Launch, facts_of
from study.space.settings import runnable
from study.trial.experiment import pickled
from study.trial.measured import Phases
from study.trial.trainable import TrialConfig
from tests.integration import trials
from tests.integration.trials import of_kind, play
from tests.script_facts import script_spec

pytestmark = [pytest.mark.minutes, pytest.mark.usefixtures("local_ray")]

NUM_RUNNERS, ITERATIONS = 4, 3
TIMES = ("sample", "timer", "duration", "throughput", "time_between", "seconds")
"""Names of metrics that are times: the first alone, of the others a part."""


class Told(gymnasium.Wrapper):
    """Pays by the number of its runner, and a little by the global generators, against all advice."""

    def __init__(self, config: Any) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._pay = config.worker_index + 10 * config.num_workers + 100 * config.vector_index + config["of"][0]
        config["of"][0] += 1000  # its own copy of what the script says

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(self._pay + np.random.random() + random.random()), *rest  # noqa: NPY002


class LogsByWorker(RLlibCallback):
    """Logs the returns of every runner under its number, and what it draws globally."""

    def on_episode_end(self, *, episode: Any, env_runner: Any, metrics_logger: Any, **rest: Any) -> None:
        pieces = [*rest.get("prev_episode_chunks", ()), episode]
        total = sum(piece.get_return() for piece in pieces)
        metrics_logger.log_value(("by_worker", str(env_runner.worker_index)), total, reduce="sum")

    def on_sample_end(self, *, metrics_logger: Any, **_: Any) -> None:
        metrics_logger.log_value("drawn", random.random() + np.random.random(), reduce="mean")  # noqa: NPY002


class Halves(PPO):
    """Has a training step that nobody knows: RLlib's own sampling, without the measures of `Phases`."""

    def training_step(self) -> None:
        super().training_step()


def ppo(config: PPOConfig | None = None, **model: Any) -> PPOConfig:
    config = config or PPOConfig()
    config.environment("CartPole-v1").env_runners(num_envs_per_env_runner=2)
    config.rl_module(model_config={"fcnet_hiddens": [16], **model})
    return config.training(train_batch_size_per_learner=400, minibatch_size=100, num_epochs=2, lr=1e-3)


def with_filter() -> PPOConfig:
    config = ppo().env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
    # RLlib leaves out the state of a runner that does not answer in time, as on a busy machine.
    config.sync_filters_on_rollout_workers_timeout_s = 300.0
    return config


def with_agents() -> PPOConfig:
    config = ppo().environment(MultiAgentCartPole, env_config={"num_agents": 2})
    return config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *_, **__: f"p{agent}")


def with_callback() -> PPOConfig:
    return ppo().environment(Told, env_config={"of": [0]}).callbacks(LogsByWorker)


CONFIGS: dict[str, Callable[[], PPOConfig]] = {
    "vector": ppo,
    "lstm": lambda: ppo(use_lstm=True, lstm_cell_size=8, max_seq_len=10),
    "filter": with_filter,
    "agents": with_agents,
    "callback": with_callback,
    "unknown step": lambda: ppo(PPOConfig(algo_class=Halves)),
}


def running(config: AlgorithmConfig, *, execution: Any) -> Any:
    spaces = (Box(-np.inf, np.inf, (4,), np.float32), Discrete(2))
    found = facts_of(Launch(config=config, how="module level"), source=Path(__file__), spaces=spaces)
    spec = script_spec(
        found,
        parameters={"num_env_runners": [NUM_RUNNERS]},
        budget={"env_steps": 400 * ITERATIONS},
        runner="stock",
        learner="rllib",
    )
    asked = trials.asked(runnable(spec, {"num_env_runners": NUM_RUNNERS}), seed=5, execution=execution)
    return trials.running(TrialConfig(space=json.dumps(spec.to_json()), started=asked, script=pickled(config)))


def trained(name: str, *, execution: str) -> dict[str, Any]:
    """Return what the first iteration sampled, RLlib's metrics of it and of later ones, the weights after the last."""
    sampled: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        update = Phases._update  # which an unknown step does not call

        def noted(algorithm: Any, episodes: list[Any]) -> Any:
            sampled.append(pickle.loads(cloudpickle.dumps(episodes)))  # before the learner changes them
            return update(algorithm, episodes)

        patched.setattr(Phases, "_update", noted)
        with running(CONFIGS[name](), execution=execution) as trial:
            algorithm = trial._algorithm
            results = [algorithm.train() for _ in range(ITERATIONS)]
            learnt = algorithm.learner_group.get_state(components="learner/rl_module")["learner"]["rl_module"]
    metrics = [counts(each["env_runners"]) for each in results]
    first = {f"episode {index}": contents(each) for index, each in enumerate(sampled[0] if sampled else ())}
    return {"episodes": first, "metrics": metrics[0], "later": metrics[1:], "weights": learnt}


def contents(episode: Any) -> Any:
    """Return observations, actions and rewards of an episode of one agent or several."""
    pieces = episode.agent_episodes if isinstance(episode, MultiAgentEpisode) else {"": episode}
    return {
        agent: [np.asarray(each.get_observations()), np.asarray(each.get_actions()), np.asarray(each.get_rewards())]
        for agent, each in pieces.items()
    }


def counts(metrics: dict[str, Any]) -> dict[str, Any]:
    flat = {"/".join(map(str, path)): value for path, value in tree.flatten_with_path(metrics)}
    alone, *parts = TIMES
    return {name: value for name, value in flat.items() if name != alone and not any(word in name for word in parts)}


@pytest.mark.parametrize("name", CONFIGS)
def test_hosted_runners_do_what_real_ones_do(name: str) -> None:
    real, hosted = (trained(name, execution=execution) for execution in ("real", "emulated"))
    assert len(real["episodes"]) >= 8 or name == "unknown step"
    for value, other in zip(*(tree.flatten(each.pop("weights")) for each in (real, hosted)), strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-6)
    np.testing.assert_equal(hosted, real)


# --- a trial -------------------------------------------------------------------------------------------------------


def test_a_trial_says_what_it_hosts() -> None:
    with running(with_filter(), execution="emulated") as trial:
        results = play(trial)
    (built,) = of_kind(results, "trial_built")
    effective = built.effective
    assert (effective["num_env_runners"], effective["num_envs_per_env_runner"]) == (NUM_RUNNERS, 2)
    assert (effective["runner_class"], effective["num_sampling_processes"]) == ("StockEnvRunner", 1)
    assert [place["runners"] for place in built.placement] == [[1, 2, 3, 4]]
    assert {each.metrics["num_healthy_env_runners"] for each in of_kind(results, "iteration")} == {NUM_RUNNERS}
    assert results[-1].policy
