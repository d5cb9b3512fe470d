"""Rules that the records of a hold-up study must keep, whatever its figures say. Pure.

Two mechanisms hold most of them. The protocol takes every decision again on the records (`_retaken`), and every trial
is compared with the request of the decision that asks for it (`trial_rules`). So no seed, setting,
scale or budget can be another one than the protocol asked for, and no figure another one than its records lead to.

Records that were rewritten consistently keep all of these rules. What helps against that is in `evidence.md` of
`study.designs.holdup`: the digest of the records that was published before the first test seed, and training again.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from study.designs.holdup import machine
from study.designs.holdup.certificate.recorded import Study, same
from study.designs.holdup.certificate.trial_rules import Checked, check_trial
from study.designs.holdup.phases import current, holdup_of
from study.errors import RecordError
from study.records.ledger import TrialRow
from study.records.records import Line, SettingsFrozen, StageDecided, StudyClosed, StudyOpened
from study.space.spec import StudySpec

CANCELLED = ("search", "measure")
"""Stages whose trials a budget or the machine may leave out."""
TELLING = 20
"""So many different returns between floor and reference two trainings on two seeds never have in common by chance."""
NOT_RETAKEN = ("chain",)
"""Fields of a decision that do not follow from trials."""


def broken_rules(lines: Sequence[Line], spec: StudySpec) -> Iterator[str]:
    """Yield a message for every rule that the records of a hold-up study break: `place: rule, got value.`."""
    study = Study(lines, spec)
    numbers = [decision.number for decision in study.decisions]
    if numbers != list(range(len(numbers))):  # else every trial behind a lost decision is another one
        yield f"decisions: must be numbered one after another from 0, got {numbers}."
        return
    trials = {trial: check_trial(study, trial) for trial in study.histories}
    for checked in trials.values():
        yield from checked.broken
    yield from broken_by_study(study, trials)


def broken_by_study(study: Study, trials: Mapping[int, Checked]) -> Iterator[str]:
    """Yield a message for every rule that the decisions, the sessions, or trials beside each other break."""
    rows = {trial: checked.row for trial, checked in sorted(trials.items()) if checked.row is not None}
    if len(rows) < len(trials):  # some have no beginning, and nothing can be made of such records
        return
    yield from _sessions(study)
    yield from _frozen(study)
    yield from _cancelled(study, rows)
    missing = list(_missing(study, trials))
    yield from missing
    yield from _retaken(study, rows, complete=not missing)
    yield from _copied(study, trials)


def broken_chain(lines: Sequence[Line], heads: Sequence[str]) -> Iterator[str]:
    """Yield a message for every decision whose chain is not `heads`, the hash chain's, after the line before it."""
    for at, line in enumerate(lines):
        if not isinstance(line.record, StageDecided):
            continue
        head, got = heads[at - 1] if at else "", line.record.chain
        if got != head:
            where = f"decision {line.record.number} ({line.record.phase})"
            yield f"{where}: chain must be {head}, of the lines before it, got {got!r}: some of them were changed."


def _sessions(study: Study) -> Iterator[str]:
    """Drivers follow one another, and the last one says truly how the study ended."""
    number, is_open = 0, False
    for line in study.course:
        match record := line.record:
            case StudyOpened():
                number, is_open = number + 1, True
                cpus = sum(node["num_cpus"] for node in record.cluster["nodes"])
                if record.cluster.get("num_cpus") != cpus:
                    got = record.cluster.get("num_cpus")
                    yield f"study_opened (line {line.seq + 1}): num_cpus must be {cpus}, as its nodes have, got {got}."
                if record.session != number:
                    yield f"study_opened (line {line.seq + 1}): session must be {number}, got {record.session}."
            case StudyClosed():
                if not is_open or record.session != number:
                    yield f"study_closed (line {line.seq + 1}): session must be {number}, got {record.session}."
                is_open = False
                taken = sum(each.seq < line.seq for each in study.decided)
                phase = current(holdup_of(study.spec), study.decisions[:taken])
                if (record.reason == "complete") != (phase is None):
                    at = "at the end of the protocol" if phase is None else f"at the phase {phase.name}"
                    rule = f"reason must be {'complete' if phase is None else 'another one than complete'} {at}"
                    yield f"study_closed (line {line.seq + 1}): {rule}, got {record.reason}."
            case _ if not is_open:
                yield f"{record.kind} (line {line.seq + 1}): must be written by a session that is open, got none open."


