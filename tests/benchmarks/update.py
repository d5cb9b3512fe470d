"""What one PPO update takes: the fused learner against a plain PyTorch loop, and against RLlib's own learner.

The update is LunarLander's: 4000 steps from 32 lanes, 8 observed numbers, 4 actions, two networks of 256 x 256 tanh
units, minibatches of 128, 10 epochs. The plain loop is what one would write for the same mathematics by hand; all
get the same episodes and alternate in one run. Minibatches: 313 of ours, 320 of the
plain loop, whose last one of each epoch is short, and 315 of RLlib, which appends a row behind each fragment. The
`limit` is the matrix products of these minibatches alone: no update with this arithmetic can be faster.

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
from torch import nn
from torch.distributions import Categorical, kl_divergence

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


class Plain:
    """PPO's update written by hand, in the plainest PyTorch."""

    def __init__(self, hidden: int, minibatch: int) -> None:
        self.minibatch = minibatch
        self.policy, self.value = self.network(hidden, ACTIONS.n), self.network(hidden, 1)
        self.parameters = [*self.policy.parameters(), *self.value.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=LOSS["lr"])
        self.kl_coeff = LOSS["kl_coeff"]

    @staticmethod
    def network(hidden: int, outputs: Any) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Linear(OBSERVATIONS.shape[0], hidden), nn.Tanh()),
            *(nn.Linear(hidden, hidden), nn.Tanh()),
            nn.Linear(hidden, int(outputs)),
        )

    def update(self, episodes: list[SingleAgentEpisode]) -> None:
        observations = torch.from_numpy(np.concatenate([episode.get_observations()[:-1] for episode in episodes]))
        actions = torch.from_numpy(np.concatenate([episode.get_actions() for episode in episodes]))
        with torch.no_grad():
            logits = self.policy(observations)
            advantages, targets = self.advantages(episodes, self.value(observations).squeeze(-1))
            log_probs = Categorical(logits=logits).log_prob(actions)
        for _ in range(LOOP["num_epochs"]):
            for rows in torch.randperm(len(actions)).split(self.minibatch):
                new, old = Categorical(logits=self.policy(observations[rows])), Categorical(logits=logits[rows])
                ratio = torch.exp(new.log_prob(actions[rows]) - log_probs[rows])
                clipped = torch.clamp(ratio, 1 - LOSS["clip_param"], 1 + LOSS["clip_param"])
                surrogate = torch.min(advantages[rows] * ratio, advantages[rows] * clipped)
                errors = (self.value(observations[rows]).squeeze(-1) - targets[rows]) ** 2
                value_loss = torch.clamp(errors, 0, LOSS["vf_clip_param"])
                kl = kl_divergence(old, new).mean()
                bonus = LOSS["entropy_coeff"] * new.entropy()
                loss = (-surrogate + LOSS["vf_loss_coeff"] * value_loss - bonus).mean() + self.kl_coeff * kl
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, LOSS["grad_clip"])
                self.optimizer.step()
        if kl > 2 * LOSS["kl_target"]:
            self.kl_coeff *= 1.5
        elif kl < 0.5 * LOSS["kl_target"]:
            self.kl_coeff *= 0.5

    def advantages(self, episodes: list[SingleAgentEpisode], values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        last = self.value(torch.from_numpy(np.stack([episode.get_observations()[-1] for episode in episodes])))
        advantages: list[float] = []
        pieces = values.split([len(episode) for episode in episodes])
        for episode, piece, bootstrap in zip(episodes, pieces, last.squeeze(-1).tolist(), strict=True):
            following = 0.0 if episode.is_terminated else bootstrap
            running, own = 0.0, []
            for reward, value in zip(episode.get_rewards()[::-1].tolist(), piece.tolist()[::-1], strict=True):
                running = reward + LOSS["gamma"] * following - value + LOSS["gamma"] * LOSS["lambda_"] * running
                following = value
                own.append(running)
            advantages += own[::-1]
        result = torch.tensor(advantages)
        return (result - result.mean()) / max(1e-4, result.std(correction=0).item()), result + values


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
    plain = Plain(options.hidden, options.minibatch)
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
        return milliseconds(limit if name == "limit" else lambda: plain.update(own))

    names = [*learners, "plain", "limit"]
    for name in names:  # warms up
        once(name)
    runs = in_turns(names, options.repetitions, lambda name, _: {"ms": once(name)}, shown=("ms",))
    found = ratios(runs, {("limit", "fused"): None, ("plain", "fused"): 2, ("rllib", "fused"): 3}, "ms")
    asked = {name: getattr(options, name) for name in ("threads", "hidden", "steps", "lanes", "minibatch")}
    print(json.dumps({"benchmark": "update", **asked, "runs": runs, "ratios": found}))


if __name__ == "__main__":
    main()
