"""The words for what a trial is part of and how it runs: variants, arms, and the spec that a variant means. Pure."""

from typing import Literal

from study.space.spec import StudySpec
from study.space.throughput import LEARNERS

THROUGHPUT = "throughput"
"""What the trials of a throughput study have in place of a stage."""
SHARED = "shared"
"""Name of the measured trials that share the CPUs of one: several of equal scale and seed, side by side."""
Variant = Literal["study", "stock", "measured"]
"""`study`: as the space says. `stock`: RLlib's own runners and learner. `measured`: real runners, for the clock."""

WINNER, BEST_SMALL, WINNER_STOCK = "winner", "best_small", "winner_stock"
"""Names of a hold-up study's arms that are no baselines: the chosen setting, the best one of few runners, and the
chosen one on RLlib's own runners, which no rule and no comparison uses."""


def spec_of(spec: StudySpec, variant: str, *, num_learners: int | None = None) -> StudySpec:
    """Return the spec that a trial of this variant runs under, with so many learners where they are varied."""
    if num_learners is not None:
        return spec.model_copy(update={"resources": spec.resources.model_copy(update={LEARNERS: num_learners})})
    match variant:
        case "stock":
            environment = spec.environment.model_copy(update={"backend": "gymnasium"})
            stock = {"runner": "stock", "learner": "rllib", "standardization": None, "execution": "auto"}
            return spec.model_copy(update={"environment": environment, **stock})
        case "measured":
            wait = spec.holdup.measure.step_wait_ms if spec.holdup and spec.holdup.measure else 0.0
            environment = spec.environment.model_copy(update={"step_wait_ms": wait})
            evaluation = spec.evaluation.model_copy(update={"num_evaluations": 1, "episodes": 1})
            return spec.model_copy(update={"execution": "real", "environment": environment, "evaluation": evaluation})
        case _:
            return spec
