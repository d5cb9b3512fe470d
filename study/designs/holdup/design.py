"""A hold-up study: stages that choose a setting, freeze it and judge it on seeds that it was not chosen by.

`HoldUp` is the kind of study, `StageKeeper` steers a session of one: it records decisions and guards the test seeds.
The decisions are functions of the records, in `stages.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from study.designs.base import Course, Design
from study.designs.holdup.stages import (
    CONFIRM,
    STAGES,
    Phase,
    check_version,
    decide,
    expected_trials,
    holdup_of,
    phases,
    requests_of,
)
from study.errors import RecordError
from study.planning import TrialKind
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow
from study.records.records import Record, StageDecided, TrialRequest, TrialStarted, numbered
from study.space.settings import spec_of
from study.space.spec import StudySpec


class HoldUp(Design):
    """Whether a setting of a small scale holds up at a large one."""

    name = "holdup"
    stages = STAGES

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the trials that the stages have asked for so far."""
        return numbered(requests_of(spec, decisions))

    def kinds(self, spec: StudySpec) -> tuple[TrialKind, ...]:
        """Return the trials of each scale and variant: their sizes are known before their settings are."""
        expected = expected_trials(spec)
        return tuple(
            TrialKind(
                spec=spec_of(spec, variant),
                num_env_runners=scale,
                num_trials=number,
                variant=variant,
            )
            for (scale, variant), number in sorted(expected.items(), key=lambda each: (each[0][1] != "study", each[0]))
        )

    def course(
        self, spec: StudySpec, ledger: Ledger, append: Callable[[Record], Any], until: str | None = None
    ) -> "StageKeeper":
        """Return what takes and records the decisions of the stages."""
        return StageKeeper(spec, ledger, append, until)

    def certify(self, folder: StudyFolder) -> dict[str, Any]:
        """Write the certificate, and return it."""
        from study.designs.holdup.certificate import write_certificate  # with SciPy, which takes a second

        return write_certificate(folder)

    def final_trials(self, spec: StudySpec, ledger: Ledger, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the winner's confirmations at the target scale, once there are any."""
        if ledger.frozen is None:
            return rows
        wanted = CONFIRM, ledger.frozen.winner, "study", holdup_of(spec).target_scale
        return [row for row in rows if (row.stage, row.digest, row.variant, row.num_env_runners) == wanted] or rows


@dataclass(frozen=True, slots=True)
class StageKeeper(Course):
    """Keeps a session to the protocol. For the methods see `Course`."""

    spec: StudySpec
    ledger: Ledger
    append: Callable[[Record], Any]
    until: str | None = None
    decides = True

    def __post_init__(self) -> None:
        """Refuse decisions of another version of the protocol."""
        check_version(self.ledger.decisions)

    @property
    def _current(self) -> Phase | None:
        """The phase whose trials run now; None at the end of the protocol."""
        return [*phases(holdup_of(self.spec)), None][len(self.ledger.decisions)]

    @property
    def phase_name(self) -> str:
        """What runs now; empty at the end of the protocol."""
        return self._current.name if self._current else ""

    @property
    def is_due(self) -> bool:
        """Whether a decision follows: not at the end, nor where the session is to end before the next stage."""
        now, until = self._current, self.until or CONFIRM
        return now is not None and STAGES.index(now.stage) <= STAGES.index(until)

    def how_it_ended(self) -> tuple[str, str]:
        """Return reason and detail of a session that has nothing left to run."""
        if (now := self._current) is None:
            return "complete", ""
        return "until", f"the stages up to {self.until} are complete, {now.stage} comes next"

    def decide(self) -> list[TrialRequest]:
        """Record the decision that closes the current phase, and return the trials that follow from it."""
        decisions = self.ledger.decisions
        first = len(requests_of(self.spec, decisions))
        decision, frozen = decide(self.spec, self.ledger.rows, decisions)
        if frozen is not None and self.ledger.frozen is None:
            self.append(frozen)
        self.append(decision)
        return list(numbered(requests_of(self.spec, decisions))[first:])

    def check(self, started: TrialStarted) -> None:
        """Refuse a test seed for a setting that is not frozen: what it was chosen by must never judge it.

        Raises:
            RecordError: The seed belongs to the confirmation, and the setting is not on record as frozen; or the trial
                would play evaluation episodes of the confirmation that are not its own.
        """
        frozen, first, size = self.ledger.frozen, started.first_episode, self.spec.evaluation.episodes
        judges = started.stage == CONFIRM
        others = (row.first_episode for row in self.ledger.rows.values() if row.trial != started.trial)
        is_frozen = judges and frozen is not None and started.digest in frozen.settings
        plays_its_own = all(abs(first - each) >= size for each in others) if judges else first == 0
        if plays_its_own and (is_frozen or started.seed not in holdup_of(self.spec).test_seeds):
            return
        rule = "test seeds, and evaluation episodes that no other trial plays, are for runs of frozen settings"
        got = f"{started.digest} in stage {started.stage}, seed {started.seed}, episodes from {first} on"
        fix = "This is a fault of this program; please report it."
        raise RecordError(where=f"trial {started.trial}", rule=rule, got=got, fix=fix)
