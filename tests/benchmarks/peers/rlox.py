"""rlox's PPO, with separate nets: batches and advantages in Rust; most environments are Gymnasium's."""

from typing import Any

from tests.benchmarks.peers.workload import Laps, Training, Workload, count_parameters, optimizer_steps


def train(workload: Workload) -> Training:
    """Train with all environments in this process; the nets have rlox's own form, two hidden layers of one width."""
    import gymnasium
    import torch
    from rlox.algorithms.ppo import PPO
    from rlox.callbacks import Callback
    from rlox.policies import DiscretePolicy

    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    width, *rest = workload.hiddens
    if rest != [width]:
        raise ValueError(f"workload: rlox's nets have two hidden layers of one width, got {workload.hiddens}.")
    example = gymnasium.make(workload.env_id)
    spaces: Any = (example.observation_space, example.action_space)
    example.close()
    laps = Laps()

    class Clock(Callback):  # type: ignore[misc]  # rlox has no types
        def on_training_start(self) -> None:
            laps.start()

        def on_step(self, **kwargs: Any) -> bool:  # after each update
            laps.cut(workload.train_batch_size)
            return True

    model = PPO(
        workload.env_id,
        n_envs=workload.num_envs,
        seed=workload.seed,
        policy=DiscretePolicy(spaces[0].shape[0], int(spaces[1].n), hidden=width),
        callbacks=[Clock()],
        n_steps=workload.steps_per_env,
        n_epochs=workload.num_epochs,
        batch_size=workload.minibatch_size,
        learning_rate=workload.lr,
        clip_eps=workload.clip_param,
        vf_coef=workload.vf_loss_coeff,
        ent_coef=workload.entropy_coeff,
        max_grad_norm=workload.grad_clip,
        gamma=workload.gamma,
        gae_lambda=workload.lambda_,
        anneal_lr=False,
    )
    model.train(workload.iterations * workload.train_batch_size)
    return Training(
        env_steps=tuple(laps.env_steps),
        seconds=tuple(laps.seconds),
        cpu_seconds=tuple(laps.cpu_seconds),
        torch_threads=torch.get_num_threads(),
        num_parameters=count_parameters(model.policy.parameters()),
        num_gradient_updates=optimizer_steps(model.optimizer),
        details={"vec_env": type(model.collector.env).__name__},
    )
