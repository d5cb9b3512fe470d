"""What steers a hold-up study: it records decisions, guards the test seeds and keeps the budget. Imports no engine.

The decisions themselves are made in `study.designs.holdup.machine`, which is pure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from study.designs.base import Course
from study.designs.holdup import machine, phases
from study.designs.holdup.calibration import predicted_cpu_s
from study.designs.holdup.evidence import mean
from study.errors import RecordError
from study.planning.plan import Plan
from study.records.ledger import Ledger, TrialRow
from study.records.records import Record, TrialStarted
from study.records.request import TrialRequest, numbered
from study.space.parameters import Value
from study.space.settings import STAGES, resolve
from study.space.spec import StudySpec

HOPELESS = 0.5
"""Share of the time that the later stages need. A session that has less left cannot finish them: it does not cut its
search short for them, and a resume goes on with the search."""


class StageKeeper(Course):
    """Keeps a study to its protocol."""

    decides = True

    def __init__(
        self,
        spec: StudySpec,
        plan: Plan,
        ledger: Ledger,
        append: Callable[[Record], Any],
        *,
        until: str | None = None,
        announce: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Take up a study where its records end; for the arguments see `Design.course`.

        Raises:
            RecordError: Its decisions are of another version of the protocol.
        """
        phases.check_version(ledger.decisions)
        self._spec, self._holdup = spec, phases.holdup_of(spec)
        self._plan, self._ledger, self._append = plan, ledger, append
        self._until, self._announce = until, announce
        self._test_seeds = set(self._holdup.test_seeds.seeds)

    @property
    def cancelled(self) -> set[int]:
        """Trials that were asked for and are not run."""
        return machine.cancelled_by(self._ledger.decisions)

    @property
    def phase(self) -> phases.Phase | None:
        """What runs now; None at the end of the protocol."""
        return phases.current(self._holdup, self._ledger.decisions)

    @property
    def phase_name(self) -> str:
        """What runs now, for people."""
        return self.phase.name if self.phase else ""

    @property
    def is_due(self) -> bool:
        """Whether a decision follows: not at the end, nor where the session is to end before the next stage."""
        stages, phase = list[str](STAGES), self.phase
        return phase is not None and (self._until is None or stages.index(phase.stage) <= stages.index(self._until))

    def how_it_ended(self) -> tuple[str, str]:
        """Return reason and detail of a session that has nothing left to run."""
        if self.phase is None:
            return "complete", ""
        return "until", f"the stages up to {self._until} are complete, {self.phase.stage} comes next"

    def decide(self, left: Sequence[int], reason: str) -> list[TrialRequest]:
        """Record the decision that closes the current phase, and return the trials that follow from it."""
        decisions = self._ledger.decisions
        first = len(machine.requests_of(self._spec, decisions))
        step = machine.decide(self._spec, self._ledger.rows, decisions, cancelled=left, reason=reason)
        if step.frozen is not None and self._ledger.frozen is None:
            self._append(step.frozen)
        self._append(step.decision)
        if step.frozen is not None:
            self._announce(f"Settings frozen before the first test seed: winner {step.frozen.winner}.")
        return list(numbered(machine.requests_of(self._spec, decisions))[first:])

    def check(self, started: TrialStarted) -> None:
        """Refuse a test seed for a setting that is not frozen: what it was chosen by must never judge it.

        Raises:
            RecordError: The seed belongs to the confirmation, and the setting is not on record as frozen; or the trial
                would play evaluation episodes of the confirmation that are not its own.
        """
        self._check_episodes(started)
        frozen = self._ledger.frozen
        if started.seed not in self._test_seeds:
            return
        allowed = started.stage in ("confirm", "measure") and frozen is not None
        if not allowed or (started.stage == "confirm" and started.digest not in frozen.settings):  # type: ignore[union-attr]
            raise RecordError(
                where=f"trial {started.trial}",
                rule=f"test seed {started.seed} is for settings that are frozen",
                got=f"{started.digest} in stage {started.stage}",
                fix="This is a fault of this program; please report it.",
            )

    def _check_episodes(self, started: TrialStarted) -> None:
        """Refuse evaluation episodes that another trial has played to a run of the confirmation."""
        size, first = self._spec.evaluation.episodes, started.first_episode
        others = (row.first_episode for row in self._ledger.rows.values() if row.trial != started.trial)
        if started.stage == "confirm":
            rule = "a run of the confirmation plays episodes that no other trial plays"
            kept = all(abs(first - each) >= size for each in others)
        else:
            rule, kept = "only runs of the confirmation play other episodes than the first ones", first == 0
        if not kept:
            raise RecordError(
                where=f"trial {started.trial} ({started.stage})",
                rule=rule,
                got=f"{first} to {first + size - 1}",
                fix="This is a fault of this program; please report it.",
            )

    def predicted_cpu_s(self, request: TrialRequest, setting: Mapping[str, Value]) -> float | None:
        """Return what the cost model of the calibration says a trial will take; None before there is one."""
        return predicted_cpu_s(self._spec, self._ledger.decisions, request, setting)

    # --- budget ------------------------------------------------------------------------------------------------

    def why_skip(self, request: TrialRequest, *, num_running: int, left_s: float | None) -> str:
        """See `Course.why_skip`: the clock needs cores, and the search leaves money and time for the later stages."""
        if request.stage == "measure" and (request.num_env_runners, request.variant) not in self._plan.variants:
            return phases.why_not_measured(self._spec, self._plan.cluster)
        if request.stage != "search" or not self._enough_searched():
            return ""
        return self._too_expensive(num_running) or self._too_late(request, num_running, left_s)

    def shortfall(self, following: TrialRequest) -> str:
        """Return why the budget cannot pay for the confirmation, by what trials have cost; empty when it can.

        It is checked before the search: once it has begun to search, a study goes on, also after a kill.
        """
        searched = any(row.stage == "search" for row in self._ledger.rows.values())
        if searched or following.stage == "calibrate" or self._holdup.cpu_hours is None:
            return ""
        if not self._whole():  # nothing says what a trial costs
            return ""
        each = self._usual_cpu_s()
        enough = (self._spent() + (self._holdup.race.num_settings + phases.num_later(self._spec)) * each) / 3600
        if enough <= self._holdup.cpu_hours:
            return ""
        wanted = math.ceil(enough * 110) / 100
        fix = f"Resume with --set holdup.cpu_hours={wanted:g} or more, or smaller stages under another --name."
        return str(phases.too_few_cpu_hours(self._holdup, f"a trial takes {each:.0f} CPU-seconds here", fix))

    def _spent(self) -> float:
        """Return the CPU-seconds of training so far, lost attempts included."""
        rows = self._ledger.rows.values()
        return sum(row.cpu_s_lost + (row.summary.get("cpu_s_spent") or 0.0) for row in rows)

    def _enough_searched(self) -> bool:
        """Return whether the race and the small scale have settings to choose from.

        Where twice as many trials do not come to enough settings, the space has no more.
        """
        ended = [row for row in self._ledger.rows.values() if row.stage == "search" and row.ended]
        at_small = any(row.num_env_runners == self._holdup.small_scale for row in ended)
        settings, wanted = {row.digest for row in ended}, self._holdup.race.num_settings
        return at_small and (len(settings) >= wanted or len(ended) >= 2 * wanted)

    def _too_expensive(self, num_running: int) -> str:
        if self._holdup.cpu_hours is None:
            return ""
        spent, each = self._spent(), self._usual_cpu_s()
        later = phases.num_later(self._spec) * each
        if spent + (num_running + 1) * each + later <= self._holdup.cpu_hours * 3600:
            return ""
        return (
            f"of {self._holdup.cpu_hours:g} CPU-hours {spent / 3600:.2f} are spent, and {later / 3600:.2f} are kept "
            "for race, stress and confirmation"
        )

    def _too_late(self, request: TrialRequest, num_running: int, left_s: float | None) -> str:
        if left_s is None:
            return ""
        each = mean(seconds for row in self._whole() if (seconds := row.duration_s) is not None)
        side_by_side = max(self._plan.cluster.capacity // self._plan.needs(request).num_cpus, 1)
        later = phases.num_later(self._spec) * each / side_by_side
        if left_s >= later + (num_running + 1) * each / side_by_side or left_s < HOPELESS * later:
            return ""
        return f"{left_s / 60:.0f} min are left, and race, stress and confirmation need {later / 60:.0f}"

    def share_of_usual(self, request: TrialRequest) -> float:
        """Return how much longer than usual a trial should take, by the cost model; 1 where it cannot tell."""
        usual = self._usual_cpu_s()
        if request.setting is None or usual <= 0:
            return 1.0
        return (self.predicted_cpu_s(request, resolve(request.setting, request.num_env_runners)) or usual) / usual

    def _usual_cpu_s(self) -> float:
        """Return the mean CPU-seconds of a whole trial; 0 before the first has ended."""
        spent = (row.summary.get("cpu_s_spent") for row in self._whole())
        return mean(seconds for seconds in spent if seconds is not None)

    def _whole(self) -> list[TrialRow]:
        return [row for row in self._ledger.rows.values() if row.ended and row.iterations is None]
