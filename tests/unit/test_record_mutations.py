"""A change of recorded trials is found: of any single field, and those that somebody would make for a better result."""

import fnmatch
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from study.records.folder import StudyFolder
from study.records.ledger import fold
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    Record,
    SettingsFrozen,
    StageDecided,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    read_lines,
)
from study.records.request import digest_of
from study.space.parameters import SCALE
from study.space.settings import fitted
from study.space.spec import StudySpec
from tests.mutations import Change, Verifier, field_name, fields_of, other_values

EXAMPLE = Path(__file__).parents[2] / "analysis/example_study"
NOT_FOUND = {
    "evaluation.num_cut": "how many episodes were cut: a measurement, no figure of the certificate rests on it",
    "evaluation.returns.*": "a measurement: at the end, at the peak and at the target the summary tells, else nothing",
    "iteration.metrics.cpu_pressure": "a measurement; it decides on labels that are provisional only",
    "iteration.metrics.entropy": "a measurement of the learner",
    "iteration.metrics.kl": "a measurement of the learner",
    "iteration.metrics.policy_loss": "a measurement of the learner",
    "iteration.metrics.vf_loss": "a measurement of the learner",
    "iteration.metrics.vf_explained_var": "a measurement of the learner",
    "iteration.metrics.episode_len_sum": "a measurement of the runners",
    "iteration.metrics.learner_busy_time_s": "of asynchronous algorithms, which have no hold-up studies",
    "iteration.metrics.overlap_time_s": "of asynchronous algorithms, which have no hold-up studies",
    "iteration.metrics.policy_lag": "of asynchronous algorithms, which have no hold-up studies",
    "iteration.metrics.num_sampling_rounds": "a measurement of the runners",
    "iteration.metrics.num_gradient_updates": "a count of the learner, which leaves out updates that are not finite",
    "iteration.metrics.num_dropped_samples": "at the last iteration: nothing follows on it",
    "iteration.metrics.num_env_runner_restarts": "at the last iteration: nothing follows on it",
    "iteration.metrics.peak_rss_mb": "a measurement of memory",
    "study_closed.detail": "words",
    "study_opened.cluster*": "what the driver found; where trials run emulated nothing depends on it",
    "study_opened.num_trials": "a guess of the plan",
    "study_opened.provenance*": "what the driver says of its machine and its versions",
    "trial_built.effective.env_steps_per_round": "what one call of the runners returns",
    "trial_built.placement.*.number": "a process is named by its kind and number",
    "trial_built.placement.*.process": "a process is named by its kind and number",
    "trial_built.placement.*.runners*": "which process steps which runners: nothing else tells",
    "trial_ended.node_loads.*.host": "the name of a machine",
    "trial_ended.node_loads.*.largest": "the name of another program",
    "trial_ended.node_loads.*.machine": "the identity of a machine",
    "trial_ended.node_loads.*.num_cores": "what a machine has; loads are in the summary",
    "trial_ended.node_loads.*.seconds": "how long loads were looked at; they are in the summary",
    "trial_ended.summary.cpu_s_reserved": "the clock between the end of a trial and its record, up to 10 s a CPU",
    "trial_started.optuna_number": "Optuna's own number of a proposal",
    "trial_started.proposed.*": "a proposal that is rounded to the same setting",
}
"""Fields whose change the other records do not contradict, each with the reason. Only training again, or a digest of
the records that somebody held, finds those."""


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return StudyFolder(EXAMPLE).identity().parse()


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return list(read_lines(StudyFolder(EXAMPLE).records))


@pytest.fixture(scope="module")
def verifier(lines: list[Line], spec: StudySpec) -> Verifier:
    """Fails on any objection to the recorded example: a false alarm."""
    return Verifier(lines, spec)


# Any single field


