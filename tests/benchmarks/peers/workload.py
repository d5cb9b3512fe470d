"""What every peer trains, and what each tells about its training. Imports torch only inside functions."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """PPO on one environment: the hyperparameters are the same for all peers.

    What RLlib has and the others lack (a KL penalty) is on in RLlib, stock and ours.
    """

    env_id: str = "LunarLander-v3"
    num_runners: int = 1
    """Sampling processes; 1 for libraries that step all environments in one process."""
    envs_per_runner: int = 16
    threads: int = 2
    """Torch threads of the process that learns."""
    iterations: int = 2
    """Training iterations, the warm-up included."""
    seed: int = 0
    train_batch_size: int = 4000
    minibatch_size: int = 128
    num_epochs: int = 10
    hiddens: tuple[int, ...] = (256, 256)
    """Hidden tanh layers of the policy, and again of the value function."""
    lr: float = 3e-4
    gamma: float = 0.99
    lambda_: float = 0.95
    clip_param: float = 0.2
    entropy_coeff: float = 0.0
    vf_loss_coeff: float = 0.5
    grad_clip: float = 0.5
    kl_coeff: float = 0.2
    kl_target: float = 0.01
    vf_clip_param: float = 10_000.0
    """RLlib's clip of the squared value error; so large that it never acts."""

    @property
    def num_envs(self) -> int:
        """Environments over all sampling processes."""
        return self.num_runners * self.envs_per_runner

    @property
    def steps_per_env(self) -> int:
        """Steps that each environment gives to a batch."""
        steps, rest = divmod(self.train_batch_size, self.num_envs)
        if rest:
            raise ValueError(
                f"workload: train_batch_size must be a multiple of the environments, got {self.train_batch_size} over "
                f"{self.num_envs}. Fix: change one of them."
            )
        return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training, read back from the process that did it."""

    env_steps: tuple[int, ...]
    """Steps of the environment in each iteration, shape (iterations,); automatic resets are none."""
    seconds: tuple[float, ...]
    """Wall time of each iteration, sampling and update together, shape (iterations,)."""
    cpu_seconds: tuple[float, ...]
    """CPU time of this process with all its threads in each iteration, without its children, shape (iterations,)."""
    torch_threads: int
    num_parameters: int
    num_gradient_updates: int
    """Optimizer steps over all iterations, by the optimizer's own count."""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Laps:
    """Cuts a training into iterations."""

    env_steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    _started: tuple[float, float] = (0.0, 0.0)

    def time(self, iteration: Callable[[], int]) -> None:
        """Run one iteration, which returns its environment steps."""
        self.start()
        self.cut(iteration())

    def start(self) -> None:
        self._started = (time.perf_counter(), time.process_time())

    def cut(self, env_steps: int) -> None:
        """End an iteration of so many environment steps; the next one begins."""
        wall, cpu = self._started
        self.start()
        self.env_steps.append(env_steps)
        self.seconds.append(self._started[0] - wall)
        self.cpu_seconds.append(self._started[1] - cpu)


def optimizer_steps(optimizer: Any) -> int:
    """Return how often an Adam of torch has stepped."""
    return next((int(state["step"]) for state in optimizer.state.values()), 0)


def count_parameters(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)
