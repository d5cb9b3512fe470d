"""Trials of a script's own configuration: each measure means what it says, and hosted runners do what real ones do."""

import json
import pickle
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tree
from gymnasium.spaces import Box, Discrete
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from study.adopted.describing import Launch, facts_of
from study.errors import TrialError
from study.space.parameters import PARAMETERS, attribute
from study.space.settings import runnable
from study.space.spec import StudySpec
from study.trial.experiment import pickled
from study.trial.measured import Phases
from study.trial.run import TrialRun
from study.trial.trainable import TrialConfig
from tests.integration import trials
from tests.integration.trials import of_kind, play, weights_of
from tests.scripts import script_spec

pytestmark = [pytest.mark.minutes, pytest.mark.usefixtures("local_ray")]


def ppo(config: Any = None, **model: Any) -> Any:
    """Return a small configuration of PPO, or another one made as small."""
    config = config or PPOConfig()
    config.environment("CartPole-v1").env_runners(num_envs_per_env_runner=2)
    if isinstance(config, PPOConfig):
        config.rl_module(model_config={"fcnet_hiddens": [16], **model})
        config.training(train_batch_size_per_learner=400, minibatch_size=100, num_epochs=2, lr=1e-3)
    return config


def with_filter() -> PPOConfig:
    config = ppo().env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
    # RLlib leaves out the state of a runner that does not answer in time, as on a busy machine.
    config.sync_filters_on_rollout_workers_timeout_s = 300.0
    return config


def with_agents() -> PPOConfig:
    config = ppo().environment(MultiAgentCartPole, env_config={"num_agents": 2})
    return config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *_, **__: f"p{agent}")


def running(
    config: AlgorithmConfig, *, execution: Any = "real", runners: int = 2, parts: Any = None, **tuned: Any
) -> AbstractContextManager[TrialRun]:
    """Yield a trial of two iterations of a script that makes `config`, in a space that gives what is `tuned`."""
    spaces = (Box(-np.inf, np.inf, (4,), np.float32), Discrete(2))
    found = facts_of(Launch(config=config, how="module level"), source=Path(__file__), spaces=spaces)
    given = {"num_env_runners": [runners], **tuned}
    spec = script_spec(found, parameters=given, budget={"env_steps": 800}, **(parts or {}))
    asked = trials.asked(runnable(spec, {"num_env_runners": runners, **tuned}), seed=5, execution=execution)
    return trials.running(TrialConfig(space=json.dumps(spec.to_json()), started=asked, script=pickled(config)))


# --- measures --------------------------------------------------------------------------------------------------------


class Lengths(RLlibCallback):
    """Logs a metric from the runners, and one with the algorithm."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **_: Any) -> None:
        metrics_logger.log_value("own_length", len(episode), reduce="mean")

    def on_train_result(self, *, metrics_logger: Any, **_: Any) -> None:
        metrics_logger.log_value("own_level", 3)


class Breaks(RLlibCallback):
    """Raises once an episode has ended."""

    def on_episode_end(self, **_: Any) -> None:
        raise RuntimeError("the callback is broken")


class OwnLearner(PPOTorchLearner):
    """Stands for a loss of a person's own."""


class OwnStep(PPO):
    """Has a training step that nobody knows: RLlib's own sampling, without the measures of `Phases`."""

    def training_step(self) -> None:
        super().training_step()


def test_callbacks_connectors_and_networks_of_a_script_run_and_log() -> None:
    config = with_filter().callbacks(Lengths).learners(learner_class=OwnLearner)
    with running(config, lr=0.002) as trial:
        results = play(trial)
    (built,), iterations = of_kind(results, "trial_built"), of_kind(results, "iteration")
    assert built.effective["lr"] == pytest.approx(0.002)
    assert (built.effective["runner_class"], built.effective["learner_class"]) == ("StockEnvRunner", "OwnLearner")
    for iteration in iterations:
        assert all(iteration.metrics[name] > 0 for name in ("custom/own_length", "sampling_time_s", "learning_time_s"))
    # What is logged once the results are made belongs to the next ones.
    assert iterations[-1].metrics["custom/own_level"] == 3
    assert not [name for name in iterations[0].metrics if name.startswith("custom/") and "own" not in name]
    assert results[-1].policy


def test_a_script_that_says_what_a_space_says_learns_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StudySpec, "standardization_in_use", "rllib")  # as of a script
    with trials.running(execution="emulated", seed=5, budget__env_steps=800) as of_space:
        setting, model = of_space._asked.setting, of_space._spec.model
        ours = [each.returns for each in of_kind(play(of_space), "evaluation")]
        expected = weights_of(of_space)
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=setting["num_envs_per_env_runner"])
    given = {attribute(name): value for name, value in setting.items() if PARAMETERS[name].set is None}
    config.training(**given, grad_clip_by="global_norm", minibatch_size=setting["minibatch_size"])
    config.training(train_batch_size_per_learner=setting["train_batch_size"])
    network = {name: getattr(model, name) for name in ("fcnet_hiddens", "fcnet_activation", "vf_share_layers")}
    with running(config.rl_module(model_config=network), execution="emulated") as of_script:
        theirs = [each.returns for each in of_kind(play(of_script), "evaluation")]
        for name, value in weights_of(of_script).items():
            np.testing.assert_array_equal(value, expected[name])
    assert theirs[-1] == ours[-1]  # played by RLlib's runner and by ours