def changes(lines: Sequence[Line], rng: random.Random, *, of_each: int) -> Iterator[Change]:
    """Yield changes of every field of every kind of record, at so many places of each that are drawn by chance."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for at, line in enumerate(lines):
        kinds[line.record.kind].append(at)
    for ats in kinds.values():
        found: dict[str, list[tuple[int, Any, Any]]] = defaultdict(list)
        for at in rng.sample(ats, min(len(ats), 6 * of_each)):
            for path, value in fields_of(lines[at].record):
                if path == ("chain",):  # of what is in the file: tests/unit/test_chain.py
                    continue
                found[field_name(lines[at].record, path)].append((at, path, value))
        for name in sorted(found):
            for at, path, value in rng.sample(found[name], min(of_each, len(found[name]))):
                yield from (Change(at, path, other) for other in other_values(value))


def built_in_pairs(lines: Sequence[Line]) -> set[int]:
    """Return the places of what was built of trials that run alike, where there are at most two: neither is right."""
    kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
    starts = {each.record.trial: each.record for each in lines if isinstance(each.record, TrialStarted)}
    for at, each in enumerate(lines):
        if isinstance(each.record, TrialBuilt):
            start = starts[each.record.trial]
            kinds[start.variant, start.execution].append(at)
    return {at for places in kinds.values() if len(places) <= 2 for at in places}


def check(verifier: Verifier, drawn: Sequence[Change]) -> tuple[int, set[str]]:
    """Return how many changes were found, and the listed fields of those that were not; fail on any other."""
    missed = [(change, change.field_of(verifier.lines)) for change in drawn if not verifier.objections(change)]
    listed = {name for _, name in missed for pattern in NOT_FOUND if fnmatch.fnmatchcase(name, pattern)}
    pairs = built_in_pairs(verifier.lines)
    listed |= {name for change, name in missed if name.startswith("trial_built.effective.") and change.at in pairs}
    assert not [(name, change) for change, name in missed if name not in listed]
    return len(drawn) - len(missed), listed


def test_a_changed_field_is_found_or_listed_with_its_reason(verifier: Verifier) -> None:
    rng = random.Random(0)
    drawn = list(changes(verifier.lines, rng, of_each=1))
    found, _ = check(verifier, rng.sample([each for each in drawn if "provenance" not in each.path], 80))
    assert found >= 50


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_every_field_of_every_kind_is_found_or_listed(verifier: Verifier) -> None:
    drawn = list(changes(verifier.lines, random.Random(1), of_each=4))
    fields = {change.field_of(verifier.lines) for change in drawn}
    found, listed = check(verifier, drawn)
    told = f"{len(drawn)} changes of {len(fields)} fields: {found} found; in {len(listed)} fields some were not: "
    sys.stdout.write(told + ", ".join(sorted(listed)) + "\n")


# What somebody would change for a better result

Lines = list[Line]
Tampering = Callable[[Lines, StudySpec], Lines]


def of(lines: Lines, kind: type[Record], trial: int) -> list[int]:
    """Return the places of a trial's records of one kind."""
    return [
        at
        for at, each in enumerate(lines)
        if isinstance(each.record, kind) and each.record.trial == trial  # type: ignore[attr-defined]
    ]


def trial_of(lines: Lines, **wanted: Any) -> int:
    """Return the first trial of one attempt whose start has the wanted values."""
    again = {each.record.trial for each in lines if isinstance(each.record, TrialStarted) and each.record.attempt > 1}
    return next(
        each.record.trial
        for each in lines
        if isinstance(each.record, TrialStarted)
        and each.record.trial not in again
        and all(getattr(each.record, name) == value for name, value in wanted.items())
    )


def with_(lines: Lines, kind: type[Record], trial: int, change: Callable[[Any], dict[str, Any]]) -> Lines:
    """Return the lines with changes to a trial's records of one kind."""
    places = set(of(lines, kind, trial))
    return [
        replace(each, record=replace(each.record, **change(each.record))) if at in places else each
        for at, each in enumerate(lines)
    ]


