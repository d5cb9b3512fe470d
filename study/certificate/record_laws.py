"""The laws that the records of a hold-up study obey, whatever its figures say. Pure.

They catch what would make a verdict worthless: a test seed that was used for choosing, a setting that changed after it
was frozen, a seed that is missing, a seed that was run until it fitted, a summary that is not that of its evaluations.
They are no protection against somebody who rewrites all the records consistently.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from study.errors import RecordError
from study.protocol import machine
from study.protocol.baselines import BEST_SMALL, WINNER, WINNER_STOCK
from study.protocol.stages import Request, digest_of
from study.space.holdup import HoldUpSpec
from study.space.parameters import SCALE, Value
from study.space.rules import fitted
from study.space.spec import StudySpec
from study.tracking.ledger import Ledger, TrialRow, fold
from study.tracking.records import (
    Evaluation,
    Iteration,
    Line,
    SettingsFrozen,
    StageDecided,
    Status,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
)

CHOOSING, RANKING, JUDGING = ("calibrate", "search"), ("race", "stress"), ("confirm", "measure")
"""Stages by the set of seeds that is theirs."""
RELATIVE = 1e-6
"""Figures that differ by less are the same: a sum may be taken in another order."""
UNCHECKED = ("cpu_s_reserved",)
"""Metrics of a trial that its records do not determine: the driver's clock at its end."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What a trial of the confirmation is about; each is run once."""

    arm: str
    scale: int
    seed: int
    variant: str

    def __str__(self) -> str:
        return f"{self.arm}@{self.scale}, seed {self.seed}"


def _asked(decisions: Sequence[StageDecided], stage: str) -> list[tuple[Cell, str]]:
    """Return every trial that the decisions ask for in a stage, with the digest of its setting."""
    requests = (Request.from_json(content) for decision in decisions for content in decision.requests)
    return [
        (
            Cell(request.name or "", request.num_env_runners, request.seed, request.variant),
            digest_of(request.setting or {}),
        )
        for request in requests
        if request.stage == stage
    ]


def planned_cells(decisions: Sequence[StageDecided]) -> Counter[Cell]:
    """Return every trial that the decisions ask for in the confirmation."""
    return Counter(cell for cell, _ in _asked(decisions, "confirm"))


def cell_of(row: TrialRow) -> Cell:
    """Return what a trial is about."""
    return Cell(row.anchor or "", row.num_env_runners, row.seed, row.variant)


def broken_laws(lines: Sequence[Line], spec: StudySpec) -> Iterator[str]:
    """Yield a message for every law that the records break, in the words `place: law, got value.`.

    Args:
        lines: All lines of the records, in their order.
        spec: Of a hold-up study.

    Raises:
        ValueError: The study is none; a mistake of the caller.
    """
    if spec.holdup is None:
        raise ValueError("a study without `holdup` has no such laws")
    orphans = list(_orphans(lines))
    yield from orphans
    if orphans:  # nothing can be made of such records
        return
    ledger = fold((line.record, line.time) for line in lines)
    yield from _numbers(ledger)
    yield from _attempts(lines)
    yield from _digests(lines)
    yield from _frozen(lines, ledger)
    yield from _requests(ledger)
    yield from _measured(ledger)
    yield from _complete(ledger)
    yield from _seed_sets(ledger, spec.holdup)
    yield from _firewall(lines, spec.holdup)
    yield from _settings(ledger, spec)
    yield from _summaries(ledger, spec)
    yield from _retaken(ledger, spec)


def _orphans(lines: Sequence[Line]) -> Iterator[str]:
    started: set[int] = set()
    for line in lines:
        match line.record:
            case TrialStarted():
                started.add(line.record.trial)
            case TrialBuilt() | Iteration() | Evaluation() | TrialEnded() if line.record.trial not in started:
                got = f"{line.record.kind} (line {line.seq + 1})"
                yield f"trial {line.record.trial}: trial_started must come first, got {got}."
                started.add(line.record.trial)


def _numbers(ledger: Ledger) -> Iterator[str]:
    for expected, decision in enumerate(ledger.decisions):
        if decision.number != expected:
            yield f"decision {decision.number} ({decision.phase}): number must be {expected}, got {decision.number}."


def _attempts(lines: Sequence[Line]) -> Iterator[str]:
    """A trial goes on after an interruption, and never after its end."""
    attempts: dict[int, int] = {}
    ended: dict[int, str] = {}
    for record in (line.record for line in lines):
        match record:
            case TrialStarted():
                if record.trial in ended:
                    got = f"attempt {record.attempt} after it had {ended[record.trial]}"
                    yield f"trial {record.trial}: runs once, got {got}."
                if record.attempt != attempts.get(record.trial, 0) + 1:
                    law = f"attempt must be {attempts.get(record.trial, 0) + 1}"
                    yield f"trial {record.trial}: {law}, got {record.attempt}."
                attempts[record.trial] = record.attempt
            case TrialEnded() if record.status != "interrupted":
                ended[record.trial] = record.status


