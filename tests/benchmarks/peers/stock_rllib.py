"""RLlib's own PPO, as its documentation has a user write it; its Ray is the same private one that ours gets.

That Ray keeps the runners at normal priority (`RAY_worker_niceness=0`); Ray's default is slower on a busy machine.
"""

from typing import Any

from study.cluster.connection import private_ray
from tests.benchmarks.peers.workload import Laps, Training, Workload, count_parameters, optimizer_steps


def train(workload: Workload) -> Training:
    with private_ray(num_cpus=workload.num_runners + workload.threads):
        return _train(workload)


def _train(workload: Workload) -> Training:
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    torch.set_num_threads(workload.threads)
    config = (
        PPOConfig()
        .environment(workload.env_id)
        .env_runners(num_env_runners=workload.num_runners, num_envs_per_env_runner=workload.envs_per_runner)
        .training(
            train_batch_size_per_learner=workload.train_batch_size,
            minibatch_size=workload.minibatch_size,
            num_epochs=workload.num_epochs,
            lr=workload.lr,
            gamma=workload.gamma,
            lambda_=workload.lambda_,
            clip_param=workload.clip_param,
            entropy_coeff=workload.entropy_coeff,
            grad_clip=workload.grad_clip,
            vf_clip_param=workload.vf_clip_param,
            vf_loss_coeff=workload.vf_loss_coeff,
            kl_coeff=workload.kl_coeff,
            kl_target=workload.kl_target,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(workload.hiddens), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .debugging(seed=workload.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    laps = Laps()

    def iteration() -> int:
        return int(algorithm.train()["num_env_steps_sampled_lifetime"]) - sum(laps.env_steps)

    try:
        for _ in range(workload.iterations):
            laps.time(iteration)
        learner = algorithm.learner_group.foreach_learner(_describe).result_or_errors[0].get()
        runners = algorithm.env_runner_group.foreach_env_runner(_describe_runner, local_env_runner=False)
    finally:
        algorithm.stop()
    return Training(
        env_steps=tuple(laps.env_steps),
        seconds=tuple(laps.seconds),
        cpu_seconds=tuple(laps.cpu_seconds),
        torch_threads=torch.get_num_threads(),
        num_parameters=learner["num_parameters"],
        num_gradient_updates=learner["num_gradient_updates"],
        details={
            "algorithm_class": type(algorithm).__name__,
            "learner_class": learner["learner_class"],
            "module_class": learner["module_class"],
            "runner_class": runners[0][0],
            "torch_threads_runner": runners[0][1],
        },
    )


def _describe(learner: Any) -> dict[str, Any]:
    from ray.rllib.core import DEFAULT_MODULE_ID

    module = learner.module[DEFAULT_MODULE_ID]
    return {
        "learner_class": type(learner).__name__,
        "module_class": type(module.unwrapped()).__name__,
        "num_parameters": count_parameters(module.parameters()),
        "num_gradient_updates": optimizer_steps(learner.get_optimizer(DEFAULT_MODULE_ID)),
    }


def _describe_runner(runner: Any) -> tuple[str, int]:
    import torch

    return type(runner).__name__, torch.get_num_threads()
