"""Records -> the figures of a certificate, as JSON values; its notes. Pure.

The same records give the same figures: each one that needs random numbers draws them from a generator of its own,
seeded with the study's digest and the figure's name.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np
import orjson

from study.designs.holdup.diagnosis import TrialHistory, diagnose, histories
from study.designs.holdup.known import holdup_of
from study.designs.holdup.stages import BASELINE_SEEDS, PROTOCOL, REUSED, STAGES, stage_of
from study.designs.holdup.verdict import (
    LEVEL,
    LEVEL_HALF,
    Arm,
    Run,
    arms_of,
    censored,
    compare,
    horizon_of,
    judge,
    limits_of,
    num_solved_needed,
    run_of,
)
from study.records.folder import StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.records import Iteration, Line, StudyOpened, TrialStarted
from study.space.settings import BEST_SMALL, WINNER, WINNER_STOCK, fitted
from study.space.spec import StudySpec
from study.statistics import Estimate, iqm_interval, mean_interval, rate_interval, restricted_mean
from study.text import count, listed

FORMAT = 4
"""Version of the certificate's content."""
MACHINE = ("time", "git", "versions", "platform", "cpu_model", "physical_cpus", "usable_cpus", "memory_mb", "scheduler")
"""What the certificate takes of a session's provenance; the command line and the environment hold paths."""
_ROUNDING = 1e-9
"""Progress is a sum of fractions."""

Groups = Mapping[tuple[str, int], Sequence[TrialHistory]]
"""(name, scale) of an arm -> its trials, by seed."""


def as_json(value: Any) -> Any:
    """Return a value as it is read back from a file; open ends of intervals are null."""
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


