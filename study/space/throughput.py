"""The `throughput` section of a space: which cells are timed, for how long and how often. Pure."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, create_model

from study.space.domains import Model, Section, domain_of, values
from study.space.parameters import MAX_PROCESSES, PARAMETERS, RULES, SCALE, Parameter

LEARNERS = "num_learners"
"""An axis of a grid that is no parameter of PPO: `resources.num_learners`."""
_LEARNERS = Parameter(
    name=LEARNERS,
    kind=int,
    default=0,
    minimum=0,
    maximum=MAX_PROCESSES,
    meaning="Learner processes; 0: the learner is in the main process. Otherwise `resources.num_learners`.",
)
_VARIED = (
    SCALE,
    "num_envs_per_env_runner",
    "train_batch_size",
    "steps_per_env_runner",
    "minibatch_size",
    "num_minibatches",
    "num_epochs",
)
"""Parameters and rules that an iteration's time depends on, in the order of the tables."""
AXES = {
    **{name: {**PARAMETERS, **RULES}[name] for name in _VARIED},
    SCALE: replace(PARAMETERS[SCALE], meaning="Environment runners, a process each."),
    LEARNERS: _LEARNERS,
}
"""What a grid can vary."""


GridSpec: type[Model] = create_model(
    "GridSpec",
    __base__=Model,
    __doc__="A cross product: each axis is a value, a list or a range that stands for one; else as `parameters`.",
    **{
        name: (domain_of(parameter, sampled=False), Field(None, description=parameter.meaning))
        for name, parameter in AXES.items()
    },
)  # type: ignore[call-overload]


class AllocationSpec(Section):
    """One large trial, or the same CPUs for several smaller ones?"""

    num_env_runners: int = Field(ge=1, le=MAX_PROCESSES)
    """Runners of the one large trial, whose CPUs the others share."""
    trials: list[Annotated[int, Field(ge=1)]] = Field([1, 2, 4], min_length=1)
    """How many trials take these CPUs, side by side; each has a main process of its own, and fewer runners."""
    parameters: dict[str, int] = Field({})
    """What differs from `parameters` in these trials, such as `train_batch_size`."""


class ThroughputSpec(Section):
    """A throughput study: short trials of cells, in blocks. It measures the clock and makes no claim about learning."""

    iterations: int = Field(4, ge=1)
    """Timed training iterations of each trial; one more before them is warm-up."""
    blocks: int = Field(3, ge=1)
    """Each runs every cell once, cells in random order (those of equal runners one after another), and the base cell \
at its beginning and at its end. The number of the block is the seed of its trials."""
    grids: dict[str, GridSpec] = Field({})  # type: ignore[valid-type]
    """Name -> what is varied around the base cell (`parameters`). A cell of several grids runs once a block."""
    allocation: AllocationSpec | None = None
    """One large trial, or the same CPUs for several smaller ones?"""

    def axes(self) -> dict[str, dict[str, list[int]]]:
        """Return grid -> axis -> its values, of those that the grid varies."""
        said = {name: {axis: getattr(grid, axis) for axis in AXES} for name, grid in self.grids.items()}
        return {
            name: {
                axis: [int(value) for value in values(domain)] for axis, domain in domains.items() if domain is not None
            }
            for name, domains in said.items()
        }


def without_absent(content: dict[str, Any]) -> dict[str, Any]:
    """Return the section's JSON values without the axes that a grid does not vary, which cannot be read back."""
    grids = {
        name: {axis: values for axis, values in grid.items() if values is not None}
        for name, grid in content["grids"].items()
    }
    return {**content, "grids": grids}
