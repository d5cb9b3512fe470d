"""A training as people write it with RLlib: one configuration at module level, trained in a loop."""

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
    .training(
        lr=1e-3,
        train_batch_size_per_learner=1000,
        minibatch_size=250,
        num_epochs=8,
        lambda_=0.95,
        vf_clip_param=10_000.0,
        entropy_coeff=0.005,
    )
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False))
)

if __name__ == "__main__":
    algorithm = config.build_algo()
    for _ in range(20):
        algorithm.train()
    algorithm.stop()
