"""Signs of why a setting learns at a scale or does not: labels, each with its figure and threshold. Pure.

Every figure is one number per run that ended well; a label stands where the median of the runs is beyond its
threshold. Failed runs are counted apart. Labels are hints, not tests.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from study.designs.search.worth import FEWEST_UPDATES, MOST_COLLAPSE, score_lost
from study.metrics import FINAL_SHARE, WARMUP_ITERATIONS
from study.records.ledger import TrialRow
from study.records.records import Evaluation, Iteration, Record, TrialStarted
from study.space.parameters import SCALE
from study.space.spec import StudySpec

Label = Literal["starved", "learner-bound", "fragment-short", "metric-lag", "unstable", "seed-fragile", "straggler"]

LEARNING_SHARE = 0.5
"""Share of the iteration's time in learning from which more runners cannot help much (Amdahl: at most twice)."""
FRAGMENT_SHARE = 0.2
"""Length of a fragment over that of an episode, below which lambda 1 rests on bootstrapped ends of episodes."""
RETURN_GAP = 0.3
"""Score between training and greedy evaluation beyond which the training metric misleads."""
FRAGILE = (0.2, 0.8)
"""Solve rates, both ends included, at which the seed decides."""
STRAGGLING = 2.0
"""Slowest runner's time over the mean runner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialHistory:
    """A trial with what its latest attempt reported."""

    row: TrialRow
    iterations: tuple[Iteration, ...]
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of the diagnosis, labelled or not."""

    label: Label
    applies: bool
    value: float
    """Median over the runs, or the rate, in the unit that `meaning` says."""
    law: str
    """When the label applies."""
    meaning: str
    n: int
    """Runs behind it."""
    num_beyond: int
    """Runs that are beyond the threshold on their own."""
    basis: str = ""
    """Of a figure that rests on times: `measured`, or `emulated share`, which is no fact about real runners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is to be seen in the runs of one setting at one scale."""

    digest: str
    scale: int
    n: int
    num_failed: int
    findings: tuple[Finding, ...]
    """One for every label that could be judged."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that apply; times that are not measured are said to be so."""
        return tuple(
            f"{finding.label} ({EMULATED})" if finding.basis == EMULATED else finding.label
            for finding in self.findings
            if finding.applies
        )


EMULATED = "emulated share"
"""What the share of learning is called where lanes were emulated: sampling is then slower than runners would be."""


def histories(records: Iterable[Record], rows: dict[int, TrialRow]) -> dict[int, TrialHistory]:
    """Return every trial of the ledger's rows with the iterations and evaluations of its latest attempt."""
    iterations: dict[int, list[Iteration]] = {trial: [] for trial in rows}
    evaluations: dict[int, list[Evaluation]] = {trial: [] for trial in rows}
    for record in records:
        match record:
            case TrialStarted():
                iterations[record.trial], evaluations[record.trial] = [], []
            case Iteration():
                iterations[record.trial].append(record)
            case Evaluation():
                evaluations[record.trial].append(record)
    return {
        trial: TrialHistory(row=row, iterations=tuple(iterations[trial]), evaluations=tuple(evaluations[trial]))
        for trial, row in rows.items()
    }


