"""What learns: PPO's update, and RLlib's own learners of APPO and IMPALA with counters."""
