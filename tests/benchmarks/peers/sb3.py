"""Stable-Baselines3's PPO over `make_vec_env`, on the CPU, with separate nets."""

from typing import Any

from tests.benchmarks.peers.workload import Laps, Training, Workload, count_parameters, optimizer_steps


def train(workload: Workload, *, vec_env: str) -> Training:
    """Train with all environments in this process (`dummy`) or with a process for each (`subproc`)."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    kinds: dict[str, Any] = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
    torch.set_num_threads(workload.threads)
    envs = make_vec_env(
        workload.env_id,
        n_envs=workload.num_envs,
        seed=workload.seed,
        vec_env_cls=kinds[vec_env],
    )
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
        policy_kwargs={
            "net_arch": {"pi": list(workload.hiddens), "vf": list(workload.hiddens)},
            "activation_fn": torch.nn.Tanh,
        },
        seed=workload.seed,
        device="cpu",
    )
    try:
        laps = _learn(model, workload)
    finally:
        envs.close()
    return Training(
        env_steps=tuple(laps.env_steps),
        seconds=tuple(laps.seconds),
        cpu_seconds=tuple(laps.cpu_seconds),
        torch_threads=torch.get_num_threads(),
        num_parameters=count_parameters(model.policy.parameters()),
        num_gradient_updates=optimizer_steps(model.policy.optimizer),
        details={"vec_env": type(envs).__name__, "device": str(model.device)},
    )


def _learn(model: Any, workload: Workload) -> Laps:
    """Run `learn` once; an iteration is from the start of a rollout to the start of the next one."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Clock(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.laps = Laps()
            self.steps_before: int | None = None

        def _cut(self) -> None:
            now = self.model.num_timesteps
            if self.steps_before is None:
                self.laps.start()
            else:
                self.laps.cut(now - self.steps_before)
            self.steps_before = now

        def _on_rollout_start(self) -> None:
            self._cut()

        def _on_training_end(self) -> None:
            self._cut()

        def _on_step(self) -> bool:
            return True

    clock = Clock()
    model.learn(total_timesteps=workload.iterations * workload.train_batch_size, callback=clock)
    return clock.laps
