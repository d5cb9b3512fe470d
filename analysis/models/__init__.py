"""Three models of throughput against runners: the iteration-time model, Amdahl's law and the USL.

What a model says of cells that nobody ran is a prediction, and tables label it so.
"""
