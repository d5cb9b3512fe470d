"""A whole PPO training by Stable-Baselines3, in a process of its own, whose duration is printed as one JSON line.

    python -m tests.benchmarks.peers '{"env_id": "Acrobot-v1", …}'

`pip install -e '.[benchmarks]'` brings it.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """PPO on one environment with two separate nets: the hyperparameters are the same for all peers."""

    env_id: str
    num_envs: int
    """All in the process that learns."""
    iterations: int
    train_batch_size: int
    minibatch_size: int
    num_epochs: int
    hiddens: tuple[int, ...]
    """Hidden tanh layers of the policy, and again of the value function."""
    lr: float
    seed: int = 0
    threads: int = 1
    """Torch threads."""
    gamma: float = 0.99
    lambda_: float = 0.95
    clip_param: float = 0.2
    entropy_coeff: float = 0.0
    vf_loss_coeff: float = 0.5
    grad_clip: float = 0.5

    @property
    def steps_per_env(self) -> int:
        """Steps that each environment gives to a batch."""
        steps, rest = divmod(self.train_batch_size, self.num_envs)
        if rest:
            raise ValueError(f"{self.train_batch_size} steps cannot be shared among {self.num_envs} environments")
        return steps

    @property
    def env_steps(self) -> int:
        """Environment steps of the whole training."""
        return self.iterations * self.train_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a training took, from its first step to its last update; making the environments and nets is not in it."""

    env_steps: int
    seconds: float
    cpu_seconds: float
    """Of this process with all its threads."""


def timed(train: Callable[[], object], workload: Workload) -> Training:
    """Run a training and measure it."""
    wall, cpu = time.perf_counter(), time.process_time()
    train()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    return Training(env_steps=workload.env_steps, seconds=seconds, cpu_seconds=cpu_seconds)


def sb3(workload: Workload) -> Training:
    """Stable-Baselines3's PPO over `make_vec_env`, on the CPU, with all environments in this process."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(workload.threads)
    envs = make_vec_env(workload.env_id, n_envs=workload.num_envs, seed=workload.seed, vec_env_cls=DummyVecEnv)
    hiddens = list(workload.hiddens)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=workload.steps_per_env,
        batch_size=workload.minibatch_size,
        n_epochs=workload.num_epochs,
        learning_rate=workload.lr,
        gamma=workload.gamma,
        gae_lambda=workload.lambda_,
        clip_range=workload.clip_param,
        ent_coef=workload.entropy_coeff,
        vf_coef=workload.vf_loss_coeff,
        max_grad_norm=workload.grad_clip,
        policy_kwargs={"net_arch": {"pi": hiddens, "vf": hiddens}, "activation_fn": torch.nn.Tanh},
        seed=workload.seed,
        device="cpu",
    )
    try:
        return timed(lambda: model.learn(total_timesteps=workload.env_steps), workload)
    finally:
        envs.close()


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    print(json.dumps(asdict(sb3(Workload(hiddens=tuple(order.pop("hiddens")), **order)))))
