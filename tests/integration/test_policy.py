"""A policy packed by a trial, or saved by RLlib, is the same policy again. No Ray process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule

from study.errors import RecordError
from study.records.folder import unpack_policy
from study.space.spec import StudySpec
from study.trial.engine.envs.probing import probe
from study.trial.experiment import experiment_of
from study.trial.policy import module_of, pack_policy, read_state
from tests.spaces import spec


def trained(space: StudySpec, *, inference_only: bool = True) -> RLModule:
    """Return a module as a trial of the space has it, with weights of its own."""
    spaces = probe(space.environment, "")
    config = experiment_of(space, spaces=spaces).config
    both = (spaces.observation_space, spaces.action_space)
    torch.manual_seed(7)
    return config.get_rl_module_spec(spaces={DEFAULT_MODULE_ID: both}, inference_only=inference_only).build()


def packed(module: RLModule) -> bytes:
    return pack_policy(module, {"rl_module": {DEFAULT_MODULE_ID: module.get_state()}})


def loaded(checkpoint: Path, space: StudySpec) -> RLModule:
    return module_of(experiment_of(space, spaces=probe(space.environment, "")), read_state(checkpoint))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"environment__id": "Pendulum-v1"},
        {"environment__id": "LunarLander-v3", "model": {"fcnet_hiddens": [32, 16], "fcnet_activation": "relu"}},
        {"model": {"vf_share_layers": True}},
        {"environment__id": "tests.environments:Picture", "model": {"conv_filters": [[4, 2, 1]]}},
    ],
    ids=["discrete", "box", "other network", "shared layers", "image"],
)
def test_the_policy_answers_as_it_did(changes: dict[str, Any], tmp_path: Path) -> None:
    space = spec(**changes)
    module = trained(space)
    unpack_policy(packed(module), tmp_path / "policy")
    state = torch.get_rng_state()
    again = loaded(tmp_path / "policy", space)
    assert torch.equal(torch.get_rng_state(), state)
    shape = module.observation_space.shape
    batch = {Columns.OBS: torch.from_numpy(np.random.default_rng(1).random((9, *shape), dtype=np.float32))}
    first, second = (each.forward_inference(batch)[Columns.ACTION_DIST_INPUTS] for each in (module, again))
    assert torch.equal(first, second)


def test_a_policy_of_another_space_is_refused_by_what_differs(tmp_path: Path) -> None:
    unpack_policy(packed(trained(spec())), tmp_path)
    with pytest.raises(
        RecordError, match=r"must fit Acrobot-v1 .* encoder\.actor_encoder\.net\.mlp\.0\.weight is .*\b4"
    ):
        loaded(tmp_path, spec(environment__id="Acrobot-v1"))
    with pytest.raises(RecordError, match=r"is .*None"):
        loaded(tmp_path, spec(model={"vf_share_layers": True}))