def summed(lines: Lines, spec: StudySpec, *trials: int) -> Lines:
    """Return the lines with the summaries of these trials written anew, as their records then say."""
    for trial in trials:
        history = [each for each in lines if getattr(each.record, "trial", None) == trial]
        row = fold((each.record, each.time) for each in history).rows[trial]
        end: Any = lines[of(lines, TrialEnded, trial)[-1]].record
        summary = row.summarise(spec, end.status, moment=row.ended_at or 0)
        ats = set(of(lines, TrialEnded, trial)[-1:])
        lines = [
            replace(each, record=replace(end, summary=summary)) if at in ats else each for at, each in enumerate(lines)
        ]
    return lines


def other_lr(stage: str, **wanted: Any) -> Tampering:
    """Another learning rate, in every record of a trial where it stands."""

    def tamper(lines: Lines, spec: StudySpec) -> Lines:
        trial = trial_of(lines, stage=stage, **wanted)

        def start(each: TrialStarted) -> dict[str, Any]:
            rule = each.rule | {"lr": each.rule["lr"] * 3}
            setting = fitted(spec, rule, each.scale or int(each.setting[SCALE]))
            proposed = each.proposed | ({"lr": each.proposed["lr"] * 3} if each.proposed else {})
            return {"rule": rule, "setting": setting, "digest": digest_of(rule), "proposed": proposed}

        lines = with_(lines, TrialStarted, trial, start)
        return with_(
            lines, TrialBuilt, trial, lambda each: {"effective": each.effective | {"lr": each.effective["lr"] * 3}}
        )

    return tamper


def relabelled(lines: Lines, first: int, second: int, *, starts: bool) -> Lines:
    """Return the lines with the records of two trials swapped, their starts too or not."""
    swap = {first: second, second: first}
    return [
        replace(each, record=replace(each.record, trial=swap[each.record.trial]))  # type: ignore[attr-defined,call-arg]
        if getattr(each.record, "trial", None) in swap and (starts or not isinstance(each.record, TrialStarted))
        else each
        for each in lines
    ]


def pair(lines: Lines) -> tuple[int, int]:
    return (
        trial_of(lines, anchor="winner", stage="confirm", seed=1001),
        trial_of(lines, anchor="naive_growth", stage="confirm", seed=1002),
    )


def swapped_outcomes(lines: Lines, spec: StudySpec) -> Lines:
    return relabelled(lines, *pair(lines), starts=False)


def swapped_runs(lines: Lines, spec: StudySpec) -> Lines:
    return relabelled(lines, *pair(lines), starts=True)


def labelled_measured(*, as_real: bool) -> Tampering:
    def tamper(lines: Lines, spec: StudySpec) -> Lines:
        trial = trial_of(lines, anchor="winner", stage="confirm")
        for kind in (TrialBuilt, TrialEnded):
            lines = with_(lines, kind, trial, lambda each: {"timing": "measured", "timing_reason": "47 CPUs reserved"})
        return with_(lines, TrialStarted, trial, lambda each: {"execution": "real"}) if as_real else lines

    return tamper


def best_returns_kept(lines: Lines, spec: StudySpec) -> Lines:
    trial = trial_of(lines, anchor="winner", stage="confirm")
    return summed(with_(lines, Evaluation, trial, lambda each: {"returns": sorted(each.returns)[-10:]}), spec, trial)


def evaluations_dropped(which: slice) -> Tampering:
    def tamper(lines: Lines, spec: StudySpec) -> Lines:
        trial = trial_of(lines, anchor="winner", stage="confirm")
        gone = set(of(lines, Evaluation, trial)[which])
        return summed([each for at, each in enumerate(lines) if at not in gone], spec, trial)

    return tamper


