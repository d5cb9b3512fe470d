"""Records -> the state of a study: one row per trial, with its summary and what its times are worth."""

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from study.space.parameters import SCALE
from study.space.spec import StudySpec
from study.text import count

_ADDING = defaultdict[str, Callable[[float, float], float]](lambda: operator.add, largest=max, smallest=min)
_TIMED = tuple((name, _ADDING[how], how == "weighted mean") for name, how in OF_ITERATIONS.items())
"""What is combined of an iteration after the warm-up: the metric, how, and whether it is weighted by the time."""
_WARM_UP = tuple(each for each in _TIMED if not OF_ITERATIONS[each[0]].endswith("mean"))
"""The same for the warm-up, which enters no mean."""

# --- a trial ----------------------------------------------------------------------------------------------------------


class TrialRow(TrialStarted, frozen=False, kw_only=True):  # type: ignore[misc]  # it is the one that changes
    """A trial as far as it has come: as what its latest attempt was started, and what came of it.

    Moments are seconds since the epoch, by the driver's clock. `cpu_s` is of training, `timed` is what came after the
    warm-up, and `lost` is what earlier attempts used. `combined` and `counts` have the names of `OF_ITERATIONS`: the
    sum, the largest or the smallest value so far, and the iterations that had it.
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
    engine: str | None = None
    """Which runner and learner were built; None before, and where the records do not tell."""
    startup_time_s: float | None = None
    summary: Metrics = field(default_factory=dict)
    checkpoint: str | None = None
    last_iteration: Iteration | None = None
    progress: float = 0.0
    cpus_per_machine: dict[str, int] = field(default_factory=dict)
    """CPUs that the trial reserves, once its processes are up."""
    node_loads: list[NodeLoad] = field(default_factory=list)
    timed_from: float | None = None
    timed_to: float | None = None
    iterations_done: int = 0
    timed_iterations: int = 0
    combined: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
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
                self.engine, self.startup_time_s = engine_of(record.effective), record.startup_time_s
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


# --- what its times are worth ----------------------------------------------------------------------------------------

# A trial's times are its own while every process of it has a core: cores that the study has not reserved on a node are
# free for others, and nothing but a small rest may be done on the others (`study.machine.load` measures it).

PRESSURE_LIMIT = 0.05
"""Share of the training time in which some task waited for a CPU: from here on, processes that share cores disturb."""
FOREIGN_LIMIT = 0.1
"""Cores that others may keep busy on a node beyond those that the study leaves free there: sampling waits for its
slowest runner, so that one core with a tenth of its time lost makes the phase up to a tenth longer."""
STOLEN_SHARE = 0.02
"""Share of a virtual machine's cores that its hypervisor may withhold, where that is more than `FOREIGN_LIMIT`: it
takes a little from every core, and what it takes from all, all phases lose."""


class Label(Struct, frozen=True, kw_only=True):
    """What a trial's times are worth, and how that is known; see `TrialBuilt`."""

    timing: Timing | None
    reason: str
    provisional: bool = False


def label_at_end(row: TrialRow, *, failed: bool, lost: str = "", beside: Iterable[TrialRow] = ()) -> Label:
    """Return the label that an attempt ends with. Only `measured` is in question.

    It may have `failed`, or have `lost` a `node` or a `process`; others ran `beside` it at some time.
    """
    if row.timing != "measured":
        return Label(timing=row.timing, reason=row.timing_reason)
    runners, combined = int(row.setting[SCALE]), row.combined
    losses = ["the trial failed"] if failed else []
    losses += [f"a {lost} of the trial died"] if lost else []
    for number, what, became in (
        (runners - int(combined.get("num_healthy_env_runners", runners)), "runner", "lost"),
        (int(combined.get("num_env_runner_restarts", 0)), "runner", "restarted"),
        (int(combined.get("num_dropped_samples", 0)), "sample", "dropped"),
    ):
        losses += [f"{count(number, what)} {became}"] if number > 0 else []
    # Where processes share cores because their environments wait, the pressure tells whether any of them had to wait
    # for one, whoever held it.
    pressure = row.weighted_mean("cpu_pressure")
    calm = row.provisional and pressure is not None and pressure < PRESSURE_LIMIT
    losses += [] if calm else disturbances(row.node_loads, reserved(row, beside))
    if losses:
        return Label(timing="tainted", reason=", ".join(losses))
    if not row.provisional:
        return Label(timing="measured", reason=row.timing_reason)
    shown = "unknown" if pressure is None else f"{pressure:.1%}"
    return Label(timing="measured" if calm else "oversubscribed", reason=f"{row.timing_reason}; CPU pressure {shown}")


