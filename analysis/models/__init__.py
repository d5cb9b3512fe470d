"""Models of throughput against runners: laws, the iteration-time model, their errors on cells that they did not see.

Pure: NumPy, SciPy, `study.errors` and `study.statistics`. What a model says of cells that nobody ran is a prediction,
and tables label it so.
"""
