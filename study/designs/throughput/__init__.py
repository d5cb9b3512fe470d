"""A throughput study: how fast given settings run, in randomised blocks of timed cells."""
