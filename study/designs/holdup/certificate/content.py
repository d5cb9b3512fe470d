"""What a certificate holds, as values; JSON and Markdown of them. Writes two files; computes no figure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from study.designs.holdup.certificate.diagnosis import Diagnosis
from study.designs.holdup.certificate.page import page
from study.designs.holdup.comparison import Comparisons
from study.designs.holdup.verdict import Verdict
from study.errors import RecordError
from study.harmless import markdown, printable
from study.records.files import write_atomically
from study.records.folder import StudyFolder
from study.statistics import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The runs of an arm at one evaluation of the budget."""

    env_steps: int
    """Median over the runs: batches differ between settings, and so do the moments of evaluation."""
    iqm_return: Estimate
    """Of the greedy evaluation; a run that has failed counts as the environment's floor from then on."""
    at_target: int
    """Runs whose mean return at this evaluation alone reaches the target, of `iqm_return.n`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """What the runs of one arm came to."""

    name: str
    scale: int
    digest: str
    variant: str
    execution: str
    timing: Mapping[str, int]
    """Label -> runs."""
    folded: bool
    """Whether one runner of RLlib has the environments of all: neither learning nor clock are those of the scale."""
    n: int
    n_failed: int
    seeds: tuple[int, ...]
    solved: int
    solve_rate: Estimate
    score: Estimate
    """Mean; a failed run scores 0."""
    iqm_final_return: Estimate
    """A failed run counts as the environment's floor."""
    env_steps_to_target: float | None
    """Restricted mean up to `horizon_env_steps`; a run that did not get there counts as the horizon."""
    horizon_env_steps: float | None
    resolution_env_steps: float | None
    """Between the evaluation that found a run at the target and the one before, at most: times are known no better."""
    n_censored: int
    cpu_s_spent: Estimate | None
    """Mean over the runs that tell."""
    cpu_s_reserved: Estimate | None
    """None where lanes were emulated, or one runner stepped all: what real runners would reserve is not known."""
    curve: Mapping[str, Point]
    """`6/10` -> the sixth of ten evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimism:
    """How much better the winner looked when it was chosen; means of scores at the target scale."""

    when_chosen: Estimate
    """Race and stress, on rank seeds."""
    when_confirmed: Estimate
    """On test seeds."""
    optimism: float
    """The difference: positive when the choice flattered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a study found, in the order in which a reader asks."""

    format: int
    study: Mapping[str, Any]
    environment: Mapping[str, Any]
    scales: Mapping[str, Any]
    laws: Mapping[str, float]
    budget: Mapping[str, Any]
    seeds: Mapping[str, Any]
    winner: Mapping[str, Any]
    verdict: Verdict
    arms: Mapping[str, ArmFigures]
    """`winner@46` -> its figures."""
    comparisons: Comparisons
    optimism: Optimism
    cpu_hours: Mapping[str, float]
    """Stage -> CPU time of its trials, interrupted attempts included; and `all`."""
    trials: Mapping[str, Mapping[str, int]]
    """Stage -> n, n_failed, n_restarts."""
    clock_measured: bool
    diagnosis: Mapping[str, Diagnosis]
    """Of the winner at every scale, and of every arm that does not solve."""
    measured: Sequence[Mapping[str, Any]]
    """Short trials with real runners, by kind and scale; `env_steps_per_s`: least, median, largest, or None where no
    clock was measured."""
    decisions: Sequence[Mapping[str, Any]]
    sessions: Sequence[Mapping[str, Any]]
    """The drivers that worked on the study, with provenance and cluster."""
    notes: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; the open ends of intervals are null."""
        content: dict[str, Any] = orjson.loads(orjson.dumps(self, option=orjson.OPT_SERIALIZE_NUMPY))
        content["verdict"]["checks"] = {check["name"]: check for check in content["verdict"]["checks"]}
        for row in content["comparisons"]["rows"]:
            if not row["note"]:
                del row["note"]
        content["comparisons"]["rows"] = {row["baseline"]: row for row in content["comparisons"]["rows"]}
        for name, diagnosis in self.diagnosis.items():
            content["diagnosis"][name]["labels"] = list(diagnosis.labels)
        return content

    def to_markdown(self) -> str:
        """Return the certificate as one page."""
        return markdown(printable(page(self.to_json())))

    def write(self, folder: StudyFolder) -> None:
        """Write `certificate.json` and `certificate.md` into the study folder.

        Raises:
            RecordError: The folder cannot be written.
        """
        try:
            text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
            write_atomically(folder.certificate, text + "\n")
            write_atomically(folder.certificate_page, self.to_markdown())
        except OSError as error:
            raise RecordError(
                where=str(folder.path),
                rule=f"must be writable ({error.strerror})",
                fix="Free some space, or check its permissions.",
            ) from error
