"""Scaling from the frame `runs`: speed-up, efficiency, phases, steps to the target, refusals. Imports no engine.

Only finished runs with a `measured` clock enter a table of times; every other run is counted by reason. A ratio is
paired by block (runs with the same seed) and has an interval, or says that it has none.
"""
