"""Records -> the figures of a certificate, as JSON values. Pure.

The same records give the same figures: each one that needs random numbers draws them from a generator of its own,
seeded with the study's digest and the figure's name.
"""

import hashlib
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec
import numpy as np
import orjson

from study.designs.holdup.stages import BATCH_GROWN, MINIBATCH_GROWN, PROTOCOL, STAGES, UNCHANGED, holdup_of
from study.designs.holdup.verdict import (
    HOLDS_UP,
    RLLIBS,
    Arm,
    Arms,
    Check,
    Comparison,
    compare,
    horizon_of,
    in_words,
    judge,
    judge_learning,
    lead,
    run_of,
    search_paid,
)
from study.engine import OWN, engine_of_space
from study.records.folder import StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.records import Evaluation, Line, StudyOpened, TrialStarted
from study.space.sections import HoldUpSpec
from study.space.settings import BEST_SMALL, BEST_SMALL_RLLIB, WINNER, WINNER_RLLIB, fitted
from study.space.spec import StudySpec
from study.statistics import Estimate, iqm_interval, mean_interval, rate_interval
from study.text import listed

FORMAT = 6
"""Version of the certificate's content."""
MACHINE = ("time", "git", "versions", "platform", "cpu_model", "physical_cpus", "usable_cpus", "memory_mb", "scheduler")
"""What the certificate takes of a session's provenance; the command line and the environment hold paths."""
GROWN: Mapping[str, str] = {
    UNCHANGED: "keep the numbers",
    BATCH_GROWN: "grow the batch",
    MINIBATCH_GROWN: "grow batch, minibatch and learning rate",
}
"""Rival that is made of the small scale's best -> what to do there."""
MOST_COLLAPSE = 0.3
"""Score that a policy may lose between its best evaluation and the end."""
FEWEST_UPDATES = 20
"""Iterations below which a policy is starved: it has hardly been updated, whatever the batch."""
FRAGILE = (0.2, 0.8)
"""Shares of runs solved, both ends included, at which the seed decides."""


def as_json(value: Any) -> Any:
    """Return a value as it is read back from a file; open ends of intervals are null."""
    return orjson.loads(orjson.dumps(value, default=msgspec.to_builtins, option=orjson.OPT_SERIALIZE_NUMPY))


