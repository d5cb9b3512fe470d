"""PPO in one plain file, in the manner of CleanRL's `ppo.py`: one process, `SyncVectorEnv`, tensors, a torch loop.

Our own re-implementation of that structure; no code of CleanRL. The newest `cleanrl` on PyPI (0.4.8, of 2021) cannot be
measured here: it imports `gym.wrappers.Monitor` of the old gym, not gymnasium. As in CleanRL, each minibatch also clips
the value function and computes diagnostics. Environments reset in the step that ends an episode, so every row is a
real step.
"""

from dataclasses import dataclass
from functools import partial

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Categorical

from tests.benchmarks.peers.workload import Laps, Training, Workload, count_parameters, optimizer_steps

ADAM_EPSILON = 1e-5
"""As in CleanRL and Stable-Baselines3; torch's default is 1e-8."""
STANDARD_DEVIATION_EPSILON = 1e-8


class Agent(nn.Module):
    """Two separate tanh networks with orthogonal weights."""

    def __init__(self, num_features: int, num_actions: int, hiddens: tuple[int, ...]) -> None:
        super().__init__()
        self.policy = _network(num_features, hiddens, num_actions, output_gain=0.01)
        self.value = _network(num_features, hiddens, 1, output_gain=1.0)

    def act(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sampled actions, their log probabilities and values, each of shape (environments,)."""
        distribution = Categorical(logits=self.policy(observations))
        actions = distribution.sample()
        return actions, distribution.log_prob(actions), self.value(observations).squeeze(-1)

    def judge(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log probabilities, entropies and values of given actions, each of shape (rows,)."""
        distribution = Categorical(logits=self.policy(observations))
        return distribution.log_prob(actions), distribution.entropy(), self.value(observations).squeeze(-1)


def _network(num_inputs: int, hiddens: tuple[int, ...], num_outputs: int, *, output_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hiddens:
        layers += [_linear(num_inputs, width, gain=2**0.5), nn.Tanh()]
        num_inputs = width
    return nn.Sequential(*layers, _linear(num_inputs, num_outputs, gain=output_gain))


def _linear(num_inputs: int, num_outputs: int, *, gain: float) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True, slots=True)
class Rollout:
    """A batch as it was sampled; all of shape (steps, environments), observations with the features last."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    starts: Tensor
    """1 where an episode begins with this step."""

    @classmethod
    def empty(cls, steps: int, num_envs: int, num_features: int) -> "Rollout":
        shape = (steps, num_envs)
        actions = torch.zeros(shape, dtype=torch.long)
        return cls(torch.zeros((*shape, num_features)), actions, *(torch.zeros(shape) for _ in range(4)))


class Sampler:
    """The environments, and where they stand between two batches."""

    def __init__(self, workload: Workload) -> None:
        makers = [partial(_make, workload.env_id) for _ in range(workload.num_envs)]
        self.envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        first, _ = self.envs.reset(seed=workload.seed)
        self.observations = torch.as_tensor(first)
        self.starts = torch.ones(workload.num_envs)

    def fill(self, rollout: Rollout, agent: Agent) -> None:
        """Overwrite `rollout` with new steps."""
        for step in range(len(rollout.rewards)):
            rollout.observations[step] = self.observations
            rollout.starts[step] = self.starts
            with torch.no_grad():
                actions, rollout.log_probs[step], rollout.values[step] = agent.act(self.observations)
            rollout.actions[step] = actions
            observations, rewards, terminated, truncated, _ = self.envs.step(actions.numpy())
            rollout.rewards[step] = torch.as_tensor(rewards, dtype=torch.float32)
            self.observations = torch.as_tensor(observations)
            self.starts = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)


def _make(env_id: str) -> gymnasium.Env:
    return RecordEpisodeStatistics(gymnasium.make(env_id))


def estimate_advantages(
    rollout: Rollout, last_values: Tensor, last_starts: Tensor, *, gamma: float, lambda_: float
) -> Tensor:
    """Return generalised advantage estimates, shape (steps, environments).

    As in CleanRL the time limit of an episode counts as its end.

    Source: Schulman et al., 2016, equation 16.
    """
    advantages = torch.zeros_like(rollout.rewards)
    following, values, starts = torch.zeros_like(last_values), last_values, last_starts
    for step in reversed(range(len(rollout.rewards))):
        goes_on = 1.0 - starts
        delta = rollout.rewards[step] + gamma * values * goes_on - rollout.values[step]
        following = delta + gamma * lambda_ * goes_on * following
        advantages[step] = following
        values, starts = rollout.values[step], rollout.starts[step]
    return advantages


class Learner:
    """The agent with its optimizer."""

    def __init__(self, agent: Agent, workload: Workload, random: np.random.Generator) -> None:
        self.agent, self.workload, self.random = agent, workload, random
        self.optimizer = torch.optim.Adam(agent.parameters(), lr=workload.lr, eps=ADAM_EPSILON)
        self.clip_fractions: list[float] = []

    def update(self, rollout: Rollout, advantages: Tensor) -> None:
        """Pass `num_epochs` times over the batch in shuffled minibatches."""
        rows = rollout.rewards.numel()
        batch = (
            rollout.observations.flatten(0, 1),
            *(
                tensor.flatten()
                for tensor in (
                    rollout.actions,
                    rollout.log_probs,
                    rollout.values,
                    advantages,
                    advantages + rollout.values,
                )
            ),
        )
        self.clip_fractions.clear()
        for _ in range(self.workload.num_epochs):
            order = self.random.permutation(rows)
            for start in range(0, rows, self.workload.minibatch_size):
                chosen = order[start : start + self.workload.minibatch_size]
                self._step(*(tensor[chosen] for tensor in batch))

    def _step(
        self,
        observations: Tensor,
        actions: Tensor,
        old_log_probs: Tensor,
        old_values: Tensor,
        advantages: Tensor,
        targets: Tensor,
    ) -> None:
        workload, clip = self.workload, self.workload.clip_param
        log_probs, entropies, values = self.agent.judge(observations, actions)
        log_ratio = log_probs - old_log_probs
        ratio = log_ratio.exp()
        with torch.no_grad():
            _kl = ((ratio - 1) - log_ratio).mean()
            self.clip_fractions.append(((ratio - 1).abs() > clip).float().mean().item())
        scaled = (advantages - advantages.mean()) / (advantages.std() + STANDARD_DEVIATION_EPSILON)
        policy_loss = -torch.min(scaled * ratio, scaled * ratio.clamp(1 - clip, 1 + clip)).mean()
        near = old_values + (values - old_values).clamp(-clip, clip)
        value_loss = 0.5 * torch.max((values - targets) ** 2, (near - targets) ** 2).mean()
        loss = policy_loss - workload.entropy_coeff * entropies.mean() + workload.vf_loss_coeff * value_loss
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), workload.grad_clip)
        self.optimizer.step()


def train(workload: Workload) -> Training:
    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    sampler = Sampler(workload)
    num_features = sampler.envs.single_observation_space.shape[0]
    agent = Agent(num_features, int(sampler.envs.single_action_space.n), workload.hiddens)
    learner = Learner(agent, workload, np.random.default_rng(workload.seed))
    rollout = Rollout.empty(workload.steps_per_env, workload.num_envs, num_features)
    laps = Laps()

    def iteration() -> int:
        sampler.fill(rollout, agent)
        with torch.no_grad():
            last_values = agent.value(sampler.observations).squeeze(-1)
        advantages = estimate_advantages(
            rollout, last_values, sampler.starts, gamma=workload.gamma, lambda_=workload.lambda_
        )
        learner.update(rollout, advantages)
        return rollout.rewards.numel()

    try:
        for _ in range(workload.iterations):
            laps.time(iteration)
    finally:
        sampler.envs.close()
    return Training(
        env_steps=tuple(laps.env_steps),
        seconds=tuple(laps.seconds),
        cpu_seconds=tuple(laps.cpu_seconds),
        torch_threads=torch.get_num_threads(),
        num_parameters=count_parameters(agent.parameters()),
        num_gradient_updates=optimizer_steps(learner.optimizer),
        details={"vec_env": type(sampler.envs).__name__, "autoreset": "same step"},
    )