def test_several_agents_are_measured_in_steps_of_the_environment() -> None:
    with running(with_agents().env_runners(num_envs_per_env_runner=1)) as trial:
        results = play(trial)
    iterations = of_kind(results, "iteration")
    assert [iteration.env_steps for iteration in iterations] == [400, 800]
    assert all(iteration.metrics["learning_time_s"] > 0 for iteration in iterations)


@pytest.mark.parametrize(
    "config",
    [
        ppo(DQNConfig()).training(num_steps_sampled_before_learning_starts=50, lr=1e-3),
        ppo(PPOConfig(algo_class=OwnStep)),
    ],
    ids=["DQN", "own training step"],
)
def test_a_step_that_nobody_knows_is_timed_as_a_whole(config: AlgorithmConfig) -> None:
    with running(config) as trial:
        results = play(trial)
    iterations = of_kind(results, "iteration")
    assert iterations[-1].env_steps >= 800
    for iteration in iterations:
        metrics = iteration.metrics
        assert metrics["sampling_time_s"] is metrics["learning_time_s"] is metrics["sync_time_s"] is None
        assert 0 < metrics["mean_runner_time_s"] <= metrics["iteration_time_s"]
        assert metrics["train_batch_size_actual"] > 0
    assert len(of_kind(results, "evaluation")[-1].returns) == 3


def test_an_asynchronous_script_has_the_measures_of_its_kind_and_a_learning_rate_that_falls() -> None:
    config = ppo(APPOConfig()).callbacks(Lengths).training(train_batch_size_per_learner=100, lr=1e-3)
    with running(config, lr_end_fraction=0.0) as trial:
        results = play(trial)
    assert of_kind(results, "trial_built")[0].effective["lr_end_fraction"] == 0
    metrics = [iteration.metrics for iteration in of_kind(results, "iteration")]
    assert sum(each["num_gradient_updates"] for each in metrics) > 0
    assert all(each["learner_busy_time_s"] is not None for each in metrics)


def test_a_callback_that_raises_fails_its_trial_in_one_line() -> None:
    with running(ppo().callbacks(Breaks)) as trial, pytest.raises(TrialError) as caught:
        play(trial)
    assert "sampling must not" in caught.value.rule
    assert "the callback is broken" in caught.value.got
    assert Path(__file__).name in caught.value.fix


# --- hosted runners --------------------------------------------------------------------------------------------------

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


def with_callback() -> PPOConfig:
    return ppo().environment(Told, env_config={"of": [0]}).callbacks(LogsByWorker)


CONFIGS: dict[str, Callable[[], PPOConfig]] = {
    "vector": ppo,
    "lstm": lambda: ppo(use_lstm=True, lstm_cell_size=8, max_seq_len=10),
    "filter": with_filter,
    "agents": with_agents,
    "callback": with_callback,
    "unknown step": lambda: ppo(PPOConfig(algo_class=OwnStep)),
}


def hosted(config: AlgorithmConfig, *, execution: str = "emulated") -> AbstractContextManager[TrialRun]:
    return running(config, execution=execution, runners=NUM_RUNNERS, parts={"runner": "stock", "learner": "rllib"})


def trained(name: str, *, execution: str) -> dict[str, Any]:
    """Return what the first iteration sampled, RLlib's metrics of it and of later ones, the weights after the last."""
    sampled: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        update = Phases._update  # which an unknown step does not call

        def noted(algorithm: Any, episodes: list[Any]) -> Any:
            sampled.append(pickle.loads(cloudpickle.dumps(episodes)))  # before the learner changes them
            return update(algorithm, episodes)

        patched.setattr(Phases, "_update", noted)
        with hosted(CONFIGS[name](), execution=execution) as trial:
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


class Numbered(gymnasium.Wrapper):
    """Pays the number of its runner once, and ends."""

    def __init__(self, config: Any) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._pay = float(config.worker_index)

    def step(self, action: Any) -> Any:
        observation, *_ = super().step(action)
        return observation, self._pay, True, False, {}


@pytest.mark.parametrize("execution", ["real", "emulated"])
def test_the_environments_that_judge_have_a_number_that_no_runner_has(execution: str) -> None:
    with running(ppo().environment(Numbered), execution=execution) as trial:
        evaluations = of_kind(play(trial), "evaluation")
    assert {value for each in evaluations for value in each.returns} == {3.0}  # after two runners


def test_a_trial_says_what_it_hosts() -> None:
    with hosted(with_filter()) as trial:
        results = play(trial)
    (built,) = of_kind(results, "trial_built")
    effective = built.effective
    assert (effective["num_env_runners"], effective["num_envs_per_env_runner"]) == (NUM_RUNNERS, 2)
    assert effective["runner_class"] == "StockEnvRunner"
    assert [place["runners"] for place in built.placement] == [[1, 2, 3, 4]]
    assert {each.metrics["num_healthy_env_runners"] for each in of_kind(results, "iteration")} == {NUM_RUNNERS}
    assert results[-1].policy