def reserved(row: TrialRow, others: Iterable[TrialRow]) -> dict[str, tuple[float, float]]:
    """Return what a study held on the machines of a trial in its timed part, as means, with others that ran beside it.

    Machine -> CPUs of all trials, and of those that ended meanwhile, whose time looks like that of strangers.
    """
    begin, end = row.timed_from, row.timed_to
    if begin is None or end is None or end <= begin:
        return {}
    result = {machine: (float(own), 0.0) for machine, own in row.cpus_per_machine.items()}
    for other in others:
        until = inf if other.ended_at is None else other.ended_at
        share = max(min(until, end) - max(other.started, begin), 0.0) / (end - begin)
        for machine, (held, ended) in result.items():
            # One whose processes never came up may have begun them anywhere.
            here = other.cpus_per_machine.get(machine, 0) if other.cpus_per_machine else other.num_cpus
            result[machine] = (held + here * share, ended + here * share * (until < end))
    return result


def disturbances(loads: Sequence[NodeLoad], reserved: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return in words what disturbed a trial on its nodes, of which `reserved` was held; nothing when it was alone."""
    found = []
    for load in loads:
        held, ended = reserved.get(load.machine or load.host, (load.num_cores, 0.0))
        if load.foreign_cores > max(load.num_cores - held, 0.0) + FOREIGN_LIMIT + ended:
            most, busy = f" (most by {load.largest})" if load.largest else "", f"{load.foreign_cores:.1f} of"
            found.append(f"foreign load on {load.host}: {busy} {load.num_cores} cores busy with other processes{most}")
        if load.stolen_cores > max(FOREIGN_LIMIT, STOLEN_SHARE * load.num_cores):
            lost = f"{load.stolen_cores:.1f} of {load.num_cores} cores"
            found.append(f"stolen time on {load.host}: its hypervisor withheld {lost}")
    return found


# --- a study ----------------------------------------------------------------------------------------------------------


class Ledger(Struct, kw_only=True):
    """The state of a study: its trials by their numbers, its sessions, and what the latest one planned and found.

    `closed` is how the latest driver ended, None while it works or when it was killed; `frozen` are the settings that a
    hold-up study confirms, once they are fixed.
    """

    rows: dict[int, TrialRow] = {}
    sessions: int = 0
    num_trials: int = 0
    opened: StudyOpened | None = None
    closed: StudyClosed | None = None
    decisions: list[StageDecided] = []
    frozen: SettingsFrozen | None = None

    def apply(self, record: Record, moment: float) -> None:
        """Take in one record; a `LookupError` says that it is about a trial that has not started."""
        match record:
            case TrialStarted():
                begun = TrialRow(**structs.asdict(record), started=moment, last_seen=moment)
                if (earlier := self.rows.get(record.trial)) is not None:
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

    def counts(self) -> Counter[str]:
        """Return the number of trials by status."""
        return Counter(row.status for row in list(self.rows.values()))  # a copy: the display counts while others add


def fold_lines(lines: Iterable[Line], records: Path, ledger: Ledger | None = None) -> Ledger:
    """Return the state that the lines of a records file lead to, from `ledger` on or from the beginning."""
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
