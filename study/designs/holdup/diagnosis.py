"""Signs of why a setting learns at a scale or does not: labels, each with its figure and threshold. Pure.

Every figure is one number per run that ended well; a label stands where the median of the runs is beyond its
threshold. Failed runs are counted apart. Labels are hints, not tests.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from study.designs.search.worth import FEWEST_UPDATES, MOST_COLLAPSE, score_lost
from study.metrics import FINAL_SHARE, WARMUP_ITERATIONS
from study.records.ledger import TrialRow
from study.records.records import Evaluation, Iteration, Record, TrialStarted
from study.space.parameters import SCALE
from study.space.spec import StudySpec

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
EMULATED = "emulated share"
"""What the share of learning is called where lanes were emulated: sampling is then slower than runners would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialHistory:
    """A trial with what its latest attempt reported."""

    row: TrialRow
    iterations: tuple[Iteration, ...]
    evaluations: tuple[Evaluation, ...]


def histories(records: Iterable[Record], rows: dict[int, TrialRow]) -> dict[int, TrialHistory]:
    """Return every trial of the ledger's rows with the iterations and evaluations of its latest attempt."""
    reported: dict[int, list[Iteration | Evaluation]] = {trial: [] for trial in rows}
    for record in records:
        if isinstance(record, TrialStarted):
            reported[record.trial] = []
        elif isinstance(record, Iteration | Evaluation):
            reported[record.trial].append(record)
    return {
        trial: TrialHistory(
            row=row,
            iterations=tuple(each for each in reported[trial] if isinstance(each, Iteration)),
            evaluations=tuple(each for each in reported[trial] if isinstance(each, Evaluation)),
        )
        for trial, row in rows.items()
    }


Figure = tuple[str, Iterable[float | None], Callable[[float], bool], str, str, str]
"""Label, figure of each run, whether one is beyond its threshold, that threshold, the figure in words, its basis."""


def _figures(trials: Sequence[TrialHistory], spec: StudySpec) -> Iterator[Figure]:
    sound = [trial for trial in trials if trial.row.status == "finished"]
    measured = [trial for trial in sound if trial.row.timing == "measured"]
    timed = measured or [trial for trial in sound if trial.row.timing == "emulated"]
    updates = (float(len(trial.iterations)) for trial in sound)
    yield "starved", updates, lambda v: v < FEWEST_UPDATES, f"< {FEWEST_UPDATES}", "updates of the policy", ""
    learning = (_ratio(trial, "learning_time_s", "iteration_time_s") for trial in timed)
    law, meaning = f"> {LEARNING_SHARE:g}", "learning_time_s over iteration_time_s"
    yield "learner-bound", learning, lambda v: v > LEARNING_SHARE, law, meaning, "measured" if measured else EMULATED
    fragments = (_fragment_share(trial) for trial in sound if trial.row.setting.get("lambda", 0) >= 1)
    law = f"< {FRAGMENT_SHARE:g}, with lambda 1"
    meaning = "steps of a fragment over mean steps of a training episode"
    yield "fragment-short", fragments, lambda v: v < FRAGMENT_SHARE, law, meaning, ""
    gaps = (_training_gap(trial, spec) for trial in sound)
    meaning = "|score of the training return - score of the greedy evaluation|, last tenth of the budget"
    yield "metric-lag", gaps, lambda v: v > RETURN_GAP, f"> {RETURN_GAP:g}", meaning, ""
    lost = (score_lost(trial.row, spec) for trial in sound)
    meaning = "score of the best evaluation - score at the end"
    yield "unstable", lost, lambda v: v > MOST_COLLAPSE, f"> {MOST_COLLAPSE:g}", meaning, ""
    slowest = (_ratio(trial, "slowest_runner_time_s", "mean_runner_time_s") for trial in measured)
    meaning = "sampling time of the slowest runner over that of the mean runner"
    yield "straggler", slowest, lambda v: v > STRAGGLING, f"> {STRAGGLING:g}", meaning, "measured"


def diagnose(trials: Sequence[TrialHistory], spec: StudySpec) -> dict[str, Any]:
    """Return the diagnosis of one setting at one scale, as the certificate has it.

    `findings` has an entry for every label that could be judged: whether it `applies`, the median `value` over the `n`
    runs that have the figure (the rate, for `seed-fragile`), the `law` and `meaning` of it, and how many runs are
    beyond the threshold on their own. `labels` are those that apply; times that are not measured are said to be so.

    Args:
        trials: Of one digest, scale and variant, whole budgets only; one or more.
        spec: The space: what a score is, and what is solved.
    """
    ((digest, scale),) = {(trial.row.digest, trial.row.num_env_runners) for trial in trials}
    findings = []
    for label, values, beyond, law, meaning, basis in _figures(trials, spec):
        if label == "straggler":
            findings.append(_seed_fragile(trials, spec))
        if known := [value for value in values if value is not None]:
            counted = {"n": len(known), "num_beyond": sum(map(beyond, known))}
            findings.append(_finding(label, beyond, statistics.median(known), law, meaning, basis) | counted)
    labels = [
        f"{each['label']} ({EMULATED})" if each["basis"] == EMULATED else each["label"]
        for each in findings
        if each["applies"]
    ]
    failed = sum(trial.row.status == "failed" for trial in trials)
    return {
        "digest": digest,
        "scale": scale,
        "n": len(trials),
        "num_failed": failed,
        "findings": findings,
        "labels": labels,
    }


def _finding(
    label: str, beyond: Callable[[float], bool], value: float, law: str, meaning: str, basis: str
) -> dict[str, Any]:
    applies = bool(beyond(value))
    return {"label": label, "applies": applies, "value": value, "law": law, "meaning": meaning, "basis": basis}


def _seed_fragile(trials: Sequence[TrialHistory], spec: StudySpec) -> dict[str, Any]:
    """Judge the share of solved runs; a failed run is not solved, and counts."""
    finals = [trial.row.summary.get("final_return") for trial in trials if trial.row.status == "finished"]
    solved = sum(final is not None and final >= spec.target for final in finals)
    least, most = FRAGILE
    law, rate = f"in [{least:g}, {most:g}]", solved / len(trials)
    found = _finding("seed-fragile", lambda v: least <= v <= most, rate, law, "share of runs solved", "")
    return found | {"n": len(trials), "num_beyond": len(trials) - solved}


def _fragment_share(trial: TrialHistory) -> float | None:
    """Return the length of a fragment over that of an episode; one stock runner may have had the lanes of all."""
    steps, episodes = _total(trial.iterations, "episode_len_sum"), _total(trial.iterations, "num_episodes")
    if not steps or not episodes:
        return None
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