def diagnose(trials: Sequence[TrialHistory], spec: StudySpec) -> Diagnosis:
    """Return the diagnosis of one setting at one scale.

    Args:
        trials: Of one digest, scale and variant, whole budgets only; one or more.
        spec: The space: what a score is, and what is solved.
    """
    ((digest, scale),) = {(trial.row.digest, trial.row.num_env_runners) for trial in trials}
    sound = [trial for trial in trials if trial.row.status == "finished"]
    measured = [trial for trial in sound if trial.row.timing == "measured"]
    timed = measured or [trial for trial in sound if trial.row.timing == "emulated"]
    findings = (
        _finding(
            "starved",
            (float(len(trial.iterations)) for trial in sound),
            lambda value: value < FEWEST_UPDATES,
            law=f"< {FEWEST_UPDATES}",
            meaning="updates of the policy",
        ),
        _finding(
            "learner-bound",
            (_ratio(trial, "learning_time_s", "iteration_time_s") for trial in timed),
            lambda value: value > LEARNING_SHARE,
            law=f"> {LEARNING_SHARE:g}",
            meaning="learning_time_s over iteration_time_s",
            basis="measured" if measured else EMULATED,
        ),
        _finding(
            "fragment-short",
            (_fragment_share(trial) for trial in sound if trial.row.setting.get("lambda", 0) >= 1),
            lambda value: value < FRAGMENT_SHARE,
            law=f"< {FRAGMENT_SHARE:g}, with lambda 1",
            meaning="steps of a fragment over mean steps of a training episode",
        ),
        _finding(
            "metric-lag",
            (_training_gap(trial, spec) for trial in sound),
            lambda value: value > RETURN_GAP,
            law=f"> {RETURN_GAP:g}",
            meaning="|score of the training return - score of the greedy evaluation|, last tenth of the budget",
        ),
        _finding(
            "unstable",
            (score_lost(trial.row, spec) for trial in sound),
            lambda value: value > MOST_COLLAPSE,
            law=f"> {MOST_COLLAPSE:g}",
            meaning="score of the best evaluation - score at the end",
        ),
        _seed_fragile(trials, spec),
        _finding(
            "straggler",
            (_ratio(trial, "slowest_runner_time_s", "mean_runner_time_s") for trial in measured),
            lambda value: value > STRAGGLING,
            law=f"> {STRAGGLING:g}",
            meaning="sampling time of the slowest runner over that of the mean runner",
            basis="measured",
        ),
    )
    return Diagnosis(
        digest=digest,
        scale=scale,
        n=len(trials),
        num_failed=sum(trial.row.status == "failed" for trial in trials),
        findings=tuple(finding for finding in findings if finding is not None),
    )


def _finding(
    label: Label,
    values: Iterable[float | None],
    beyond: Callable[[float], bool],
    *,
    law: str,
    meaning: str,
    basis: str = "",
) -> Finding | None:
    """Return the finding of one figure per run; None where no run has it."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    median, count = statistics.median(known), sum(beyond(value) for value in known)
    return Finding(label, beyond(median), median, law, meaning, n=len(known), num_beyond=count, basis=basis)


def _seed_fragile(trials: Sequence[TrialHistory], spec: StudySpec) -> Finding:
    """Judge the share of solved runs; a failed run is not solved, and counts."""
    finals = [trial.row.summary.get("final_return") for trial in trials if trial.row.status == "finished"]
    solved = sum(final is not None and final >= spec.target for final in finals)
    rate, (least, most) = solved / len(trials), FRAGILE
    law, missed = f"in [{least:g}, {most:g}]", len(trials) - solved
    applies = least <= rate <= most
    return Finding("seed-fragile", applies, rate, law, "share of runs solved", n=len(trials), num_beyond=missed)


def _fragment_share(trial: TrialHistory) -> float | None:
    """Return the length of a fragment over that of an episode."""
    steps, episodes = _total(trial.iterations, "episode_len_sum"), _total(trial.iterations, "num_episodes")
    if not steps or not episodes:
        return None
    # The lanes of the setting as it was run: one stock runner with all lanes has as many.
    setting = trial.row.setting
    fragment = setting["train_batch_size"] / (setting[SCALE] * setting["num_envs_per_env_runner"])
    return fragment / (steps / episodes)


def _training_gap(trial: TrialHistory, spec: StudySpec) -> float | None:
    """Return how far the scores of training and evaluation are apart at the end."""
    final = trial.row.summary.get("final_return")
    if final is None or not trial.iterations:
        return None
    last = trial.iterations[-1].env_steps * (1 - FINAL_SHARE)
    end = [record for record in trial.iterations if record.env_steps >= last]
    returns, episodes = _total(end, "episode_return_sum"), _total(end, "num_episodes")
    if returns is None or not episodes:
        return None
    return abs(spec.score(returns / episodes) - spec.score(final))


def _ratio(trial: TrialHistory, above: str, below: str) -> float | None:
    """Return a total over a total after the warm-up; None where one is not known."""
    warm = [record for record in trial.iterations if record.iteration > WARMUP_ITERATIONS]
    numerator, denominator = _total(warm, above), _total(warm, below)
    return numerator / denominator if numerator is not None and denominator else None


def _total(iterations: Iterable[Iteration], name: str) -> float | None:
    """Return the sum of a metric; None where an iteration does not have it, or there is none."""
    values = [record.metrics.get(name) for record in iterations]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