def content_of(identity: StudyIdentity, spec: StudySpec, ledger: Ledger, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the certificate of a confirmed study: what it found, in the order in which a reader asks.

    Scores are means over runs, a failed one scores 0; a final return of a failed run is the environment's floor.

    Args:
        identity: The study's.
        spec: Its space.
        ledger: What its records add up to.
        lines: Its records.
    """
    holdup, asked, records = holdup_of(spec), identity.spec, [line.record for line in lines]
    target, small = holdup.target_scale, holdup.small_scale
    groups = _groups(histories(records, ledger.rows))
    arms = {
        (name, scale): Arm(name=name, scale=scale, runs=tuple(_run(trial, spec) for trial in trials))
        for (name, scale), trials in groups.items()
    }
    verdict, cpu_hours = judge(arms_of(arms, holdup), limits_of(spec)), _cpu_hours(records)
    checks = {check["name"]: check for check in as_json(verdict.checks)}
    clock_measured = any(name.startswith("clock") and check["value"] is not None for name, check in checks.items())
    openings = [record for record in records if isinstance(record, StudyOpened)]
    assert ledger.frozen is not None  # compared with the decision that froze it
    winner, rule = ledger.frozen.winner, ledger.frozen.settings[ledger.frozen.winner]
    scales = sorted({*spec.scales, target, small, *holdup.unseen_scales})
    diagnosed = {
        (name, scale): trials
        for (name, scale), trials in groups.items()
        if name == WINNER or arms[name, scale].num_solved < num_solved_needed(len(trials), holdup.solved_share)
    }
    content = {
        "format": FORMAT,
        "study": {
            "name": identity.name,
            "id": identity.study_id,
            "space_digest": identity.digest,
            "num_records": len(lines),
        },
        "environment": _without_paths(asked["environment"]),
        "scales": {"target": target, "small": small, "searched": spec.scales, "unseen": holdup.unseen_scales},
        "laws": {"tolerance": holdup.tolerance, "solved_share": holdup.solved_share},
        "budget": asked["budget"],
        "seeds": {name.partition("_")[0]: _seeds(spec, ledger, name) for name in _SEEDS},
        "winner": {
            "digest": winner,
            "rule": rule,
            "resolved": {str(scale): fitted(spec, rule, scale) for scale in scales},
        },
        "verdict": {
            "checks": checks,
            "learning": verdict.learning,
            "clock": verdict.clock,
            "sentence": verdict.sentence,
        },
        "arms": {f"{name}@{scale}": _of_arm(spec, arms[name, scale], groups[name, scale]) for name, scale in groups},
        "comparisons": _comparisons(identity, spec, ledger, arms),
        "optimism": _optimism(ledger, winner, target, arms[WINNER, target]),
        "cpu_hours": cpu_hours,
        "trials": _trials(ledger),
        "clock_measured": clock_measured,
        "diagnosis": {f"{name}@{scale}": diagnose(trials, spec) for (name, scale), trials in diagnosed.items()},
        "measured": list(_measured(ledger)),
        "decisions": [
            {
                "number": each.number,
                "phase": each.phase,
                "kept": each.kept,
                "dropped": each.dropped,
                "num_trials": len(each.requests),
                "num_cancelled": len(each.cancelled),
                "why_cancelled": each.evidence.get("cancelled", ""),
            }
            for each in ledger.decisions
        ],
        "sessions": [
            {
                "session": opened.session,
                "provenance": {name: opened.provenance.get(name) for name in MACHINE},
                "cluster": opened.cluster,
            }
            for opened in openings
        ],
    }
    notes = [*_of_the_arms(spec, ledger, arms), *_of_the_course(spec, ledger, openings, cpu_hours)]
    if holdup.measure is None:
        notes.append("The space has no `measure` stage: there are no trials for the clock alone.")
    if not clock_measured:
        notes.append("No time to target was measured: nothing here says that more runners get there sooner.")
    notes.append(
        "Environment steps and wall clock answer different questions; the table of evaluations is at equal "
        "environment steps."
    )
    made: dict[str, Any] = as_json(content | {"notes": notes})
    return made


# --- arms ------------------------------------------------------------------------------------------------------------


def _groups(trials: Mapping[int, TrialHistory]) -> Groups:
    """Return the arms of the confirmation: the winner, the small scale's best, baselines, RLlib's own parts."""
    groups: dict[tuple[str, int], list[TrialHistory]] = defaultdict(list)
    for trial in sorted(trials.values(), key=lambda trial: trial.row.seed):
        if stage_of(trial.row.stage).judges:
            groups[trial.row.anchor or "", trial.row.num_env_runners].append(trial)
    order = {WINNER: 0, BEST_SMALL: 1, WINNER_STOCK: 3}
    return {key: groups[key] for key in sorted(groups, key=lambda key: (order.get(key[0], 2), key))}


def _run(trial: TrialHistory, spec: StudySpec) -> Run:
    """Return what a trial came to, with the last evaluation below its target, before it was reached or the run ended.

    An evaluation at the target that is the last of all does not count: another one would have confirmed it.
    """
    hit = trial.row.summary.get("env_steps_to_target")
    seen = [each for each in trial.evaluations if hit is None or each.env_steps < hit]
    if hit is None and seen and sum(seen[-1].returns) / len(seen[-1].returns) >= spec.target:
        seen.pop()
    steps, seconds = (seen[-1].env_steps, seen[-1].wall_time_s) if seen else (0.0, 0.0)
    return replace(run_of(spec, trial.row), env_steps_before_target=steps, time_before_target_s=seconds)


def _of_arm(spec: StudySpec, arm: Arm, trials: Sequence[TrialHistory]) -> dict[str, Any]:
    """Return what the runs of an arm came to.

    `folded`: one runner of RLlib had the environments of all: neither learning nor clock are those of the scale.
    `env_steps_to_target` is the restricted mean up to the horizon, at which a run counts that did not get there (they
    are `n_censored`); times are known no better than `resolution_env_steps`, which lie between two evaluations.
    `cpu_s_reserved` is None where lanes were emulated: what real runners would reserve is not known.
    """
    rows = [trial.row for trial in trials]
    finals = [_final_return(row, spec.floor) for row in rows]
    horizon, times = horizon_of([arm], spec.budget.env_steps), arm.times("env_steps_to_target")
    ends, reached = censored(times, horizon or 0.0)
    apart = (
        run.env_steps_to_target - (run.env_steps_before_target or 0.0) for run in arm.runs if run.env_steps_to_target
    )
    folded, execution = any(row.scale is not None for row in rows), ", ".join(sorted({row.execution for row in rows}))
    unreal = folded or any(row.execution == "emulated" for row in rows)
    return {
        "name": arm.name,
        "scale": arm.scale,
        "digest": rows[0].digest,
        "variant": rows[0].variant,
        "execution": execution,
        "timing": _counted(row.timing for row in rows),
        "folded": folded,
        "n": len(rows),
        "n_failed": arm.num_failed,
        "seeds": [row.seed for row in rows],
        "solved": arm.num_solved,
        "solve_rate": rate_interval(arm.num_solved, len(rows)),
        "score": mean_interval(arm.scores),
        "iqm_final_return": iqm_interval(finals),
        "env_steps_to_target": restricted_mean(ends, reached, horizon=horizon) if horizon else None,
        "horizon_env_steps": horizon,
        "resolution_env_steps": max(apart, default=None),
        "n_censored": int((~reached).sum()),
        "cpu_s_spent": _mean(row.summary.get("cpu_s_spent") for row in rows),
        "cpu_s_reserved": None if unreal else _mean(row.summary.get("cpu_s_reserved") for row in rows),
        "curve": dict(_curve(spec, trials)),
    }


def _curve(spec: StudySpec, trials: Sequence[TrialHistory]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the runs at every evaluation of the budget; a run that failed counts as the floor from then on.

    Environment steps are the median over the runs: batches differ, and so do the moments of evaluation.
    """
    of, floor = spec.evaluation.num_evaluations, spec.floor
    at: list[dict[int, float]] = []
    steps: dict[int, list[int]] = defaultdict(list)
    for trial in trials:
        returns: dict[int, float] = {}
        for record in trial.evaluations:
            mean = sum(record.returns) / len(record.returns)
            number = math.floor(record.progress * of + _ROUNDING)
            returns[number] = mean if math.isfinite(mean) else floor
            steps[number].append(record.env_steps)
        at.append(returns)
    for number in sorted(steps):
        values = [
            returns.get(number, floor)
            for trial, returns in zip(trials, at, strict=True)
            if number in returns or (trial.row.status == "failed" and number > max(returns, default=0))
        ]
        at_target = sum(value >= spec.target for value in values)
        point = {"env_steps": int(np.median(steps[number])), "iqm_return": iqm_interval(values), "at_target": at_target}
        yield f"{number}/{of}", point


def _final_return(row: TrialRow, floor: float) -> float:
    final = row.summary.get("final_return")
    return final if row.status == "finished" and final is not None and math.isfinite(final) else floor


def _mean(values: Iterable[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return mean_interval(known) if known else None


def _counted(labels: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(label or "never built" for label in labels).items()))


def _comparisons(
    identity: StudyIdentity, spec: StudySpec, ledger: Ledger, arms: Mapping[tuple[str, int], Arm]
) -> dict[str, Any]:
    """Return the winner against the confirmed baselines, and how these were chosen."""
    holdup, lost = holdup_of(spec), half_decided(ledger).get("lost", False)
    target, others = holdup.target_scale, (WINNER, WINNER_STOCK, BEST_SMALL)
    baselines = [arm for (name, scale), arm in arms.items() if scale == target and name not in others]
    short = [arm.name for arm in baselines if len(arm.runs) < holdup.confirm.num_seeds_others]
    means = next(each.evidence["baselines"] for each in ledger.decisions if "baselines" in each.evidence)
    chosen = f"chosen on {count(BASELINE_SEEDS, 'seed')}"
    seed = hashlib.sha256(f"{identity.digest} comparisons".encode()).digest()
    return compare(
        arms[WINNER, target],
        baselines,
        rng=np.random.default_rng(int.from_bytes(seed[:8], "big")),
        level=LEVEL_HALF if lost else LEVEL,
        stopped=() if lost else short,
        screening=f"{len(baselines)} confirmed of {len(means)} that ran; {chosen}",
    )


# --- the study -------------------------------------------------------------------------------------------------------

_SEEDS = ("tune_seeds", "rank_seeds", "test_seeds")


def _seeds(spec: StudySpec, ledger: Ledger, name: str) -> dict[str, int]:
    seeds, stages = getattr(spec.holdup, name), {each.name for each in STAGES.values() if each.seeds == name}
    used = {row.seed for row in ledger.rows.values() if row.stage in stages}
    return {"first": seeds.first, "count": seeds.count, "used": len(used)}


def _optimism(ledger: Ledger, winner: str, target: int, arm: Arm) -> dict[str, Any]:
    """Return how much better the winner looked on rank seeds, when it was chosen, than on test seeds."""
    scores = [
        score if row.status == "finished" and score is not None and math.isfinite(score) else 0.0
        for row in ledger.rows.values()
        if (row.digest, row.num_env_runners) == (winner, target) and row.stage in ("race", "stress")
        for score in (row.summary.get("score"),)
    ]
    chosen, confirmed = mean_interval(scores), mean_interval(arm.scores)
    return {"when_chosen": chosen, "when_confirmed": confirmed, "optimism": chosen.value - confirmed.value}


def _cpu_hours(records: Iterable[Any]) -> dict[str, float]:
    """Return stage -> CPU time of its trials, interrupted attempts included; and `all`."""
    stages: dict[int, str] = {}
    spent: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for record in records:
        if isinstance(record, TrialStarted):
            stages[record.trial] = record.stage or ""
        elif isinstance(record, Iteration):
            spent[stages[record.trial]].append(record.metrics.get("cpu_time_s") or 0.0)
    hours = {stage: math.fsum(seconds) / 3600 for stage, seconds in spent.items()}
    return hours | {"all": math.fsum(hours.values())}


def _trials(ledger: Ledger) -> dict[str, dict[str, int]]:
    restarted, rows = Counter(trial for trial, _ in ledger.restarts), ledger.rows.values()
    return {
        stage: {
            "n": sum(row.stage == stage for row in rows),
            "n_failed": sum(row.stage == stage and row.status == "failed" for row in rows),
            "n_restarts": sum(restarted[row.trial] for row in rows if row.stage == stage),
        }
        for stage in STAGES
    }


def _measured(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the short trials with real runners by kind and scale: least, median and largest rate that was measured."""
    groups: dict[tuple[str, int], list[TrialRow]] = defaultdict(list)
    for row in ledger.rows.values():
        if row.stage == "measure":
            groups[row.anchor or "", row.num_env_runners].append(row)
    for (kind, scale), rows in sorted(groups.items()):
        timed = (row.summary.get("env_steps_per_s") for row in rows if row.timing == "measured")
        rates = [rate for rate in timed if rate is not None]
        yield {
            "kind": kind,
            "scale": scale,
            "n": len(rows),
            "n_failed": sum(row.status == "failed" for row in rows),
            "timing": _counted(row.timing for row in rows),
            "env_steps_per_s": (min(rates), float(np.median(rates)), max(rates)) if rates else None,
        }


def _without_paths(value: Any) -> Any:
    """Return the value with absolute paths cut to their last part: where a file lay is private."""
    if isinstance(value, dict):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    return f"…/{PurePath(value).name}" if isinstance(value, str) and value.startswith(("/", "~")) else value


# --- notes: what a reader has to know beside the figures -------------------------------------------------------------


def half_decided(ledger: Ledger) -> Mapping[str, Any]:
    """Return the evidence of the decision after the first half of the confirmation; empty where there was none."""
    return next((each.evidence for each in ledger.decisions if "stopped" in each.evidence), {})


def _of_the_arms(spec: StudySpec, ledger: Ledger, arms: Mapping[tuple[str, int], Arm]) -> Iterator[str]:
    target, small = holdup_of(spec).target_scale, holdup_of(spec).small_scale
    num_runs = len(arms[WINNER, target].runs)
    most = 1 - rate_interval(num_runs, num_runs).low
    yield f"Even where all {num_runs} test seeds reach the target, up to {most:.0%} of runs may miss it (95 %)."
    if half_decided(ledger).get("lost") is False:
        judged = [arm for (name, scale), arm in arms.items() if name == WINNER and scale != small]
        num_runs, solved = sum(len(arm.runs) for arm in judged), sum(arm.num_solved for arm in judged)
        most = 1 - rate_interval(solved, num_runs).low
        yield (
            f"{solved} of the winner's {num_runs} runs at {listed([arm.scale for arm in judged])} runners reached the "
            f"target: if runs miss it equally often at all of them, at most {most:.1%} do (95 %, two-sided)."
        )
    if (BEST_SMALL, small) not in arms:
        yield f"The winner is also the best setting at {small} runners: it is its own reference there, in one arm."
    if any(row.execution == "emulated" for row in ledger.rows.values()):
        yield (
            "Emulated trials step the lanes of all runners in few processes: they learn the same, and their times "
            "are no facts about real runners. What these would reserve (`cpu_s_reserved`) is then not known."
        )
    if any(row.stage == "confirm" and row.scale is not None for row in ledger.rows.values()):
        yield (
            f"`{WINNER_STOCK}` is one of RLlib's own runners with the environments of all: not as many of its runners, "
            "which append more rows to a batch and take more gradient steps. Its clock is not that of the scale either."
        )
    if ("naive_growth", target) not in arms:
        yield "naive_growth is no arm of this study: its rule is not required."


def _of_the_course(
    spec: StudySpec, ledger: Ledger, openings: Sequence[StudyOpened], cpu_hours: Mapping[str, float]
) -> Iterator[str]:
    yield f"The study follows version {PROTOCOL} of the protocol."
    yield (
        f"Every run of the confirmation plays {spec.evaluation.episodes} evaluation episodes of its own, which no "
        "other trial plays: intervals over runs hold the spread between runs and between episodes."
    )
    yield (
        f"The confirmation ran in two halves. Bounds of the verdict have the level {LEVEL:.1%}, what stops an arm "
        f"after its first half {LEVEL_HALF:.1%}: for rules 1 and 3 both errors together are at most 5 %. At half "
        "rule 3 is judged by a permutation test, which has its level exactly, rule 1 by Welch's bound, which has "
        "it for normal scores; at the end rule 3 rests on a bootstrap, whose level is approximate. "
        "Intervals of single arms are of the runs that there are, at 95 %."
    )
    for each in ledger.decisions:
        for name, trials in each.evidence.get(REUSED, {}).items():
            numbers = ", ".join(map(str, trials))
            yield f"`{name}` was not run again on {len(trials)} seeds: trials {numbers} ran the same before."
    halfway = half_decided(ledger)
    if halfway.get("lost"):
        yield (
            "No arm ran on after the first half: too many runs of the winner missed the target to keep rule 2. The "
            f"rest is not judged where more runs could change it, and baselines are compared at {LEVEL_HALF:.1%}."
        )
    elif stopped := halfway.get("stopped"):
        worse = " A baseline stops early because it is clearly worse: its difference from the winner is overstated."
        of_baseline = any(name.partition("@")[0] not in (WINNER, BEST_SMALL) for name in stopped)
        yield f"Decided after the first half, and not run on: {', '.join(stopped)}.{worse if of_baseline else ''}"
    commits = dict.fromkeys(
        f"{(git.get('commit') or 'unknown')[:12]}{' with changes' if git.get('dirty') else ''}"
        for git in (opened.provenance.get("git") or {} for opened in openings)
    )
    if len(commits) > 1:
        yield f"The study ran under {len(commits)} commits, not under one: {', '.join(commits)}."
    budget, spent = holdup_of(spec).cpu_hours, sum(cpu_hours[stage] for stage in STAGES if stage != "measure")
    if budget is not None and spent > budget:
        raised = ", or more where a resume raised it" if len(openings) > 1 else ""
        yield f"{spent:.2f} CPU-hours were spent up to the confirmation; the budget was {budget:g}{raised}."
    for each in ledger.decisions:
        if each.cancelled:
            reason = each.evidence.get("cancelled", "no reason is on record")
            yield f"{len(each.cancelled)} trials of `{each.phase}` were not run: {reason}."