def cut_short(anchor: str, env_steps: int) -> Tampering:
    """A run that is called finished long before its budget was used up."""

    def tamper(lines: Lines, spec: StudySpec) -> Lines:
        trial = trial_of(lines, anchor=anchor, stage="confirm")
        late = [
            at
            for at in (*of(lines, Iteration, trial), *of(lines, Evaluation, trial))
            if lines[at].record.env_steps > env_steps  # type: ignore[attr-defined]
        ]
        return summed([each for at, each in enumerate(lines) if at not in set(late)], spec, trial)

    return tamper


def left_out(stage: str, **wanted: Any) -> Tampering:
    """A trial that is said to have been left out for lack of budget."""

    def tamper(lines: Lines, spec: StudySpec) -> Lines:
        trial = trial_of(lines, stage=stage, **wanted)
        end = of(lines, TrialEnded, trial)[0]
        closing = next(at for at, each in enumerate(lines) if at > end and isinstance(each.record, StageDecided))
        decision: Any = lines[closing].record
        evidence = decision.evidence | {"cancelled": "the budget was used up"}
        told = replace(decision, cancelled=[trial], evidence=evidence, num_looks=decision.num_looks - 1)
        lines = [*lines[:closing], replace(lines[closing], record=told), *lines[closing + 1 :]]
        return [each for each in lines if getattr(each.record, "trial", None) != trial]

    return tamper


def copied(*, everything: bool) -> Tampering:
    """One lucky run in place of another one, on another seed."""

    def tamper(lines: Lines, spec: StudySpec) -> Lines:
        lucky = trial_of(lines, anchor="winner", stage="confirm", seed=1001)
        start: Any = lines[of(lines, TrialStarted, lucky)[0]].record
        unlucky = next(
            each.record.trial
            for each in lines
            if isinstance(each.record, TrialStarted)
            and (each.record.anchor, each.record.setting, each.record.seed) == ("winner", start.setting, 1002)
        )
        if not everything:
            returns = iter([lines[at].record.returns for at in of(lines, Evaluation, lucky)])  # type: ignore[attr-defined]
            lines = with_(lines, Evaluation, unlucky, lambda each: {"returns": next(returns)})
            return summed(lines, spec, unlucky)
        kinds = (Iteration, Evaluation)
        ats = {unlucky: [at for kind in kinds for at in of(lines, kind, unlucky)]}
        begin = min(ats[unlucky])
        body = [
            replace(lines[at], seq=lines[begin].seq, record=replace(lines[at].record, trial=unlucky))  # type: ignore[call-arg]
            for at in sorted(at for kind in kinds for at in of(lines, kind, lucky))
        ]
        gone = set(ats[unlucky])
        kept = [each for at, each in enumerate(lines) if at not in gone]
        at = of(kept, TrialBuilt, unlucky)[0] + 1
        return summed([*kept[:at], *body, *kept[at:]], spec, unlucky)

    return tamper


def of_one(kind: type[Record], change: Callable[[Any], dict[str, Any]], **wanted: Any) -> Tampering:
    """A change to the records of one kind of one trial."""

    def tamper(lines: Lines, spec: StudySpec) -> Lines:
        return with_(lines, kind, trial_of(lines, **wanted), change)

    return tamper


def without_trial(lines: Lines, spec: StudySpec) -> Lines:
    trial = trial_of(lines, anchor="winner", stage="confirm", seed=1004)
    return [each for each in lines if getattr(each.record, "trial", None) != trial]


def again(**changes: int) -> Tampering:
    """The records of a run once more, at the end, as another trial or another attempt."""

    def tamper(lines: Lines, spec: StudySpec) -> Lines:
        trial, last = trial_of(lines, anchor="winner", stage="confirm", seed=1004), lines[-1]
        more = [each for each in lines if getattr(each.record, "trial", None) == trial]
        return [
            *lines[:-1],
            *(replace(each, seq=last.seq, record=replace(each.record, **changes)) for each in more),
            last,
        ]

    return tamper


