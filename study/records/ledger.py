"""Records -> the state of a study: one row per trial, with its summary. The records alone redo every row."""

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from math import inf, isfinite
from pathlib import Path

from msgspec import Struct, field, structs

from study.engine import engine_of
from study.errors import RecordError
from study.machine.load import NodeLoad
from study.metrics import FINAL_SHARE, METRICS, OF_ITERATIONS, WARMUP_ITERATIONS
from study.records.records import (
    RESTORE,
    Evaluation,
    Iteration,
    Line,
    Metrics,
    OfTrial,
    Record,
    SettingsFrozen,
    StageDecided,
    Status,
    StudyClosed,
    StudyOpened,
    Timing,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    read_lines,
)
from study.space.spec import StudySpec

_ADDING: dict[str, Callable[[float, float], float]] = {
    **dict.fromkeys(("mean", "weighted mean", "total"), operator.add),
    "largest": max,
    "smallest": min,
}
_TIMED = tuple((name, _ADDING[how], how == "weighted mean") for name, how in OF_ITERATIONS.items() if how in _ADDING)
"""What is combined of an iteration after the warm-up: the metric, how, and whether it is weighted by the time."""
_WARM_UP = tuple(each for each in _TIMED if not OF_ITERATIONS[each[0]].endswith("mean"))
"""The same for the warm-up, which enters no mean."""

# --- a trial ----------------------------------------------------------------------------------------------------------


