"""A hold-up study: stages that choose a setting, freeze it and judge it on seeds that it was not chosen by.

`HoldUp` is the kind of study, `StageKeeper` steers a session of one: it records decisions and guards the test seeds.
The decisions are functions of the records, in `stages.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from study.designs.base import Course, Design
from study.designs.holdup.stages import (
    STAGES,
    Stage,
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
from study.space.settings import Variant, spec_of
from study.space.spec import StudySpec


class HoldUp(Design):
    """Whether a setting of a small scale holds up at a large one."""

    name = "holdup"
    stages = tuple(STAGES)

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the trials that the stages have asked for so far."""
        return numbered(requests_of(spec, decisions))

    def kinds(self, spec: StudySpec) -> tuple[TrialKind, ...]:
        """Return the trials of each scale and variant: their sizes are known before their settings are."""
        expected = expected_trials(spec)
        own: set[tuple[int, Variant]] = {(scale, "study") for scale in (*spec.scales, *holdup_of(spec).unseen_scales)}
        wanted = sorted({*own, *expected}, key=lambda each: (each[1] != "study", each[0]))
        return tuple(
            TrialKind(
                spec=spec_of(spec, variant),
                num_env_runners=scale,
                num_trials=expected[scale, variant],
                variant=variant,
            )
            for scale, variant in wanted
        )

    def course(self, spec: StudySpec, ledger: Ledger, append: Callable[[Record], Any], **options: Any) -> "StageKeeper":
        """Return what takes and records the decisions of the stages."""
        return StageKeeper(spec, ledger, append, **options)

    def certify(self, folder: StudyFolder) -> dict[str, Any]:
        """Write the certificate, and return it."""
        from study.designs.holdup.certificate import write_certificate  # with SciPy, which takes a second

        return write_certificate(folder)

    def final_trials(self, spec: StudySpec, ledger: Ledger, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the winner's confirmations at the target scale, once there are any."""
        if ledger.frozen is None:
            return rows
        wanted = "confirm", ledger.frozen.winner, "study", holdup_of(spec).target_scale
        return [row for row in rows if (row.stage, row.digest, row.variant, row.num_env_runners) == wanted] or rows


class StageKeeper(Course):
    """Keeps a session to the protocol. For the methods see `Course`."""

    decides = True

    def __init__(
        self,
        spec: StudySpec,
        ledger: Ledger,
        append: Callable[[Record], Any],
        *,
        until: str | None = None,
        announce: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Take up a study where its records end, and refuse decisions of another version of the protocol."""
        check_version(ledger.decisions)
        self._spec, self._ledger, self._append = spec, ledger, append
        self._until, self._announce = until, announce
        self._phases = phases(holdup_of(spec))

    @property
    def _current(self) -> tuple[Stage, str] | None:
        """Stage and name of the phase whose trials run now; None at the end of the protocol."""
        done = len(self._ledger.decisions)
        return self._phases[done] if done < len(self._phases) else None

    @property
    def phase_name(self) -> str:
        """What runs now; empty at the end of the protocol."""
        return self._current[1] if self._current else ""

    @property
    def is_due(self) -> bool:
        """Whether a decision follows: not at the end, nor where the session is to end before the next stage."""
        now, stages = self._current, list(STAGES)
        return now is not None and (self._until is None or stages.index(now[0].name) <= stages.index(self._until))

    def how_it_ended(self) -> tuple[str, str]:
        """Return reason and detail of a session that has nothing left to run."""
        if self._current is None:
            return "complete", ""
        return "until", f"the stages up to {self._until} are complete, {self._current[0].name} comes next"

    def decide(self) -> list[TrialRequest]:
        """Record the decision that closes the current phase, and return the trials that follow from it."""
        decisions = self._ledger.decisions
        first = len(requests_of(self._spec, decisions))
        decision, frozen = decide(self._spec, self._ledger.rows, decisions)
        if frozen is not None and self._ledger.frozen is None:
            self._append(frozen)
        self._append(decision)
        if frozen is not None:
            self._announce(f"Settings frozen before the first test seed: winner {frozen.winner}.")
        return list(numbered(requests_of(self._spec, decisions))[first:])

    def check(self, started: TrialStarted) -> None:
        """Refuse a test seed for a setting that is not frozen: what it was chosen by must never judge it.

        Raises:
            RecordError: The seed belongs to the confirmation, and the setting is not on record as frozen; or the trial
                would play evaluation episodes of the confirmation that are not its own.
        """
        frozen, first, size = self._ledger.frozen, started.first_episode, self._spec.evaluation.episodes
        judges = started.stage in STAGES and STAGES[started.stage].judges
        others = (row.first_episode for row in self._ledger.rows.values() if row.trial != started.trial)
        is_frozen = judges and frozen is not None and started.digest in frozen.settings
        plays_its_own = all(abs(first - each) >= size for each in others) if judges else first == 0
        if plays_its_own and (is_frozen or started.seed not in holdup_of(self._spec).test_seeds):
            return
        rule = "test seeds, and evaluation episodes that no other trial plays, are for runs of frozen settings"
        got = f"{started.digest} in stage {started.stage}, seed {started.seed}, episodes from {first} on"
        fix = "This is a fault of this program; please report it."
        raise RecordError(where=f"trial {started.trial}", rule=rule, got=got, fix=fix)