def frozen_late(lines: Lines, spec: StudySpec) -> Lines:
    at = next(place for place, each in enumerate(lines) if isinstance(each.record, SettingsFrozen))
    return [*lines[:at], *lines[at + 1 : -1], replace(lines[at], seq=lines[-1].seq), lines[-1]]


WINNER: dict[str, Any] = {"anchor": "winner", "stage": "confirm"}
TAMPERINGS: dict[str, Tampering] = {
    "effective lr unlike asked": of_one(
        TrialBuilt, lambda each: {"effective": each.effective | {"lr": each.effective["lr"] * 3}}, **WINNER
    ),
    "outcomes of two runs swapped": swapped_outcomes,
    "two runs swapped": swapped_runs,
    "lr x 3 in the calibration": other_lr("calibrate"),
    "lr x 3 in the search": other_lr("search", anchor=None),
    "lr x 3 in the race": other_lr("race"),
    "lr x 3 in the stress": other_lr("stress", anchor=None),
    "lr x 3 of a baseline": other_lr("stress", anchor="naive_growth"),
    "lr x 3 in the confirmation": other_lr("confirm", anchor="winner"),
    "emulated called measured": labelled_measured(as_real=False),
    "emulated called measured and real": labelled_measured(as_real=True),
    "the best 10 of 30 returns kept": best_returns_kept,
    "5 of 10 evaluations dropped": evaluations_dropped(slice(0, 10, 2)),
    "the first evaluation dropped": evaluations_dropped(slice(0, 1)),
    "a baseline finished at 200k steps": cut_short("naive_growth", 200_000),
    "the winner finished at 450k steps": cut_short("winner", 450_000),
    "a stress trial left out for the budget": left_out("stress"),
    "a race trial left out for the budget": left_out("race"),
    "a confirmation trial left out for the budget": left_out("confirm", anchor="winner"),
    "a lucky run copied bit for bit": copied(everything=True),
    "the returns of a lucky run copied": copied(everything=False),
    "a run failed afterwards": of_one(TrialEnded, lambda end: {"status": "failed", "reason": "worse"}, **WINNER),
    "a seed dropped": without_trial,
    "a seed run twice": again(trial=999),
    "a trial run until it was lucky": again(attempt=2),
    "settings frozen after the confirmation": frozen_late,
    "other episodes than asked for": of_one(
        TrialStarted, lambda each: {"first_episode": each.first_episode + 1}, **WINNER
    ),
    "final returns raised": of_one(
        Evaluation, lambda each: {"returns": [min(value + 30, 0) for value in each.returns]}, **WINNER
    ),
}


SAID = {
    "effective lr unlike asked": "effective must be what was asked, lr",
    "lr x 3 in the race": "rule must be",
    "emulated called measured": "timing must be emulated",
    "emulated called measured and real": "execution must be emulated",
    "the best 10 of 30 returns kept": "number of episodes must be 30 in an evaluation, got 10",
    "5 of 10 evaluations dropped": "an evaluation was due",
    "a baseline finished at 200k steps": "must have used up its budget",
    "a stress trial left out for the budget": "may be left out",
    "a lucky run copied bit for bit": "learner's losses: must differ between trials on different seeds",
    "the returns of a lucky run copied": "returns: must differ between trials on different seeds",
    "a seed dropped": "a seed is missing",
    "other episodes than asked for": "as it was asked for",
}
"""What is said of some of them: that the rule that is meant finds them."""


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_tampering_that_contradicts_itself_is_found(
    verifier: Verifier, lines: list[Line], spec: StudySpec, name: str
) -> None:
    tampered = TAMPERINGS[name](list(lines), spec)
    before = {each.seq: each for each in lines}
    touched = {
        getattr(line.record, "trial", -1)
        for each in tampered
        if before.get(each.seq) is not each
        for line in (each, before.get(each.seq, each))
    }
    assert asdict(tampered[0].record) == asdict(lines[0].record)  # it is one study
    found = verifier.of_lines(tampered, touched)
    assert any(SAID.get(name, "") in each for each in found), found
