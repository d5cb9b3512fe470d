"""The declared columns of every frame that analysis works on: name, unit, type, meaning. Imports no engine.

A frame is made by its declaration (`analysis.load.folder`), so that what follows never asks whether a column is there,
which unit it has, or whether a missing value is None, NaN, 0 or an empty text: it is NA.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from study.metrics import METRICS, OF_TRIALS
from study.space.parameters import PARAMETERS, SCALE

Dtype = Literal["string", "Int64", "Float64", "category"]
"""pandas' nullable types; a category holds text."""


@dataclass(frozen=True, slots=True)
class Column:
    """A declared column.

    Attributes:
        name: As in records and MLflow.
        unit: SI-like unit; `1` for pure numbers, empty for text.
        dtype: Its pandas type.
        meaning: One line.
    """

    name: str
    unit: str
    dtype: Dtype
    meaning: str


def _declared(columns: Iterable[Column]) -> Mapping[str, Column]:
    return MappingProxyType({column.name: column for column in columns})


def _recorded(name: str) -> Column:
    metric = METRICS[name]
    how = f" Of a trial: {metric.of_trial}." if metric.of_trial else ""
    return Column(name, metric.unit, "Int64" if metric.whole else "Float64", f"{metric.meaning}{how}")


_UNITS = {"lr": "1/step", "train_batch_size": "env steps", "minibatch_size": "env steps"}
_RUN = (
    Column("study", "", "string", "Name of the study."),
    Column("trial", "1", "Int64", "Number in the plan, from 0."),
    Column("attempt", "1", "Int64", "Which attempt is shown, the latest; earlier ones were interrupted."),
    Column("status", "", "string", "finished, failed, interrupted or running."),
    Column("reason", "", "string", "Why it failed or was interrupted."),
    Column("stage", "", "string", "Stage of a hold-up study; `throughput` for trials of a throughput study."),
    Column("variant", "", "string", "study or stock, in a hold-up study."),
    Column("digest", "", "string", "Identity of the setting without its scale, in a hold-up study."),
    Column("baseline", "", "string", "The baseline, arm or cell that the trial comes from."),
    Column("seed", "1", "Int64", "Seed; runs of different cells with one seed are a block."),
    *(
        Column(
            each.name,
            _UNITS.get(each.name, "1"),
            "Int64" if each.kind is int else "Float64",
            "Runners: processes that sample, or those whose lanes are stepped when emulated."
            if each.name == SCALE
            else each.meaning,
        )
        for each in PARAMETERS.values()
    ),
    Column(
        "stands_for_runners", "1", "Int64", "Runners whose lanes fewer stock runners step; NA where it is no other."
    ),
    Column("num_learners", "1", "Int64", "Learner processes; 0: the learner is in the main process."),
    Column("num_cpus", "CPU", "Int64", "CPUs reserved: main process, runners and learners."),
    Column("num_nodes", "1", "Int64", "Nodes that held processes of the trial."),
    Column("nodes", "", "string", "Their addresses."),
    Column("execution", "", "string", "real or emulated."),
    Column(
        "engine",
        "",
        "string",
        "Runner and learner that were built, such as batched+fused or RLlib's own; NA where that is not known.",
    ),
    Column("timing", "", "string", "measured, oversubscribed, emulated or tainted; NA while it is not settled."),
    Column("timing_reason", "", "string", "Why the timing is labelled so, or why it has no label."),
    *(_recorded(name) for name in OF_TRIALS),
    Column("max_iterations", "1", "Int64", "Training iterations that it was given, at most."),
    Column("checkpoint", "", "string", "Folder of its final policy."),
    Column("learner_threads", "1", "Int64", "Threads of torch in the process that learns."),
    Column("started", "s", "Float64", "When the attempt was started, seconds since the epoch."),
    Column("ended", "s", "Float64", "When it ended, seconds since the epoch."),
    Column(
        "fingerprint",
        "",
        "category",
        "The workload without scale and placement: JSON with sorted keys. Rows may be compared where it is equal; what "
        "could not be read is absent from it.",
    ),
)
RUN_COLUMNS: Mapping[str, Column] = _declared(_RUN)
"""One row per trial, in this order."""

ITERATION_COLUMNS: Mapping[str, Column] = _declared(
    (
        Column("trial", "1", "Int64", "Number of the trial in the plan."),
        Column("iteration", "1", "Int64", "From 1."),
        Column("env_steps", "env steps", "Int64", "Environment steps trained on so far."),
        Column("wall_time_s", "s", "Float64", "Training seconds so far."),
        *(
            Column(metric.name, metric.unit, "Float64", metric.meaning)
            for metric in METRICS.values()
            if metric.grain == "iteration"
        ),
    )
)
"""One row per training iteration of the latest attempts."""

EVALUATION_COLUMNS: Mapping[str, Column] = _declared(
    (
        Column("trial", "1", "Int64", "Number of the trial in the plan."),
        Column("env_steps", "env steps", "Int64", "Environment steps trained on before."),
        Column("wall_time_s", "s", "Float64", "Training seconds before."),
        Column("progress", "1", "Float64", "Share of the budget used, in [0, 1]."),
        Column("eval_return", "return", "Float64", METRICS["eval_return"].meaning),
        Column("num_episodes", "1", "Int64", "Episodes evaluated."),
        Column("num_cut", "1", "Int64", "Episodes that did not end and were cut at the limit."),
        Column("eval_time_s", "s", "Float64", METRICS["eval_time_s"].meaning),
    )
)
"""One row per evaluation of the latest attempts."""
