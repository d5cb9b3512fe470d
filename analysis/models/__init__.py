"""Three models of throughput against runners: the iteration-time model, Amdahl's law, the USL; their errors held out.

What a model says of cells that nobody ran is a prediction, and tables label it so.
"""
