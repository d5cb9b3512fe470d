"""The policy of a script's trial, packed and read back, gets the same returns: modules, states, several agents."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module import RLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from study.errors import RecordError
from study.records.folder import unpack_policy
from study.trial.script_evaluation import evaluate_script, state_of
from study.trial.script_policy import CONNECTORS_FILE, pack_script_policy, read_state
from tests.integration.test_script_evaluation import Pair, Recalls, configured
from tests.spaces import spec

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.minutes]


def recurrent() -> AlgorithmConfig:
    network = DefaultModelConfig(fcnet_hiddens=[8], use_lstm=True, lstm_cell_size=8, max_seq_len=4)
    connected = configured(Recalls, network=network).env_runners(
        env_to_module_connector=lambda *_, **__: MeanStdFilter()
    )
    return connected.env_runners(num_env_runners=0)


def two_agents() -> AlgorithmConfig:
    agents = configured(Pair).multi_agent(
        policies={"left", "right"}, policy_mapping_fn=lambda agent, episode, **_: agent
    )
    return agents.env_runners(num_env_runners=1)


@pytest.mark.parametrize("configure", [recurrent, two_agents])
def test_what_is_read_back_plays_the_same(configure: Any, tmp_path: Path) -> None:
    space = spec(evaluation__episodes=10)
    config = configure().training(train_batch_size_per_learner=200, minibatch_size=50, num_epochs=2, lr=0.01)
    algorithm = config.build_algo()
    try:
        fresh = evaluate_script(algorithm.config, state_of(algorithm), space)
        algorithm.train()
        state = state_of(algorithm)
        trained = evaluate_script(algorithm.config, state, space)
        unpack_policy(pack_script_policy(algorithm, state), tmp_path / "policy")
    finally:
        algorithm.stop()
    back = read_state(tmp_path / "policy")
    assert evaluate_script(config, back, space).returns == trained.returns
    assert len(trained.returns) == len(fresh.returns) == 10
    first, second = (np.concatenate([np.ravel(each) for each in leaves(one["rl_module"])]) for one in (state, back))
    np.testing.assert_array_equal(first, second)
    assert RLModule.from_checkpoint(str(tmp_path / "policy")) is not None  # RLlib opens it by itself
    (tmp_path / "policy" / CONNECTORS_FILE).write_bytes(pickle.dumps({"filter": Recalls}))
    with pytest.raises(RecordError, match=r"got another file \(it asks for tests\.integration"):
        read_state(tmp_path / "policy")


def leaves(content: Any) -> list[Any]:
    if isinstance(content, dict):
        return [leaf for name in sorted(content) for leaf in leaves(content[name])]
    return [content]
