"""What the records of one trial must be, given the request for it. Pure.

A trial is the answer to one request of the protocol. Its start must repeat the request, what was built must be what the
start says, every iteration must go on where the one before ended, evaluations must come where they are due, and the end
must be the sum of all of it. What a trial measured (returns, losses, seconds) follows from nothing but the training.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from study.designs.holdup.calibration import predicted_cpu_s
from study.designs.holdup.certificate.recorded import LEAST, RELATIVE, Session, Study, same
from study.designs.holdup.phases import runners_of
from study.designs.starts import start_of
from study.planning.budget import Budget, evaluation_due, trial_budget
from study.planning.needs import execution_of, label_at_start, num_cpus, num_sampling_processes, processes
from study.records.ledger import Ledger, TrialRow
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    Record,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
)
from study.records.request import TrialRequest
from study.records.sums import PHASES
from study.records.timing import Label, label_at_end
from study.space.parameters import SCALE
from study.space.settings import differences, to_be_built
from study.space.variants import spec_of

CLOCK_S = 10.0
"""Seconds that pass at most between the end of a trial and the writing of it."""
LEARNER = ("policy_loss", "vf_loss", "entropy", "kl")
"""Numbers of the learner that no two trainings on different seeds have in common."""
_NO_LABEL = Label(timing="measured", reason="")
"""Of a trial that has not been built."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A trial, and what is wrong with its records."""

    row: TrialRow | None
    """None where the records do not begin with its start."""
    ended_at: int
    """Number of the line of its end; of its last line where it has none."""
    broken: tuple[str, ...]
    returns: tuple[tuple[float, ...], ...]
    """Of every evaluation of the last attempt."""
    learner: tuple[tuple[float | None, ...], ...]
    """`LEARNER` of every iteration of the last attempt."""


def check_trial(study: Study, trial: int) -> Checked:
    """Return the state that the records of a trial lead to, with a message for every rule that they break."""
    history = study.histories[trial]
    first = history[0].record
    if not isinstance(first, TrialStarted):
        got = f"{first.kind} (line {history[0].seq + 1})"
        return Checked(None, -1, (f"trial {trial}: trial_started must come first, got {got}.",), (), ())
    walk = _Walk(study, trial)
    broken = [f"{study.where(trial)}: {rule}." for line in history for rule in walk.take(line)]
    return Checked(walk.row, history[-1].seq, tuple(broken), tuple(walk.returns), tuple(walk.learner))


def _unlike(wanted: Mapping[str, object], found: Mapping[str, object], *, why: str = "", at: str = "") -> Iterator[str]:
    """Yield a message for every value that is not the wanted one."""
    for name, value in wanted.items():
        if not same(value, got := found.get(name)):
            yield f"{name} must be {value}{why}, got {got}{at}"