class TrialRow(TrialStarted, frozen=False, kw_only=True):  # type: ignore[misc]  # it is the one that changes
    """A trial as far as it has come: as what its latest attempt was started, and what came of it.

    Moments are seconds since the epoch; `cpu_s` is of training, `timed` is what came after the warm-up, and `lost` is
    what earlier attempts used.
    """

    started: float
    cpu_s_lost: float = 0.0
    cpu_s_reserved_lost: float = 0.0
    ended_at: float | None = None
    last_seen: float = 0.0
    status: str = "running"
    reason: str = ""
    timing: Timing | None = None
    timing_reason: str = ""
    provisional: bool = False
    """Whether the CPU pressure has yet to decide on the timing."""
    engine: str | None = None
    """Which runner and learner were built; None before, and where the records do not tell."""
    startup_time_s: float | None = None
    summary: Metrics = field(default_factory=dict)
    checkpoint: str | None = None
    last_iteration: Iteration | None = None
    progress: float = 0.0
    cpus_per_machine: dict[str, int] = field(default_factory=dict)
    """Machine -> CPUs that the trial reserves there, once its processes are up."""
    node_loads: list[NodeLoad] = field(default_factory=list)
    timed_from: float | None = None
    """When the warm-up was over, and when the latest iteration was recorded, by the driver's clock."""
    timed_to: float | None = None
    iterations_done: int = 0
    timed_iterations: int = 0
    combined: dict[str, float] = field(default_factory=dict)
    """By the names of `OF_ITERATIONS`: the sum, the largest or the smallest value so far; none where there was none."""
    counts: dict[str, int] = field(default_factory=dict)
    """By the same names: iterations that had the metric."""
    timed_episodes: float = 0.0
    """Training episodes that ended after the warm-up, and their environment steps."""
    timed_lengths: float = 0.0
    cpu_s: float = 0.0
    evaluations: list[Evaluation] = field(default_factory=list)
    cpu_s_before: list[float] = field(default_factory=list)
    """CPU-seconds of training before each evaluation."""

    @property
    def ended(self) -> bool:
        """Whether the trial is over for good; an interrupted one waits for a resume."""
        return self.status in ("finished", "failed")

    @property
    def duration_s(self) -> float | None:
        """Seconds from the start to the end of the attempt, start-up and evaluation included."""
        return None if self.ended_at is None else self.ended_at - self.started

    @property
    def last_evaluation(self) -> Evaluation | None:
        """The last evaluation of the attempt."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def all_cut(self) -> bool:
        """Whether no episode of the last evaluation came to its end."""
        last = self.last_evaluation
        return last is not None and last.num_cut >= len(last.returns) > 0

    @property
    def timed_s(self) -> float:
        """Training seconds of the timed iterations."""
        return self.combined.get("iteration_time_s", 0.0)

    @property
    def final_return(self) -> float | None:
        """The mean over the evaluations in the last `FINAL_SHARE` of the budget."""
        # A tolerance, since progress is a sum of fractions.
        finals = [each.mean for each in self.evaluations if each.progress >= 1 - FINAL_SHARE - 1e-9]
        return sum(finals) / len(finals) if finals else None

    def reached(self, spec: StudySpec) -> int | None:
        """Return the place of the first of the first two consecutive evaluations at or above the target."""
        target = spec.environment.target
        if self.status != "finished" or target is None:
            return None
        pairs = enumerate(itertools.pairwise(self.evaluations))
        return next((at for at, pair in pairs if min(each.mean for each in pair) >= target), None)

    def env_steps_per_s(self, following: Iteration | None = None) -> float | None:
        """Return env steps over training seconds after the warm-up, as if a `following` iteration had been taken in."""
        steps, seconds = int(self.combined.get("train_batch_size_actual", 0)), self.timed_s
        if following is not None and following.iteration > WARMUP_ITERATIONS:
            seconds += following.metrics.get("iteration_time_s") or 0.0
            steps += int(following.metrics.get("train_batch_size_actual") or 0)
        return steps / seconds if seconds > 0 else None

    def weighted_mean(self, name: str) -> float | None:
        """Return the mean of a metric over the training time after the warm-up; None when it is not known."""
        known = self.timed_s > 0 and self.counts.get(name) == self.timed_iterations
        return self.combined[name] / self.timed_s if known else None

    def apply(self, record: OfTrial, moment: float) -> None:
        """Take in one record of this trial, written at `moment`."""
        self.last_seen = moment
        match record:
            case TrialBuilt():
                self.timing, self.timing_reason = record.timing, record.timing_reason
                self.provisional = record.provisional
                self.engine = engine_of(record.effective)
                self.startup_time_s = record.startup_time_s
                cpus: Counter[str] = Counter()
                for place in record.placement:
                    # Several machines may have one host name; records before 0.12.1 know no other.
                    cpus[place.get("machine", place["host"])] += place["num_cpus"]
                self.cpus_per_machine = dict(cpus)
            case Iteration():
                self.add(record.iteration, record.metrics)
                if record.iteration > WARMUP_ITERATIONS:
                    self.timed_to = moment
                else:
                    self.timed_from = moment
                self.last_iteration = record
            case Evaluation():
                self.progress = record.progress
                self.evaluations.append(record)
                self.cpu_s_before.append(self.cpu_s)
            case TrialEnded():
                self.status, self.reason = record.status, record.reason
                self.ended_at = moment if record.last_seen is None else record.last_seen
                self.summary, self.checkpoint = record.summary, record.checkpoint
                self.node_loads = record.node_loads
                if record.timing is not None:
                    self.timing, self.timing_reason, self.provisional = record.timing, record.timing_reason, False

    def add(self, iteration: int, metrics: Metrics) -> None:
        """Take in the metrics of one iteration."""
        timed, seconds = iteration > WARMUP_ITERATIONS, metrics.get("iteration_time_s")
        combined, counts = self.combined, self.counts
        self.iterations_done += 1
        self.cpu_s += metrics.get("cpu_time_s") or 0.0
        for name, adding, is_weighted in _TIMED if timed else _WARM_UP:
            if (value := metrics.get(name)) is None or (is_weighted and seconds is None):
                continue
            value = value * seconds if is_weighted else value  # type: ignore[operator]
            combined[name] = adding(combined[name], value) if name in combined else value
            counts[name] = counts.get(name, 0) + 1
        if timed:
            self.timed_iterations += 1
            self.timed_episodes += metrics.get("num_episodes") or 0.0
            self.timed_lengths += metrics.get("episode_len_sum") or 0.0

    def columns(self) -> dict[str, float | int | None]:
        """Return every quantity of `study.metrics.OF_TRIALS` but those of `summary`; None where it does not exist."""
        known, combined, timed = self.evaluations, self.combined, self.timed_iterations
        lengths, episodes = self.timed_lengths, self.timed_episodes
        values: dict[str, float | int | None] = {
            "iterations": self.iterations_done or None,
            "timed_iterations": timed if self.iterations_done else None,
            "timed_env_steps": int(combined.get("train_batch_size_actual", 0)) if timed else None,
            "timed_s": self.timed_s if timed else None,
            "episode_len": lengths / episodes if episodes > 0 and lengths > 0 else None,
            "num_evaluations": len(known) or None,
            "num_eval_episodes": sum(len(each.returns) for each in known) if known else None,
            "num_cut": sum(each.num_cut for each in known) if known else None,
        }
        for name, how in OF_ITERATIONS.items():
            value = self.weighted_mean(name) if how == "weighted mean" else combined.get(name)
            if value is not None and how == "mean":
                value /= self.counts[name]
            values[name] = int(value) if value is not None and METRICS[name].whole else value
        return values

    def summarise(self, spec: StudySpec, status: Status, *, moment: float) -> Metrics:
        """Return the metrics of grain `trial` of an attempt that ends so; None where it did not get far enough."""
        end = structs.replace(self, status=status, ended_at=moment)
        return {name: metric.of(end, spec) for name, metric in METRICS.items() if metric.grain == "trial"}


# --- a study ----------------------------------------------------------------------------------------------------------


class Ledger(Struct, kw_only=True):
    """The state of a study: its trials by their numbers, its sessions, and what the latest one planned and found."""

    rows: dict[int, TrialRow] = {}
    sessions: int = 0
    num_trials: int = 0
    opened: StudyOpened | None = None
    closed: StudyClosed | None = None
    """How the latest driver ended; None while it works, or when it was killed."""
    restarts: list[tuple[int, int]] = []
    """(trial, attempt) of attempts that another attempt replaced."""
    decisions: list[StageDecided] = []
    frozen: SettingsFrozen | None = None
    """The settings that a hold-up study confirms, once they are fixed."""

    def apply(self, record: Record, moment: float) -> None:
        """Take in one record.

        Raises:
            LookupError: It is about a trial that has not started.
        """
        match record:
            case TrialStarted():
                begun = TrialRow(**structs.asdict(record), started=moment, last_seen=moment)
                if (earlier := self.rows.get(record.trial)) is not None:
                    self.restarts.append((record.trial, earlier.attempt))
                    begun.cpu_s_lost = earlier.cpu_s_lost + (earlier.summary.get("cpu_s_spent") or 0.0)
                    reserved = earlier.summary.get("cpu_s_reserved") or 0.0
                    begun.cpu_s_reserved_lost = earlier.cpu_s_reserved_lost + reserved
                self.rows[record.trial] = begun
            case OfTrial():
                if (row := self.rows.get(record.trial)) is None:
                    raise LookupError(f"{record.kind} of trial {record.trial}, which has not started")
                row.apply(record, moment)
            case StudyOpened():
                self.sessions, self.num_trials, self.closed = record.session, record.num_trials, None
                self.opened = record
            case StudyClosed():
                self.closed = record
            case StageDecided():
                self.decisions.append(record)
            case SettingsFrozen():
                self.frozen = record

    @property
    def complete(self) -> bool:
        """Whether the latest driver came to the end of its plan."""
        return self.closed is not None and self.closed.reason == "complete"

    def counts(self) -> dict[str, int]:
        """Return the number of trials by status."""
        result = {"finished": 0, "failed": 0, "interrupted": 0, "running": 0}
        for row in list(self.rows.values()):  # a copy: the display counts while the event loop adds
            result[row.status] += 1
        return result


def fold_lines(lines: Iterable[Line], records: Path, ledger: Ledger | None = None) -> Ledger:
    """Return the state that the lines of a records file lead to, from `ledger` on or from the beginning.

    Raises:
        RecordError: A line cannot follow on those before it.
    """
    ledger = Ledger() if ledger is None else ledger
    for line in lines:
        try:
            ledger.apply(line.record, line.time)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            where, rule = f"{records}: line {line.seq + 1}", "each record must follow on those before"
            got = str(error) if type(error) is LookupError else f"{type(error).__name__}: {error}"
            raise RecordError(where=where, rule=rule, got=got, fix=RESTORE) from error
    return ledger


def ledger_of(records: Path) -> Ledger:
    """Return the state that a records file leads to.

    Raises:
        RecordError: A line cannot be trusted, or cannot follow on those before it.
    """
    return fold_lines(read_lines(records), records)


def best_per_scale(rows: Iterable[TrialRow]) -> dict[int, TrialRow]:
    """Return the best finished trial of every scale, by `merit`; trials of a throughput study have none."""
    best: dict[int, TrialRow] = {}
    for row in rows:
        if row.status == "finished" and result_of(row) is not None:
            best[row.num_env_runners] = max(best.get(row.num_env_runners, row), row, key=merit)
    return dict(sorted(best.items()))


def merit(row: TrialRow) -> tuple[float, float, float, int]:
    """Return by what trials are ranked, more is better: score, return, fewest steps to the target, fewest runners.

    An answer ranks settings alike (`analysis.estimates.settings.Setting.order`).
    """
    final, steps = row.summary.get("final_return"), row.summary.get("env_steps_to_target")
    known = final if final is not None and isfinite(final) else -inf
    return result_of(row) or 0.0, known, -(inf if steps is None else steps), -row.num_env_runners


def result_of(row: TrialRow) -> float | None:
    """Return a trial's score, or its final return in a study without scores; None where it has neither."""
    score, final = row.summary.get("score"), row.summary.get("final_return")
    return score if score is not None or final is None or not isfinite(final) else final
