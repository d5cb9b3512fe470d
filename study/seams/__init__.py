"""Every patch and every private access of Ray, RLlib, JAX, MLflow and tensorboardX.

One module for each engine: its seams with their reasons, then the functions that the rest of the program calls.
`base` says what a seam is. Engines are imported inside functions only.
"""