def _frozen(study: Study) -> Iterator[str]:
    """The settings are frozen once, by the decision that asks for the first test seeds, and before it."""
    frozen = [line.seq for line in study.course if isinstance(line.record, SettingsFrozen)]
    asks = next((at for at, each in enumerate(study.decisions) if each.opens_confirmation), None)
    if asks is None:
        return
    before = study.decided[asks - 1].seq if asks else -1
    if len(frozen) != 1 or not before < frozen[0] < study.decided[asks].seq:
        yield f"settings_frozen: must be on record once, just before decision {asks}, got {len(frozen)} times."


def _cancelled(study: Study, rows: Mapping[int, TrialRow]) -> Iterator[str]:
    """A decision leaves out trials of its own phase only, where a budget or the machine may, and says why."""
    first, asked = 0, len(machine.requests_of(study.spec, []))
    for decision in study.decisions:
        where = f"decision {decision.number} ({decision.phase})"
        for trial in decision.cancelled:
            if not first <= trial < asked or study.requests[trial].stage not in CANCELLED:
                yield f"{where}: only trials of its own phase in {' or '.join(CANCELLED)} may be left out, got {trial}."
            elif trial in rows and rows[trial].ended:
                yield f"{where}: a trial that is left out must not have run, got {study.where(trial)}."
        if bool(decision.cancelled) != bool(decision.evidence.get("cancelled")):
            yield f"{where}: a reason must be there where trials are left out, got {len(decision.cancelled)} trials."
        first, asked = asked, asked + len(decision.requests)


def _missing(study: Study, trials: Mapping[int, Checked]) -> Iterator[str]:
    """Every trial that was asked for has ended before the decision on its phase: no seed is dropped."""
    left_out = machine.cancelled_by(study.decisions)
    for trial, asked_at in enumerate(study.asked_at):
        closing = next((line for line in study.decided if line.seq > asked_at), None)
        if closing is None or trial in left_out:
            continue
        checked = trials.get(trial)
        if checked is None or checked.row is None or not checked.row.ended or checked.ended_at > closing.seq:
            status = checked.row.status if checked is not None and checked.row is not None else None
            got = f"one that is {status}" if status else "no trial: a seed is missing"
            yield f"{study.where(trial)}: was asked for and must have ended before the next decision, got {got}."


def _retaken(study: Study, rows: Mapping[int, TrialRow], *, complete: bool) -> Iterator[str]:
    """The protocol takes every decision again on the records, and freezes the same settings."""
    if not complete:
        return
    frozen = next((line.record for line in study.course if isinstance(line.record, SettingsFrozen)), None)
    for index, taken in enumerate(study.decisions):
        where = f"decision {index} ({taken.phase})"
        why = str(taken.evidence.get("cancelled", ""))
        try:
            step = machine.decide(study.spec, rows, study.decisions[:index], cancelled=taken.cancelled, reason=why)
        except (RecordError, LookupError, ValueError) as error:
            yield f"{where}: must follow from the records, got none ({error})."
            return
        for name, again in asdict(step.decision).items():
            if name not in NOT_RETAKEN and not same(getattr(taken, name), again):
                yield f"{where}: {name} must be what the records lead to, got another one."
        if step.frozen is not None and (frozen is None or not same(asdict(frozen), asdict(step.frozen))):
            yield f"{where}: settings_frozen must be what the records lead to, got others."


def _copied(study: Study, trials: Mapping[int, Checked]) -> Iterator[str]:
    """Two trainings on different seeds never have the same course.

    By the learner's losses, which are floats, whatever the returns. By the returns of all evaluations where these tell:
    at the floor, at the reference, and where all episodes pay the same, different policies can return the same.
    """
    courses: dict[tuple[str, object], list[int]] = defaultdict(list)
    for trial, checked in sorted(trials.items()):
        if len(checked.learner) > 1 and None not in checked.learner[0]:
            courses["learner's losses", checked.learner].append(trial)
        telling = {
            each
            for returns in checked.returns
            if len(set(returns)) > 1 and 0 < study.spec.score(sum(returns) / len(returns)) < 1
            for each in returns
        }
        if len(telling) >= TELLING:
            courses["returns", checked.returns].append(trial)
    for (what, _), alike in courses.items():
        seeds = {row.seed for trial in alike if (row := trials[trial].row) is not None}
        if len(seeds) > 1:
            listed = ", ".join(study.where(trial) for trial in alike)
            yield f"{what}: must differ between trials on different seeds, got the same for {listed}."
