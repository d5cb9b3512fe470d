"""Columns that several tables have, and the commands that tables recommend. Pure."""

from analysis.tables.cells import TableColumn

FIRST_COMMAND = (
    "python run_study.py --space throughput.yaml (on fewer than 47 CPUs: python run_study.py --space waiting.yaml)"
)
"""What measures a study that has no measured rows of equal workload."""


def count(name: str, label: str, meaning: str) -> TableColumn:
    """Return a column of whole numbers, or of numbers without a unit."""
    return TableColumn(name=name, unit="1", label=label, meaning=meaning)


def estimate(name: str, unit: str, label: str, meaning: str) -> TableColumn:
    """Return a column of estimates with their intervals."""
    return TableColumn(name=name, unit=unit, label=label, meaning=meaning, estimate=True)


def text(name: str, label: str, meaning: str) -> TableColumn:
    """Return a column of words."""
    return TableColumn(name=name, unit="", label=label, meaning=meaning)


WORKLOAD = text("workload", "workload", "What tells this group of equal work from the others.")
RUNNERS = count("num_env_runners", "runners", "Environment runners, n.")
CPUS = count("num_cpus", "CPUs", "CPUs allocated, P: one per process.")
BATCH = TableColumn(name="train_batch_size", unit="1", label="batch", meaning="Env steps per iteration, as asked.")
RUNS = count("n", "runs", "Runs behind the row.")
FAILED_RUNS = count("n_failed", "failed", "Failed runs of this row.")
RATE = estimate("env_steps_per_s", "1", "steps/s", "Throughput X: env steps per second, total over total.")