class _Walk:
    """One trial, line by line."""

    def __init__(self, study: Study, trial: int) -> None:
        self._study, self._spec, self._trial = study, study.spec, trial
        known = 0 <= trial < len(study.requests)
        self._request: TrialRequest | None = study.requests[trial] if known else None
        self._ledger = Ledger()
        self._before: Record | None = None
        self._moment = 0.0
        self._attempt, self._over = 0, ""
        self._begin()
        self._sampling = 1
        self.returns: list[tuple[float, ...]] = []
        self.learner: list[tuple[float | None, ...]] = []

    def _begin(self) -> None:
        """Forget what an attempt before has reported."""
        self._iterations, self._env_steps, self._wall_time_s, self._progress = 0, 0, 0.0, 0.0
        self._due, self._label = False, _NO_LABEL

    @property
    def row(self) -> TrialRow:
        return self._ledger.rows[self._trial]

    def take(self, line: Line) -> Iterator[str]:
        """Yield the rules that a line breaks, and go on behind it."""
        record = line.record
        match record:
            case TrialStarted():
                yield from self._started(record, line)
            case TrialBuilt():
                yield from self._in_order(record, TrialStarted)
                yield from self._built(record, line)
            case Iteration():
                yield from self._in_order(record, TrialBuilt, Iteration, Evaluation)
                yield from self._iteration(record)
            case Evaluation():
                yield from self._in_order(record, Iteration)
                yield from self._evaluation(record)
            case TrialEnded():
                yield from self._in_order(record, TrialStarted, TrialBuilt, Iteration, Evaluation)
                yield from self._ended(record, line)
        self._ledger.apply(record, line.time)
        self._before, self._moment = record, line.time

    def _in_order(
        self, record: TrialBuilt | Iteration | Evaluation | TrialEnded, *before: type[Record]
    ) -> Iterator[str]:
        if not isinstance(self._before, before):
            got = "nothing" if self._before is None else self._before.kind
            yield f"{record.kind} must follow on {' or '.join(each.kind for each in before)}, got it after {got}"
        if record.attempt != self._attempt:
            yield f"attempt of {record.kind} must be {self._attempt}, got {record.attempt}"
        if self._due and not isinstance(record, Evaluation | TrialEnded):
            yield f"an evaluation was due at iteration {self._iterations}, got {record.kind}"
            self._due = False

    # --- the start -----------------------------------------------------------------------------------------------

    def _started(self, record: TrialStarted, line: Line) -> Iterator[str]:
        if self._over:
            yield f"runs once, got attempt {record.attempt} after it had {self._over}"
        elif self._before is not None and not isinstance(self._before, TrialEnded):
            yield f"must have ended before it begins again, got {self._before.kind}"
        if record.attempt != self._attempt + 1:
            yield f"attempt must be {self._attempt + 1}, got {record.attempt}"
        self._attempt = record.attempt
        self._begin()
        self.returns.clear()
        self.learner.clear()
        self._budget: Budget = trial_budget(self._spec.budget, record.iterations)
        self._own = spec_of(self._spec, record.variant if record.variant in ("stock", "measured") else "study")
        self._sampling = num_sampling_processes(self._own, int(record.setting[SCALE]), record.execution)
        session = self._study.session_of(line)
        if self._request is None:
            yield f"no decision asked for it, got {record.stage or 'no stage'}, seed {record.seed}"
        elif session is None or line.seq < self._study.asked_at[self._trial]:
            yield "must begin after the decision that asks for it"
        else:
            yield from self._as_asked(record, self._request, session)

    def _as_asked(self, record: TrialStarted, request: TrialRequest, session: Session) -> Iterator[str]:
        scale = request.num_env_runners
        runners = runners_of(self._spec, request.variant, scale, session.cluster)
        execution = execution_of(self._own, scale, session.cluster)
        wanted = start_of(
            self._spec,
            request,
            record.proposed,
            record.optuna_number,
            attempt=record.attempt,
            num_env_runners=runners,
            num_cpus=num_cpus(self._own, runners, execution),
            execution=execution,
            predicted_cpu_s=None
            if self._study.asked_at[self._trial] < 0  # the calibration, which the model is fitted to
            else predicted_cpu_s(self._spec, self._study.decisions, request, record.setting),
        )
        yield from _unlike(asdict(wanted), asdict(record), why=", as it was asked for")
        if request.setting is None and record.optuna_number is None:
            yield "optuna_number must be that of a proposal, got None"

    # --- what was built ------------------------------------------------------------------------------------------

    def _built(self, record: TrialBuilt, line: Line) -> Iterator[str]:
        row, session = self.row, self._study.session_of(line)
        for difference in differences({**to_be_built(self._spec, row.setting), "seed": row.seed}, record.effective):
            yield f"effective must be what was asked, {difference}"
        runners, sampling = int(row.setting[SCALE]), self._sampling
        wanted: dict[str, object] = {
            "num_sampling_processes": sampling,
            "sum of processes_per_node": len(processes(self._own, runners, row.execution)),
            "processes_per_node": dict(Counter(str(place.get("node")) for place in record.placement)),
            "hostnames": sorted({place["host"] for place in record.placement if place.get("runners")}),
            "CPUs of the placement": row.num_cpus,
        }
        found: dict[str, object] = {
            "num_sampling_processes": record.effective.get("num_sampling_processes"),
            "sum of processes_per_node": sum(record.processes_per_node.values()),
            "processes_per_node": record.processes_per_node,
            "hostnames": record.effective.get("hostnames"),
            "CPUs of the placement": sum(place["num_cpus"] for place in record.placement),
        }
        yield from _unlike(wanted, found, why=" in what was built")
        if session is not None:
            yield from self._as_the_others(record, session)
            yield from self._labelled(record, session)

    def _as_the_others(self, record: TrialBuilt, session: Session) -> Iterator[str]:
        kind = self.row.variant, self.row.execution
        for name, values in session.alike.get(kind, {}).items():
            of_study = name == "learner_class"  # a resume on another machine must not go on with another learner
            if of_study:
                alike = [each.alike[kind] for each in self._study.sessions if kind in each.alike]
                values = sum((each[name] for each in alike if name in each), Counter())
            usual, count = values.most_common(1)[0]
            got = str(record.effective[name]) if name in record.effective else "nothing"
            if got != usual and (of_study or values[got] < count):
                yield f"{name} of effective must be {usual}, as of all that run alike, got {got}"

    def _labelled(self, record: TrialBuilt, session: Session) -> Iterator[str]:
        """The label of the times is that of the way in which the trial runs."""
        row = self.row
        group = 1
        if self._request is not None and self._request.group is not None:
            group = sum(each.group == self._request.group for each in self._study.requests)
        started = label_at_start(
            self._own,
            session.cluster,
            num_env_runners=int(row.setting[SCALE]),
            execution=row.execution,
            processes_per_node=record.processes_per_node,
            beside=(group - 1) * row.num_cpus,
        )
        wanted = (started.timing, started.provisional) if row.scale is None else ("emulated", False)
        if (record.timing, record.provisional) != wanted:
            words, got = (
                f"{'provisionally ' if provisional else ''}{timing}"
                for timing, provisional in (wanted, (record.timing, record.provisional))
            )
            yield f"timing must be {words}, as it ran {row.execution}, got {got}"
        self._label = Label(timing=record.timing, reason=record.timing_reason, provisional=record.provisional)

    # --- training ------------------------------------------------------------------------------------------------

    def _iteration(self, record: Iteration) -> Iterator[str]:
        metrics, number = record.metrics, self._iterations + 1
        if self._progress >= 1:
            yield f"must end when its budget is used up, got iteration {record.iteration}"
        seconds = metrics.get("iteration_time_s") or 0.0
        episodes, returns = metrics.get("num_episodes"), metrics.get("episode_return_sum")
        parts = [part for name in PHASES if (part := metrics.get(name)) is not None]
        wanted = {
            "iteration": number,
            "env_steps": self._env_steps + (metrics.get("train_batch_size_actual") or 0),
            "wall_time_s": self._wall_time_s + seconds,
            "env_steps_per_s": self.row.sums.env_steps_per_s_with(number, metrics),
            "sum of the phases": seconds if len(parts) == len(PHASES) else None,
            "training_return": returns / episodes if episodes and returns is not None else None,
            "episode_return_sum": returns if episodes else returns and 0.0,
        }
        found = {
            "iteration": record.iteration,
            "env_steps": record.env_steps,
            "wall_time_s": record.wall_time_s,
            "env_steps_per_s": metrics.get("env_steps_per_s"),
            "sum of the phases": sum(parts) if len(parts) == len(PHASES) else None,
            "training_return": metrics.get("training_return", wanted["training_return"]),
            "episode_return_sum": returns,
        }
        yield from _unlike(wanted, found, why=", as the records before and its parts say", at=f" at iteration {number}")
        yield from (f"{rule} at iteration {number}" for rule in self._of_runners(metrics))
        before = self._progress
        self._iterations, self._env_steps, self._wall_time_s = record.iteration, record.env_steps, record.wall_time_s
        self._progress = self._budget.progress(
            env_steps=record.env_steps, iterations=record.iteration, time_s=record.wall_time_s
        )
        if self._budget.time_s is None:  # else no record has the time at which the budget was checked
            self._due = evaluation_due(before, self._progress, self._own.evaluation.num_evaluations)
        self.learner.append(tuple(metrics.get(name) for name in LEARNER))

    def _of_runners(self, metrics: Mapping[str, float | None]) -> Iterator[str]:
        slowest, usual = metrics.get("slowest_runner_time_s"), metrics.get("mean_runner_time_s")
        if slowest is not None and usual is not None:
            apart, alone = slowest - usual, self._sampling == 1
            if apart < -RELATIVE * slowest or (alone and apart > RELATIVE * slowest):
                rule = "equal to" if alone else "at least"
                yield f"slowest_runner_time_s must be {rule} mean_runner_time_s={usual}, got {slowest}"
        so_far = {"num_dropped_samples": self.row.num_dropped_samples, "num_env_runner_restarts": self.row.num_restarts}
        for name, least in so_far.items():
            if (count := metrics.get(name)) is not None and count < least:  # RLlib counts from the start of the trial
                yield f"{name} must be at least {least}, as before, got {count}"
        healthy, runners = metrics.get("num_healthy_env_runners"), self.row.setting[SCALE]
        if healthy is not None and (healthy > runners or (self.row.execution == "emulated" and healthy < runners)):
            yield f"num_healthy_env_runners must be {runners}, got {healthy}"

    def _evaluation(self, record: Evaluation) -> Iterator[str]:
        by_clock = self._budget.time_s is not None  # then no record has the time at which the budget was checked
        if not self._due and not by_clock:
            yield f"no evaluation was due, got one at iteration {record.iteration}"
        self._due = False
        if by_clock:
            self._progress = record.progress
        episodes = self._own.evaluation.episodes
        wanted = {
            "iteration": self._iterations,
            "env_steps": self._env_steps,
            "wall_time_s": self._wall_time_s,
            "progress": self._progress,
            "number of episodes": episodes,
        }
        found = {name: getattr(record, name) for name in list(wanted)[:-1]} | {
            "number of episodes": len(record.returns)
        }
        yield from _unlike(wanted, found, why=" in an evaluation", at=f" at step {record.env_steps}")
        if not 0 <= record.num_cut <= episodes:
            yield f"num_cut must be from 0 to {episodes}, got {record.num_cut} at step {record.env_steps}"
        self.returns.append(tuple(record.returns))

    # --- the end -------------------------------------------------------------------------------------------------

    def _ended(self, record: TrialEnded, line: Line) -> Iterator[str]:
        row = self.row
        finished = record.status == "finished"
        if self._over:
            yield f"ends once, got {record.status} after it had {self._over}"
        if finished:
            yield from self._finished()
        if (record.reason == "") != finished:
            yield f"a reason must be there unless it finished, got {record.status} with {record.reason!r}"
        if record.last_seen is not None and (record.status != "interrupted" or record.last_seen != self._moment):
            yield f"last_seen must be {self._moment}, the time of its last record, got {record.last_seen}"
        checkpoint = f"checkpoints/trial_{self._trial:05d}" if finished else None
        yield from _unlike({"checkpoint": checkpoint}, {"checkpoint": record.checkpoint})
        yield from self._label_that_stays(record)
        row.node_loads = record.node_loads
        moment = line.time if record.last_seen is None else record.last_seen
        again = {
            name: value if value is None or math.isfinite(value) else None  # as JSON writes it
            for name, value in row.summarise(self._spec, record.status, moment=moment).items()
        }
        session = self._study.session_of(line)
        for name in sorted(again.keys() & {*record.summary, *(session.summary if session else ())}):
            least = CLOCK_S * row.num_cpus if name == "cpu_s_reserved" else LEAST
            if not same(again[name], got := record.summary.get(name), least=least):
                yield f"{name} of its summary must be {again[name]}, as its records say, got {got}"
        if record.status != "interrupted":
            self._over = record.status

    def _finished(self) -> Iterator[str]:
        if self._due:
            yield f"an evaluation was due at iteration {self._iterations}, got none"
        if self._progress < 1:
            limits = {"env_steps": self._budget.env_steps, "iterations": self._budget.iterations}
            wanted = ", ".join(f"{limit:,} {name}" for name, limit in limits.items() if limit is not None)
            got = f"{self._env_steps:,} env_steps and {self._iterations} iterations"
            yield f"must have used up its budget ({wanted}) to be finished, got {got}"

    def _label_that_stays(self, record: TrialEnded) -> Iterator[str]:
        """The label at the end is the one of the start, unless the record says what happened in between."""
        label, row = self._label, self.row
        if label is _NO_LABEL:
            if record.timing is not None:
                yield f"a trial that was never built has no timing, got {record.timing}"
            return
        wanted = label_at_end(
            label,
            failed=record.status == "failed",
            num_dropped_samples=row.num_dropped_samples,
            num_lost_runners=row.num_lost_runners,
            num_restarts=row.num_restarts,
            cpu_pressure=row.sums.mean_cpu_pressure(),
        )
        # The reason alone says what others did on its nodes, or what became of its group.
        in_group = self._request is not None and self._request.group is not None
        explained = record.timing == "tainted" and record.timing_reason not in ("", wanted.reason)
        if label.timing == "measured" and explained and (in_group or wanted.timing != "tainted"):
            return
        if record.timing != wanted.timing or (
            wanted.timing != "tainted" and not label.provisional and record.timing_reason != wanted.reason
        ):
            got = f"{record.timing} ({record.timing_reason})"
            yield f"timing must be {wanted.timing} ({wanted.reason}) at its end, got {got}"
