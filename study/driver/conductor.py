"""The course of a study without its engine: what is dealt out, what is recorded, when it ends.

Tune's searcher and callback are thin shells around this class, so that every rule can be tested without a cluster.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import structs

from study.designs.base import start_of
from study.designs.proposals import Proposer
from study.designs.registry import design_of
from study.driver.trial_queue import TrialQueue
from study.errors import RecordError
from study.machine.load import NodeLoad
from study.planning import Plan, label_at_start
from study.records.files import usable
from study.records.folder import StudyFolder, unpack_policy, write_table
from study.records.ledger import Ledger, TrialRow, label_at_end
from study.records.records import (
    Evaluation,
    Iteration,
    Record,
    RecordLog,
    Status,
    StudyClosed,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
)
from study.space.spec import StudySpec
from study.text import count, mask_credentials

TAKEN_BACK = 2
"""How often a trial that lost its node or a process runs again in one session; after that it has failed, since it may
be the trial that kills them."""
FEWEST_FAILURES = 4
"""Trials that must fail in the same way, before one has finished, for a study to be broken; more where it has more
scales, since one scale may fail alone."""
MEMORY_PAUSE_S = 30.0
"""No trial starts so long after one that Ray ended because memory was short: what else fills it may be gone by then."""
MOST_SETBACKS = 4
"""Such ends, and deaths of the engine, in a row, without a trial that finished, after which a session goes on."""
TABLE_INTERVAL_S = 30.0
"""How often the table of trials is written while trials end."""


class Fault(NamedTuple):
    """How a trial ended that did not finish."""

    reason: str
    loss: Literal["node", "process", "memory"] | None = None
    """What died under it; `memory`: Ray ended it as its node had none left."""
    way: str = ""
    """What failures of one kind have in common, such as the line of a person's code; empty: the reason without its
    digits, since steps, runners, addresses and values differ."""


class Conductor:
    """Deals out the trials of one driver's session and records what becomes of them.

    Attributes:
        ledger: The state that the records have led to.
        queue: The trials that wait and those that run.
        stop: How the session ends before its plan; None while it does not.
        is_broken: Whether it ends because its first trials all failed in the same way.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        plan: Plan,
        folder: StudyFolder,
        log: RecordLog,
        ledger: Ledger,
        provenance: dict[str, Any],
        deadline: float | None = None,
        until: str | None = None,
        keep_going: bool = False,
    ) -> None:
        """Open a session: end the attempts that a killed driver left.

        `log` are the study's records, open, which have led to `ledger`. The time budget ends at `deadline`, on the
        clock of `time.monotonic`; `until` is the last stage of the design that this session runs.
        """
        self.spec, self.plan, self.folder, self.ledger = spec, plan, folder, ledger
        self.stop: StudyClosed | None = None
        self.is_broken, self._keep_going = False, keep_going
        self._log, self._proposer, self.design = log, Proposer(spec, ledger), design_of(spec)
        self._course = self.design.course(spec, ledger, self._append, until)
        self.queue = TrialQueue(plan, ledger.rows, deadline=deadline)
        self._beside: dict[int, list[TrialRow]] = {}
        """Trials that run -> the attempts that have run beside them."""
        self._failures: list[str] = []
        """In which way each trial failed in this session."""
        self._losses: Counter[int] = Counter()
        """Trial -> how often it was lost in this session."""
        self._setbacks, self._starts_after = 0, 0.0
        self._table_written = -TABLE_INTERVAL_S
        self._append(
            StudyOpened(
                session=ledger.sessions + 1,
                num_trials=plan.num_trials,
                cluster=plan.cluster.to_json(),
                provenance=provenance,
                space_digest=spec.digest(),
            )
        )
        for trial, row in ledger.rows.items():
            if row.status == "running":  # it may have been dead for days
                self.end(trial, "interrupted", "the driver was killed", last_seen=row.last_seen)

    def _append(self, record: Record) -> None:
        line = self._log.append(record)
        self.ledger.apply(line.record, line.time)

    # --- dealing out -------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """What the study is at, for people; empty where it has no phases."""
        return self._course.phase_name

    @property
    def exhausted(self) -> bool:
        """Whether no further trial will be dealt out in this session."""
        # One that is lost runs again, and the ends of those that run may decide on what follows.
        queue = self.queue
        return self.must_stop or not (queue.running or queue.part_ended or queue.startable())

    def next_trial(self) -> TrialStarted | None:
        """Record and return the trial to start now; None when all have to wait."""
        waits = self.stop is not None or time.monotonic() < self._starts_after
        request = None if waits else self.queue.next()
        if request is None:
            return None
        needs, rows = self.plan.needs(request), self.ledger.rows
        started = start_of(
            self.spec,
            request,
            *self._proposer.ask(request),
            attempt=rows[request.trial].attempt + 1 if request.trial in rows else 1,
            num_cpus=needs.total.num_cpus,
            execution=needs.execution,
        )
        self._course.check(started)
        self._append(started)
        for others in self._beside.values():
            others.append(rows[request.trial])
        self._beside[request.trial] = [rows[other] for other in self._beside]
        self.queue.begin(request)
        return started

    # --- recording ---------------------------------------------------------------------------------------------

    def report(self, trial: int, records: Iterable[TrialBuilt | Iteration | Evaluation], *, progress: float) -> None:
        """Record what a trial reported: with the label of its timing, and the rate of its steps so far."""
        row = self.ledger.rows[trial]
        for record in records:
            if isinstance(record, Iteration):
                rate = row.env_steps_per_s(record)
                record = structs.replace(record, metrics={**record.metrics, "env_steps_per_s": rate})
            elif isinstance(record, TrialBuilt):
                spec, nodes = self.plan.needs(self.queue.requests[trial]).spec, record.processes_per_node
                label = label_at_start(spec, self.plan.cluster, row.num_env_runners, row.execution, nodes)
                said = {"timing": label.timing, "timing_reason": label.reason, "provisional": label.provisional}
                record = structs.replace(record, **said)
            self._append(record)
        row.progress = progress

    def finish(self, trial: int, policy: bytes | None, node_loads: Sequence[NodeLoad] = ()) -> None:
        """Record a trial that came to its end, with its policy, packed, and what else its nodes did meanwhile."""
        row = self.ledger.rows[trial]
        row.node_loads = list(node_loads)
        final = row.summarise(self.spec, "finished", moment=self._log.now())["final_return"]
        if self.spec.learns and (final is None or not math.isfinite(final)):
            self.end(trial, "failed", "the final evaluation must give a return that is a number, got none")
            return
        checkpoint = None
        if policy is not None:
            target = self.folder.checkpoint(trial)
            with usable(target, "a folder that can be written", "Free some space, then run again with --resume."):
                unpack_policy(policy, target)
            checkpoint = str(target.relative_to(self.folder.path))
        self._setbacks = 0
        self.end(trial, "finished", "", checkpoint=checkpoint)

    def fail(self, trial: int, fault: Fault, said: str = "") -> None:
        """Record that a trial did not finish, and what Ray has `said`; a lost one runs again, a few times."""
        row = self.ledger.rows[trial]
        if row.status != "running":
            return
        with contextlib.suppress(OSError):
            if said:
                self.folder.tracebacks.mkdir(exist_ok=True)
                file = self.folder.tracebacks / f"trial_{trial:05d}_{row.attempt}.txt"
                file.write_text(mask_credentials(said))
        lost = "process" if fault.loss == "memory" else fault.loss
        if fault.loss == "memory" and self.stop is None:
            self._starts_after = time.monotonic() + MEMORY_PAUSE_S
            self._set_back("Ray ended a trial as memory was short.")
        if self.stop is not None:
            # While the study is being stopped, a process that dies was stopped too: the trial runs again on resume.
            self.end(trial, "interrupted", self.stop.detail)
        elif lost is None:
            self.end(trial, "failed", fault.reason, way=fault.way)
        elif self._losses[trial] == TAKEN_BACK:
            self.end(trial, "failed", f"{fault.reason} (lost {TAKEN_BACK + 1} times)", lost=lost)
        else:
            self._losses[trial] += 1
            self.end(trial, "interrupted", fault.reason, lost=lost)
            self.queue.take_back(trial)

    def end(
        self,
        trial: int,
        status: Status,
        reason: str,
        *,
        checkpoint: str | None = None,
        way: str = "",
        lost: str | None = None,
        last_seen: float | None = None,
    ) -> None:
        """Record the end of an attempt, with `reason` unless it finished; a second end of the same attempt is ignored.

        `way` and `lost` are as of `Fault`; `last_seen` is when it ended, in seconds since the epoch, if before now.
        """
        row = self.ledger.rows[trial]
        self.queue.running.pop(trial, None)
        if row.status != "running":
            return
        summary = row.summarise(self.spec, status, moment=self._log.now() if last_seen is None else last_seen)
        label = label_at_end(row, failed=status == "failed", lost=lost or "", beside=self._beside.pop(trial, []))
        self._append(
            TrialEnded(
                trial=trial,
                attempt=row.attempt,
                status=status,
                reason=reason,
                summary=summary,
                checkpoint=checkpoint,
                timing=label.timing,
                timing_reason=label.reason,
                node_loads=row.node_loads,
                last_seen=last_seen,
            )
        )
        if row.ended:
            self.queue.note_end(row)
        if status == "failed":
            self._stop_if_broken(reason, way or "".join(each for each in reason if not each.isdigit()))
        if time.monotonic() - self._table_written > TABLE_INTERVAL_S:
            self.write_table()

    def _stop_if_broken(self, reason: str, way: str) -> None:
        """End the session where all trials of it have failed, and in the same way: so will the others."""
        self._failures.append(way)
        enough = len(self._failures) >= max(FEWEST_FAILURES, len(self.spec.scales))
        works = any(row.status == "finished" for row in self.ledger.rows.values())
        if enough and not works and len({*self._failures}) == 1 and not self._keep_going and self.stop is None:
            self.is_broken = True
            trials = count(len(self._failures), "trial")
            fix = "Mend it and start a new study, or go on with the same command and --resume --keep-going."
            self.end_early("error", f"the first {trials} failed, all in the same way: {reason.rstrip('.')}. {fix}")

    def write_table(self) -> None:
        """Write the table of trials, for people and for MLflow; on a full disk it stays as it was."""
        self._table_written = time.monotonic()
        with contextlib.suppress(OSError):  # it is made of the records, and every session writes it again
            write_table(self.folder.table, self.ledger.rows.values())

    def tune_died(self, reason: str) -> None:
        """Take back the trials that ran when the engine died under them, as if each had lost its node."""
        self._set_back(reason)
        for trial in list(self.queue.running):
            self.fail(trial, Fault(reason, "node"))

    def _set_back(self, reason: str) -> None:
        """Count what no trial is the cause of; after too many in a row it is the machine, and the session ends."""
        self._setbacks += 1
        if self._setbacks > MOST_SETBACKS:
            fix = "Free memory, or run fewer trials at once, then run the same command with --resume."
            self.end_early("error", f"{self._setbacks} times in a row: {reason} {fix}")

    # --- ending ------------------------------------------------------------------------------------------------

    def end_early(self, reason: Literal["stopped", "time budget", "error"], detail: str) -> None:
        """Deal out no further trial, and let the engine stop those that run. The first reason stays."""
        self.stop = self.stop or StudyClosed(session=self.ledger.sessions, reason=reason, detail=detail)

    @property
    def must_stop(self) -> bool:
        """Whether running trials are to be stopped now; takes the decision that is due, and looks at the clock."""
        queue, course = self.queue, self._course
        try:
            if course.decides and not queue.running and self.stop is None:
                while course.is_due and not queue.waiting:
                    queue.replace(course.decide())
                if not course.is_due:
                    queue.replace([])
        except RecordError as error:  # a full disk, for instance; the decision is taken again by a resume
            self.end_early("error", str(error))
        if queue.deadline is not None and self.stop is None:
            if time.monotonic() >= queue.deadline:
                self.end_early("time budget", "the time budget is used up")
            elif queue.waiting and not queue.running and not queue.part_ended and not queue.startable():
                self.end_early("time budget", "no further trial would end within the time budget")
        return self.stop is not None

    def close(self) -> StudyClosed:
        """Record the end of the session; trials that were still running wait for a resume.

        Where even that cannot be written (a full disk), what is returned says so.
        """
        stop, session = self.stop, self.ledger.sessions
        try:
            for trial, row in self.ledger.rows.items():
                if row.status == "running":
                    self.end(trial, "interrupted", stop.detail if stop else "the driver ended")
            all_ended = not self.queue.waiting and all(row.ended for row in self.ledger.rows.values())
            closed = stop or StudyClosed(session=session, reason="error")
            if all_ended and (stop is None or not self._course.phase_name):
                reason, detail = self._course.how_it_ended()
                closed = StudyClosed(session=session, reason=reason, detail=detail)  # type: ignore[arg-type]
            self._append(closed)
        except (RecordError, OSError) as error:
            return StudyClosed(session=session, reason="error", detail=str(error))
        self.write_table()
        return closed