def content_of(identity: StudyIdentity, spec: StudySpec, ledger: Ledger, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the certificate of a confirmed study: what it found, in the order in which a reader asks.

    Scores are means over runs, a failed one scores 0; a final return of a failed run is the environment's floor.
    """
    holdup = holdup_of(spec)
    target, small = holdup.target_scale, holdup.small_scale
    assert ledger.frozen is not None  # compared with the decision that froze it
    winner, rule = ledger.frozen.winner, ledger.frozen.settings[ledger.frozen.winner]
    evaluations = _evaluations(lines)
    order = {WINNER_RLLIB: 0, BEST_SMALL_RLLIB: 1, WINNER: 2, BEST_SMALL: 3}
    rows = [row for row in ledger.rows.values() if row.stage == "confirm"]
    rows.sort(key=lambda row: (order.get(row.anchor or "", 4), row.anchor or "", row.num_env_runners, row.seed))
    groups: dict[tuple[str, int], list[TrialRow]] = defaultdict(list)
    for row in rows:
        groups[row.anchor or "", row.num_env_runners].append(row)
    runs = {row.trial: run_of(spec, row, evaluations[row.trial]) for row in rows}
    arms = {
        (name, scale): Arm(name=name, scale=scale, runs=tuple(runs[row.trial] for row in here))
        for (name, scale), here in groups.items()
    }
    found, ours, rllibs = arms[WINNER, target], _of_checks(judge(arms, holdup, spec.budget.env_steps)), None
    if (own := arms.get((WINNER_RLLIB, target))) is not None:
        rllibs = _of_checks(judge_learning(arms, holdup, RLLIBS)) | {"difference": lead(own, found)}
    scales = sorted({*spec.scales, *holdup.unseen_scales})
    content = {
        "format": FORMAT,
        "protocol": PROTOCOL,
        "study": {
            "name": identity.name,
            "id": identity.study_id,
            "space_digest": identity.digest,
            "num_records": len(lines),
        },
        "environment": _without_paths(identity.spec["environment"]),
        "scales": {"target": target, "small": small, "searched": spec.scales, "unseen": holdup.unseen_scales},
        "laws": {"tolerance": holdup.tolerance, "solved_share": holdup.solved_share},
        "winner": {
            "digest": winner,
            "rule": rule,
            "resolved": {str(scale): fitted(spec, rule, scale) for scale in scales},
        },
        "engine": engine_of_space(spec),
        "sentence": _sentence(engine_of_space(spec), target, ours, rllibs),
        "rllib": rllibs,
        "verdict": ours,
        "signs": [
            sign for scale in (target, *holdup.unseen_scales) for sign in signs(spec, scale, groups[WINNER, scale])
        ],
        "arms": {f"{name}@{scale}": _of_arm(spec, arm, groups[name, scale]) for (name, scale), arm in arms.items()},
        "search": _search(identity, spec, ledger, arms),
        "optimism": _optimism(spec, ledger, winner, found),
        **_spent(ledger),
        "sessions": [
            {
                "session": opened.session,
                "provenance": {name: opened.provenance.get(name) for name in MACHINE},
                "cluster": opened.cluster,
            }
            for opened in (line.record for line in lines)
            if isinstance(opened, StudyOpened)
        ],
    }
    made: dict[str, Any] = as_json(content)
    return made


def signs(spec: StudySpec, scale: int, rows: Sequence[TrialRow]) -> Iterator[str]:
    """Yield what was seen of the runs of a setting at a scale, in sentences: hints of where to look, not tests."""
    ended = [row for row in rows if row.status == "finished"]
    finals = [row.summary.get("final_return") for row in ended]
    solved = sum(final is not None and final >= spec.target for final in finals)
    updates = [row.last_iteration.iteration for row in ended if row.last_iteration]
    pairs = zip([row.summary.get("peak_return") for row in ended], finals, strict=True)
    lost = [spec.score(peak) - spec.score(last) for peak, last in pairs if peak is not None and last is not None]
    if updates and (median := statistics.median(updates)) < FEWEST_UPDATES:
        yield f"With {scale} runners the policy had {median:g} iterations (median), and needs {FEWEST_UPDATES} or more."
    if lost and (median := statistics.median(lost)) > MOST_COLLAPSE:
        yield f"With {scale} runners the score at the end is {median:.2f} below the best on the way (median)."
    if FRAGILE[0] <= solved / len(rows) <= FRAGILE[1]:
        yield f"With {scale} runners {solved} of {len(rows)} runs are solved: the seed decides."


# --- arms ------------------------------------------------------------------------------------------------------------


def _evaluations(lines: Iterable[Line]) -> dict[int, list[Evaluation]]:
    """Return trial -> the evaluations of its latest attempt."""
    found: dict[int, list[Evaluation]] = {}
    for record in (line.record for line in lines):
        if isinstance(record, TrialStarted):
            found[record.trial] = []
        elif isinstance(record, Evaluation):
            found[record.trial].append(record)
    return found


def _of_arm(spec: StudySpec, arm: Arm, rows: Sequence[TrialRow]) -> dict[str, Any]:
    """Return what the runs of an arm came to.

    `env_steps_to_target` is the mean up to the horizon, at which a run counts that did not get there (they are
    `n_censored`); steps are known no better than `resolution_env_steps`, which lie between two evaluations.
    """
    finals = [row.summary.get("final_return") if row.status == "finished" else None for row in rows]
    horizon = horizon_of([arm], spec.budget.env_steps)
    ends, reached, _ = arm.times(horizon or 0.0)
    apart = (run.env_steps_to_target - run.env_steps_before_target for run in arm.runs if run.env_steps_to_target)
    spent = [seconds for row in rows if (seconds := row.summary.get("cpu_s_spent")) is not None]
    return {
        "name": arm.name,
        "scale": arm.scale,
        "digest": rows[0].digest,
        "variant": rows[0].variant,
        "execution": ", ".join(sorted({row.execution for row in rows})),
        "timing": dict(sorted(Counter(row.timing or "never built" for row in rows).items())),
        "n": len(rows),
        "n_failed": arm.num_failed,
        "seeds": [row.seed for row in rows],
        "solved": arm.num_solved,
        "solved_at": arm.solved_at,
        "solve_rate": rate_interval(arm.num_solved, len(rows)),
        "score": mean_interval(arm.scores, solved=arm.learnt),
        "iqm_final_return": iqm_interval(
            [final if final is not None and math.isfinite(final) else spec.floor for final in finals]
        ),
        "env_steps_to_target": float(ends.mean()) if horizon else None,
        "horizon_env_steps": horizon,
        "resolution_env_steps": max(apart, default=None),
        "n_censored": int((~reached).sum()),
        "cpu_s_spent": mean_interval(spent) if spent else None,
    }


def _of_checks(checks: Sequence[Check]) -> dict[str, Any]:
    """Return what the rules say, with the words for each scale at which they judge."""
    at: dict[str, list[Check]] = defaultdict(list)
    for check in checks:
        at[check.name.rpartition("@")[2]].append(check)
    words = in_words(checks)
    return {
        "checks": {check.name: check for check in checks},
        "learning": words == HOLDS_UP,
        "sentence": words,
        "at": {scale: in_words(each) for scale, each in at.items()},
    }


def _sentence(engine: str, target: int, ours: Mapping[str, Any], rllib: Mapping[str, Any] | None) -> str:
    """Return the verdicts in words, that about RLlib's own engine, which is one about the target scale, first."""
    where = listed([scale for scale, words in ours["at"].items() if words != HOLDS_UP])
    at = "" if ours["learning"] else f" (with {where} runners)"
    if rllib is None:
        return f"{ours['sentence']} under {engine}{at}" + ("" if engine == OWN else f"; not tried under {OWN} engine")
    own = f"{rllib['sentence']} with {target} runners under {OWN} engine"
    if ours["learning"] and rllib["learning"]:
        return f"{own}, and under {engine}"
    return f"{own}; {ours['sentence']} under {engine}{at}"


def _search(identity: StudyIdentity, spec: StudySpec, ledger: Ledger, arms: Arms) -> dict[str, Any]:
    """Return whether the search at the target scale paid: the winner against each rival, and what each way costs.

    `cpu_hours`: of all trials that the winner was found by, and of those that the small scale's best was found by.
    """
    holdup = holdup_of(spec)
    target, others = holdup.target_scale, (WINNER, WINNER_RLLIB, BEST_SMALL)
    rivals = [arm for (name, scale), arm in arms.items() if scale == target and name not in others]
    seed = hashlib.sha256(f"{identity.digest} comparisons".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(seed[:8], "big"))
    rows: list[Comparison] = compare(
        arms[WINNER, target], rivals, rng=rng, tolerance=holdup.tolerance, env_steps=spec.budget.env_steps
    )
    paid, rival = search_paid(rows)
    found_by = [row for row in ledger.rows.values() if row.stage in ("search", "race")]
    small = [row for row in found_by if row.stage == "search" and row.num_env_runners == holdup.small_scale]
    hours = {"all": _hours(found_by), "small": _hours(small)}
    row = next((each for each in rows if each.rival == rival), None)
    return {
        "paid": paid,
        "rival": rival,
        "sentence": _paid_in_words(paid, row, rows, holdup, hours),
        "rivals": {each.rival: each for each in rows},
        "cpu_hours": hours,
    }


def _paid_in_words(
    paid: str, row: Comparison | None, rows: Sequence[Comparison], holdup: HoldUpSpec, hours: Mapping[str, float]
) -> str:
    """Return whether the search at the target scale paid, against which rival, and what each way costs."""
    target, small = holdup.target_scale, holdup.small_scale
    cost = (
        f"The search took {hours['all']:.2f} CPU-hours, its trials with {small} runners {hours['small']:.2f} of them."
    )
    if row is None:
        return f"Searching with {target} runners did not pay: what it chose needs no such search. {cost}"
    name, by = f"`{row.rival}`", f"score {_in_words(row.difference, 3, signed=True)}"
    if paid == "not paid":
        advice = f"Tune with {small} runners and {GROWN[row.rival]}" if row.rival in GROWN else "That needs no search"
        return (
            f"Searching with {target} runners did not pay: {name} does as well (the chosen setting less it: {by}). "
            f"{advice}. {cost}"
        )
    if row.steps_ratio is not None:
        by += f"; {_in_words(row.steps_ratio, 2)} times the steps to the target"
    if paid == "paid":
        every = f"each of {len(rows)} rivals that need" if len(rows) > 1 else "the one rival that needs"
        return (
            f"Searching with {target} runners paid: better than {every} no search there, the closest being {name} "
            f"({by}). {cost}"
        )
    return (
        f"Whether searching with {target} runners paid is open: it is not shown to be better than {name} ({by}), nor "
        f"that this one does as well. {cost}"
    )


def _in_words(found: Estimate, digits: int, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    ends = [f"{end:{sign}.{digits}f}" if math.isfinite(end) else "∞" for end in (found.low, found.high)]
    return f"{found.value:{sign}.{digits}f} " + (f"[{', '.join(ends)}]" if found.has_interval else "(no interval)")


# --- the study -------------------------------------------------------------------------------------------------------


def _optimism(spec: StudySpec, ledger: Ledger, winner: str, arm: Arm) -> dict[str, Estimate | float]:
    """Return how much better the winner looked in the race, by which it was chosen, than on test seeds."""
    raced = (row for row in ledger.rows.values() if row.stage == "race" and row.digest == winner)
    when_chosen = Arm(name=arm.name, scale=arm.scale, runs=tuple(run_of(spec, row, ()) for row in raced))
    chosen, confirmed = mean_interval(when_chosen.scores), mean_interval(arm.scores)
    return {"when_chosen": chosen, "when_confirmed": confirmed, "optimism": chosen.value - confirmed.value}


def _spent(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Return for every stage its trials, and the CPU-hours of their training, interrupted attempts included."""
    of_stage = {stage: [row for row in ledger.rows.values() if row.stage == stage] for stage in STAGES}
    hours = {stage: _hours(rows) for stage, rows in of_stage.items()}
    trials = {
        stage: {
            "n": len(rows),
            "n_failed": sum(row.status == "failed" for row in rows),
            "n_restarts": sum(row.attempt - 1 for row in rows),
        }
        for stage, rows in of_stage.items()
    }
    return {"trials": trials, "cpu_hours": hours | {"all": sum(hours.values())}}


def _hours(rows: Iterable[TrialRow]) -> float:
    return sum(row.cpu_s_lost + (row.summary.get("cpu_s_spent") or 0.0) for row in rows) / 3600


def _without_paths(value: Any) -> Any:
    """Return the value with absolute paths cut to their last part: where a file lay is private."""
    if isinstance(value, Mapping):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    return f"…/{PurePath(value).name}" if isinstance(value, str) and value.startswith(("/", "~")) else value
