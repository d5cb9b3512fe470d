"""One trial: one real RLlib PPO run, measured."""
