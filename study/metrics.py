"""The one list of recorded quantities, `metrics.csv`. Pure; records, MLflow and tables use these names.

Every quantity is raw: nothing there is smoothed, and a rate is a total over a total. Times are wall clock, by the
monotonic clock of the trial's main process.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

Grain = Literal["iteration", "evaluation", "trial", "row"]
Sum = Literal["mean", "weighted mean", "total", "largest", "smallest"]
Source = Literal["measured", "counted", "computed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A recorded quantity.

    Attributes:
        name: The key in records, MLflow and tables.
        unit: SI-like unit; `1` for pure numbers.
        grain: What one value describes: a training iteration, an evaluation, a whole trial; or `row`: a trial too, but
            added up from the other records whenever a table is made, so that no record of its own holds it.
        source: `measured` by a clock or the system, `counted` exactly, or `computed` from the others or by the learner.
        meaning: One line.
        section: Where TensorBoard shows it, such as `speed`; empty where no mirror gets it.
        of_trial: What the column of this name in a table of trials holds: the `mean` over the timed iterations (those
            after the warm-up), the `weighted mean` by their time, or the `total`, `largest` or `smallest` value of all
            iterations or evaluations; None: a table of trials has no such column.
    """

    name: str
    unit: str
    grain: Grain
    source: Source
    meaning: str
    section: str = ""
    of_trial: Sum | None = None

    @property
    def mirrored(self) -> bool:
        """Whether MLflow and TensorBoard get it too."""
        return bool(self.section)

    @property
    def whole(self) -> bool:
        """Whether its column in a table of trials holds whole numbers."""
        return self.source == "counted" and self.of_trial not in ("mean", "weighted mean")


def _read() -> Iterator[Metric]:
    """Yield the quantities of `metrics.csv`, in their order there."""
    with Path(__file__).with_suffix(".csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield Metric(**row | {"of_trial": row["of_trial"] or None})


_ALL = tuple(_read())

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
OF_ITERATIONS: Mapping[str, Sum] = MappingProxyType(
    {metric.name: metric.of_trial for metric in _ALL if metric.grain == "iteration" and metric.of_trial is not None}
)
"""What a table of trials says of the iterations of each, and how it is added up."""
OF_TRIALS = tuple(metric.name for metric in _ALL if metric.grain in ("trial", "row") or metric.of_trial is not None)
"""Every recorded quantity that is a column of a table of trials."""

CUSTOM = "custom/"
"""Before the name of a metric that a person's own script logs: recorded with each iteration, in no table."""
WARMUP_ITERATIONS = 1
"""Left out of a trial's env_steps_per_s: the first iteration pays for lazy initialisation."""
FINAL_SHARE = 0.1
"""Evaluations in this last share of the budget make up `final_return`."""
