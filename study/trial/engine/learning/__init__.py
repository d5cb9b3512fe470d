"""PPO's update."""
