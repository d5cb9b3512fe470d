"""What one PPO update takes: the fused learner against RLlib's own learner, and against its matrix products alone.

The update is LunarLander's: 4000 steps from 32 lanes, 8 observed numbers, 4 actions, two networks of 256 x 256 tanh
units, minibatches of 128, 10 epochs. Both learners get the same episodes and alternate in one run. Minibatches: 313 of
ours, and 315 of RLlib, which appends a row behind each fragment. The `limit` is the matrix products of these
minibatches alone: no update with this arithmetic can be faster.

    python -m tests.benchmarks.update [--repetitions 7] [--threads 1]
    python -m tests.benchmarks.update --hidden 64 --steps 5888 --lanes 46 --minibatch 256    # the winner of the example
"""

import argparse
import copy
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from torch.distributions import Categorical

from study.trial.engine.learning.fused_learner import FusedPPOLearner
from tests.benchmarks.timing import in_turns, ratios

OBSERVATIONS, ACTIONS = Box(-1.0, 1.0, (8,), np.float32), Discrete(4)
LOOP = {"num_epochs": 10, "shuffle_batch_per_epoch": True}
LOSS = {
    "lr": 3e-4,
    "gamma": 0.99,
    "lambda_": 0.95,
    "clip_param": 0.2,
    "vf_clip_param": 10.0,
    "vf_loss_coeff": 0.5,
    "entropy_coeff": 0.01,
    "kl_coeff": 0.2,
    "kl_target": 0.01,
    "grad_clip": 0.5,
}


def learner(kind: type, hidden: int) -> Any:
    """Return a built learner of RLlib's kind, or of ours."""
    config = PPOConfig().environment(observation_space=OBSERVATIONS, action_space=ACTIONS)
    config.learners(learner_class=kind).training(**LOSS).debugging(seed=0)
    network = DefaultModelConfig(fcnet_hiddens=[hidden, hidden], fcnet_activation="tanh", vf_share_layers=False)
    config.rl_module(model_config=network)
    spec = config.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: (OBSERVATIONS, ACTIONS)})
    built = kind(config=config, module_spec=spec)
    built.build()
    return built


def fragments(module: Any, lanes: int, steps: int) -> list[SingleAgentEpisode]:
    """Return one fragment for each lane, with what RLlib's runner adds: outputs and log-probabilities of the policy."""
    random = np.random.default_rng(0)
    episodes = []
    for lane in range(lanes):
        observations = random.uniform(-1, 1, (steps // lanes + 1, *OBSERVATIONS.shape)).astype(np.float32)
        with torch.no_grad():
            logits = module.forward_exploration({Columns.OBS: torch.from_numpy(observations[:-1])})
            policy = Categorical(logits=logits[Columns.ACTION_DIST_INPUTS])
            actions = policy.sample()
        outputs = {Columns.ACTION_DIST_INPUTS: policy.logits, Columns.ACTION_LOGP: policy.log_prob(actions)}
        episodes.append(
            SingleAgentEpisode(
                observations=InfiniteLookbackBuffer(observations, 0, OBSERVATIONS),
                actions=InfiniteLookbackBuffer(actions.numpy(), 0, ACTIONS),
                rewards=InfiniteLookbackBuffer(random.normal(size=len(actions)), 0),
                infos=InfiniteLookbackBuffer([{}] * len(observations), 0),
                extra_model_outputs={name: InfiniteLookbackBuffer(part.numpy(), 0) for name, part in outputs.items()},
                terminated=lane % 4 == 0,
                len_lookback_buffer=0,
            )
        )
    return episodes


def milliseconds(update: Callable[[], object]) -> float:
    """Return what an update takes of the CPU, so that other work on the machine counts little."""
    began = time.process_time()
    update()
    return 1e3 * (time.process_time() - began)


def products(hidden: int, rows: int, count: int) -> Callable[[], None]:
    """Return the products of `count` minibatches: each layer's outputs, and the gradients of weights and inputs."""
    shapes = [(OBSERVATIONS.shape[0], hidden), (hidden, hidden)] * 2 + [(hidden, int(ACTIONS.n)), (hidden, 1)]
    layers = [(torch.randn(rows, i), torch.randn(o, i), torch.randn(rows, o), i) for i, o in shapes]

    def run() -> None:
        for _ in range(count):
            for inputs, weight, gradient, size in layers:
                torch.mm(inputs, weight.T)
                torch.mm(gradient.T, inputs)
                if size == hidden:  # nobody needs the gradient of an observation
                    torch.mm(gradient, weight)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--minibatch", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kinds = {"fused": FusedPPOLearner, "rllib": PPOTorchLearner}
    learners = {name: learner(kind, options.hidden) for name, kind in kinds.items()}
    episodes = fragments(learners["rllib"].module[DEFAULT_MODULE_ID], options.lanes, options.steps)
    loop = {**LOOP, "minibatch_size": options.minibatch}
    limit = products(
        options.hidden, options.minibatch, math.ceil(LOOP["num_epochs"] * options.steps / options.minibatch)
    )
    timesteps = {"num_env_steps_sampled_lifetime": 0}

    def once(name: str) -> float:
        own = copy.deepcopy(episodes)  # RLlib appends to them
        if name in learners:
            return milliseconds(lambda: learners[name].update(episodes=own, timesteps=timesteps, **loop))
        return milliseconds(limit)

    names = [*learners, "limit"]
    for name in names:  # warms up
        once(name)
    runs = in_turns(names, options.repetitions, lambda name, _: {"ms": once(name)}, shown=("ms",))
    found = ratios(runs, {("limit", "fused"): None, ("rllib", "fused"): 3}, "ms")
    asked = {name: getattr(options, name) for name in ("threads", "hidden", "steps", "lanes", "minibatch")}
    print(json.dumps({"benchmark": "update", **asked, "runs": runs, "ratios": found}))


if __name__ == "__main__":
    main()