def _digests(lines: Sequence[Line]) -> Iterator[str]:
    for record in (line.record for line in lines):
        match record:
            case TrialStarted() if record.digest != digest_of(record.rule):
                yield f"trial {record.trial}: digest must be {digest_of(record.rule)}, got {record.digest!r}."
            case SettingsFrozen():
                for digest, setting in record.settings.items():
                    if digest != digest_of(setting):
                        yield f"settings_frozen: digest must be {digest_of(setting)}, got {digest!r}."


def _firewall(lines: Sequence[Line], holdup: HoldUpSpec) -> Iterator[str]:
    """Each stage has seeds of its own, and those of the test are closed until the settings are on record."""
    sets: dict[str, range] = dict.fromkeys(CHOOSING, holdup.tune_seeds.seeds)
    sets |= dict.fromkeys(RANKING, holdup.rank_seeds.seeds) | dict.fromkeys(JUDGING, holdup.test_seeds.seeds)
    names = dict.fromkeys(CHOOSING, "tune") | dict.fromkeys(RANKING, "rank") | dict.fromkeys(JUDGING, "test")
    frozen = False
    for record in (line.record for line in lines):
        frozen = frozen or isinstance(record, SettingsFrozen)
        if not isinstance(record, TrialStarted):
            continue
        where, stage = f"trial {record.trial} ({record.stage})", record.stage or ""
        if stage not in sets:
            yield f"{where}: stage must be one of {', '.join(sets)}, got {record.stage!r}."
            continue
        is_test = record.seed in holdup.test_seeds.seeds
        if is_test and stage not in JUDGING:
            yield f"{where}: a test seed must not be used before confirm, got seed {record.seed}."
        elif is_test and not frozen:
            yield f"{where}: settings_frozen must be on record before a test seed is used, got seed {record.seed}."
        elif record.seed not in sets[stage]:
            yield f"{where}: seed must be a {names[stage]} seed, got {record.seed}."


def _frozen(lines: Sequence[Line], ledger: Ledger) -> Iterator[str]:
    count = sum(isinstance(line.record, SettingsFrozen) for line in lines)
    judged = [row for row in ledger.rows.values() if row.stage == "confirm"]
    if count > 1 or (judged and not count):
        yield f"settings_frozen: must be on record once before the confirmation, got {count} times."
    frozen = ledger.frozen
    if frozen is None:
        return
    if frozen.winner not in frozen.settings:
        yield f"settings_frozen: must hold the winner's setting, got winner {frozen.winner}."
    for row in judged:
        where = f"trial {row.trial} ({cell_of(row)})"
        if row.digest not in frozen.settings:
            yield f"{where}: digest must be frozen, got {row.digest}."
        elif row.anchor in (WINNER, WINNER_STOCK) and row.digest != frozen.winner:
            yield f"{where}: must run the frozen winner {frozen.winner}, got {row.digest}."


def _requests(ledger: Ledger) -> Iterator[str]:
    """What was asked for is what ran: each trial once, with the setting that it was asked for."""
    planned, wanted = planned_cells(ledger.decisions), dict(_asked(ledger.decisions, "confirm"))
    rows = [row for row in ledger.rows.values() if row.stage == "confirm"]
    for cell, count in sorted(Counter(cell_of(row) for row in rows).items()):
        if not planned[cell]:
            yield f"{cell}: no decision asked for it, got {count} trial{'s'[: count - 1]}."
        elif count > 1:
            yield f"{cell}: must be run once, got {count} trials."
    for cell, count in sorted(planned.items()):
        if count > 1:
            yield f"{cell}: must be asked for once, got {count} times."
    for row in rows:
        if row.digest != wanted.get(cell_of(row), row.digest):
            yield f"trial {row.trial} ({cell_of(row)}): must run setting {wanted[cell_of(row)]}, got {row.digest}."


def _measured(ledger: Ledger) -> Iterator[str]:
    """The settings of `measure` are made of the frozen ones, so that only the decision tells which they are."""
    asked = set(_asked(ledger.decisions, "measure"))
    for row in ledger.rows.values():
        if row.stage == "measure" and (cell_of(row), row.digest) not in asked:
            yield f"trial {row.trial} (measure, {cell_of(row)}): no decision asked for it, got setting {row.digest}."


def _complete(ledger: Ledger) -> Iterator[str]:
    """No seed is dropped once the study says that its confirmation is over."""
    if not confirmation_is_over(ledger):
        return
    rows = [row for row in ledger.rows.values() if row.stage == "confirm"]
    for cell in sorted(set(planned_cells(ledger.decisions)) - {cell_of(row) for row in rows}):
        yield f"{cell}: was asked for and must be on record, got no trial: a seed is missing."
    for row in rows:
        if not row.ended:
            yield f"trial {row.trial} ({cell_of(row)}): must have ended, got {row.status}."


