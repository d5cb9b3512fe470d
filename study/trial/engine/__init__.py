"""The parts of a trial that replace slower ones of RLlib: environments, sampling, learning. Each is optional."""
