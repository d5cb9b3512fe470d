"""The iteration-time model of throughput against runners. What it says of cells that nobody ran is a prediction."""