def confirmation_is_over(ledger: Ledger) -> bool:
    """Return whether the study says that its confirmation is complete: by a decision on it, or by its end."""
    following = [decision.next_stage for decision in ledger.decisions if decision.stage == "confirm"]
    complete = ledger.closed is not None and ledger.closed.reason == "complete"
    return bool(following and following[-1] != "confirm") or (complete and bool(planned_cells(ledger.decisions)))


def _seed_sets(ledger: Ledger, holdup: HoldUpSpec) -> Iterator[str]:
    """Every arm is planned with the first test seeds, as many as the space says; the judged ones are there."""
    arms: dict[tuple[str, int], list[int]] = defaultdict(list)
    for cell in planned_cells(ledger.decisions):
        arms[cell.arm, cell.scale].append(cell.seed)
    if not arms:
        return
    sizes = holdup.confirm
    counts: Mapping[str, int] = {
        WINNER: sizes.num_seeds,
        BEST_SMALL: sizes.num_seeds,
        WINNER_STOCK: sizes.num_seeds_stock,
    }
    for (arm, scale), seeds in sorted(arms.items()):
        expected = list(holdup.test_seeds.seeds)[: counts.get(arm, sizes.num_seeds_others)]
        if sorted(set(seeds)) != expected:
            law = f"must be planned with the first {len(expected)} test seeds"
            yield f"{arm}@{scale}: {law}, got {sorted(seeds)}."
    wanted = [(WINNER, scale) for scale in (holdup.target_scale, holdup.small_scale, *holdup.unseen_scales)]
    for arm, scale in [*wanted, (BEST_SMALL, holdup.small_scale)]:
        if (arm, scale) not in arms:
            yield f"{arm}@{scale}: must be an arm of the confirmation, got no request."


def _settings(ledger: Ledger, spec: StudySpec) -> Iterator[str]:
    """The parameters of a trial are those that its rule gives at its scale."""
    for row in ledger.rows.values():
        if row.stage != "confirm":
            continue
        asked, got = fitted(spec, row.rule, row.num_env_runners), row.setting
        lanes = int(asked[SCALE] * asked["num_envs_per_env_runner"])
        if (ran := int(got[SCALE] * got["num_envs_per_env_runner"])) != lanes:
            yield f"trial {row.trial} ({cell_of(row)}): must have {lanes} lanes, got {ran}."
        for name in asked.keys() - {SCALE, "num_envs_per_env_runner"}:
            if not _same(asked[name], got.get(name)):
                law = f"{name} must be {asked[name]} by its rule"
                yield f"trial {row.trial} ({cell_of(row)}): {law}, got {got.get(name)}."


def _summaries(ledger: Ledger, spec: StudySpec) -> Iterator[str]:
    """The summary of a trial is that of its iterations and evaluations."""
    for row in ledger.rows.values():
        if not row.ended or row.ended_at is None:
            continue
        status: Status = "finished" if row.status == "finished" else "failed"
        again = row.summarise(spec, status, moment=row.ended_at)
        for name in sorted({*row.summary, "final_return", "score"} & (again.keys() - {*UNCHECKED})):
            if not _same(again[name], row.summary.get(name)):
                law = f"{name} of its summary must be {again[name]}, as its evaluations and iterations say"
                yield f"trial {row.trial} (seed {row.seed}): {law}, got {row.summary.get(name)}."


def _same(first: Value | None, second: Value | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=RELATIVE, abs_tol=1e-12)


def _retaken(ledger: Ledger, spec: StudySpec) -> Iterator[str]:
    """The protocol takes every decision again on the records, and freezes the same settings."""
    decisions = ledger.decisions
    versions = sorted({decision.protocol for decision in decisions})
    if len(versions) > 1:
        yield f"decisions: must be of one version of the protocol, got {versions}."
    if len(versions) != 1 or versions[0] not in machine.PROTOCOLS:
        return
    for index, taken in enumerate(decisions):
        why = taken.evidence.get("cancelled", "")
        try:
            step = machine.decide(
                spec, ledger.rows, decisions[:index], cancelled=taken.cancelled, reason=why, protocol=versions[0]
            )
        except (RecordError, LookupError, ValueError) as error:
            yield f"decision {index} ({taken.phase}): must follow from the records, got none ({error})."
            return
        for name, again in asdict(step.decision).items():
            if not _alike(getattr(taken, name), again):
                yield f"decision {index} ({taken.phase}): {name} must be what the records lead to, got another one."
        frozen = None if step.frozen is None or ledger.frozen is None else (asdict(step.frozen), asdict(ledger.frozen))
        if frozen is not None and not _alike(*frozen):
            yield f"decision {index} ({taken.phase}): must freeze the settings that the records lead to, got others."


def _alike(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal; machines round the last digits of numbers differently."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_alike(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_alike, first, second))
    if isinstance(first, float) or isinstance(second, float):
        return _same(first, second)
    return bool(first == second)
