"""The stages of a hold-up study as a state machine: records in, next trials out. Pure: no clock, no engine.

A study passes through phases, in order. The trials of a phase are known when it begins; when all of them have ended, a
decision closes the phase and asks for the trials of the next one. A decision is a function of the records alone, and
is itself a record: killed anywhere and resumed, a study takes the same decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from study.designs.holdup import choosing, judging
from study.designs.holdup.calibration import opening
from study.designs.holdup.evidence import Evidence, Outcome
from study.designs.holdup.phases import PROTOCOL, phases
from study.errors import RecordError
from study.records.ledger import TrialRow
from study.records.records import SettingsFrozen, StageDecided
from study.records.request import TrialRequest
from study.space.spec import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A decision, and what has to be on record before it."""

    decision: StageDecided
    frozen: SettingsFrozen | None = None


def requests_of(spec: StudySpec, decisions: Sequence[StageDecided]) -> list[TrialRequest]:
    """Return every trial asked for so far, in the order of their numbers."""
    later = (TrialRequest.from_json(content) for decision in decisions for content in decision.requests)
    return [*opening(spec), *later]


def cancelled_by(decisions: Sequence[StageDecided]) -> set[int]:
    """Return the trials that were asked for and are not run."""
    return {trial for decision in decisions for trial in decision.cancelled}


def decide(
    spec: StudySpec,
    rows: Mapping[int, TrialRow],
    decisions: Sequence[StageDecided],
    *,
    cancelled: Sequence[int] = (),
    reason: str = "",
) -> Step:
    """Return the decision that closes the current phase, all of whose trials have ended.

    Args:
        spec: The space.
        rows: Every trial on record.
        decisions: The decisions so far.
        cancelled: Trials of this phase that are not run.
        reason: Why they are not.

    Raises:
        RecordError: A trial of the phase has not ended.
    """
    numbers = range(len(requests_of(spec, decisions)))
    run = [number for number in numbers if number not in cancelled_by(decisions) | set(cancelled)]
    if open_ones := [number for number in run if number not in rows or not rows[number].ended]:
        raise RecordError(
            where=f"decision {len(decisions)}",
            rule="all trials must have ended",
            got=f"{open_ones[:5]} open",
            fix="Restore the records from a backup.",
        )
    known = Evidence(spec, {number: rows[number] for number in run}, decisions)
    every, index = phases(known.holdup), len(decisions)
    following = every[index + 1] if index + 1 < len(every) else None
    outcome = _outcome(known, following.name if following else "")
    evidence = {**outcome.evidence, **({"cancelled": reason} if reason else {})}
    decision = StageDecided(
        number=index,
        stage=every[index].stage,
        phase=every[index].name,
        num_looks=len(run),
        kept=list(outcome.kept),
        dropped=list(outcome.dropped),
        evidence=evidence,
        cancelled=sorted(cancelled),
        requests=[request.to_json() for request in outcome.requests],
        next_stage=following.stage if following else None,
        protocol=PROTOCOL,
    )
    return Step(decision=decision, frozen=outcome.frozen)


def _outcome(known: Evidence, following: str) -> Outcome:
    """Return what leads to the phase that follows; nothing at the end of the protocol."""
    kind, _, number = following.rpartition(" ")
    match kind or following:
        case "search":
            return choosing.search(known)
        case "race":
            return choosing.race(known, int(number))
        case "stress":
            return choosing.stress(known)
        case "baselines":
            return choosing.baselines(known)
        case "confirm":
            return judging.confirm(known)
        case "rest":
            return judging.rest(known)
        case "stock":
            return judging.stock(known)
        case "measure":
            return judging.measure(known)
        case "":
            return Outcome()
    raise NotImplementedError(f"nothing asks for the trials of the phase {following}")
