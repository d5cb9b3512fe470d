"""Records -> the figures of a certificate. Pure.

The same records give the same figures: each one that needs random numbers draws them from a generator of its own,
seeded with the study's digest and the figure's name.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np

from study.designs.holdup.arms import Arm, Run, arms_of, run_of, score_of
from study.designs.holdup.certificate.content import ArmFigures, Certificate, Optimism, Point
from study.designs.holdup.certificate.diagnosis import TrialHistory, diagnose, histories
from study.designs.holdup.certificate.notes import half_decided, notes
from study.designs.holdup.comparison import compare
from study.designs.holdup.phases import BASELINE_SEEDS, holdup_of
from study.designs.holdup.verdict import LEVEL, LEVEL_HALF, censored, horizon_of, judge, limits_of, num_solved_needed
from study.records.folder import StudyIdentity
from study.records.ledger import TrialRow, fold
from study.records.records import Evaluation, Iteration, Line, StudyOpened, TrialStarted
from study.space.parameters import Value
from study.space.sections import SeedsSpec
from study.space.settings import BEST_SMALL, STAGES, WINNER, WINNER_STOCK, fitted
from study.space.spec import StudySpec
from study.statistics import Estimate, iqm_interval, mean_interval, rate_interval, restricted_mean
from study.text import count

FORMAT = 4
"""Version of the certificate's content."""
MACHINE = ("time", "git", "versions", "platform", "cpu_model", "physical_cpus", "usable_cpus", "memory_mb", "scheduler")
"""What the certificate takes of a session's provenance; the command line and the environment hold paths."""
_ROUNDING = 1e-9
"""Progress is a sum of fractions."""


class Maker:
    """One certificate in the making."""

    def __init__(self, identity: StudyIdentity, spec: StudySpec, lines: Sequence[Line]) -> None:
        self._identity, self._spec, self._holdup = identity, spec, holdup_of(spec)
        self._lines = lines
        self._ledger = fold((line.record, line.time) for line in lines)
        self._histories = histories((line.record for line in lines), self._ledger.rows)
        groups: dict[tuple[str, int], list[TrialHistory]] = defaultdict(list)
        for trial in self._histories.values():
            if trial.row.stage == "confirm":
                groups[trial.row.anchor or "", trial.row.num_env_runners].append(trial)
        order = {WINNER: 0, BEST_SMALL: 1, WINNER_STOCK: 3}
        self._groups = {
            key: sorted(groups[key], key=lambda trial: trial.row.seed)
            for key in sorted(groups, key=lambda key: (order.get(key[0], 2), key))
        }
        self._arms = {
            (name, scale): Arm(name=name, scale=scale, runs=tuple(_run(trial, spec) for trial in trials))
            for (name, scale), trials in self._groups.items()
        }

    def certificate(self) -> Certificate:
        """Return it."""
        spec, holdup, ledger = self._spec, self._holdup, self._ledger
        target, small = holdup.target_scale, holdup.small_scale
        verdict, cpu_hours = judge(arms_of(self._arms, holdup), limits_of(spec)), self._cpu_hours()
        openings = [line.record for line in self._lines if isinstance(line.record, StudyOpened)]
        baselines, lost = self._baselines(), half_decided(ledger).get("lost", False)
        short = [arm.name for arm in baselines if len(arm.runs) < holdup.confirm.num_seeds_others]
        comparisons = compare(
            self._arms[WINNER, target],
            baselines,
            rng=self._rng("comparisons"),
            level=LEVEL_HALF if lost else LEVEL,
            stopped=() if lost else short,
            screening=self._screening(),
        )
        return Certificate(
            format=FORMAT,
            study={
                "name": self._identity.name,
                "id": self._identity.study_id,
                "space_digest": self._identity.digest,
                "num_records": len(self._lines),
            },
            environment=_without_paths(self._identity.spec["environment"]),
            scales={
                "target": target,
                "small": small,
                "searched": list(spec.scales),
                "unseen": list(holdup.unseen_scales),
            },
            laws={"tolerance": holdup.tolerance, "solved_share": holdup.solved_share},
            budget=self._identity.spec["budget"],
            seeds=self._seeds(),
            winner=self._winner(),
            verdict=verdict,
            arms={f"{name}@{scale}": self._figures(name, scale) for name, scale in self._groups},
            comparisons=comparisons,
            optimism=self._optimism(),
            cpu_hours=cpu_hours,
            trials=self._trials(),
            clock_measured=verdict.clock_measured,
            diagnosis={
                f"{name}@{scale}": diagnose(trials, spec)
                for (name, scale), trials in self._groups.items()
                if name == WINNER or not self._solves(name, scale)
            },
            measured=list(self._measured()),
            decisions=[
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
            sessions=[
                {
                    "session": opened.session,
                    "provenance": {name: opened.provenance.get(name) for name in MACHINE},
                    "cluster": opened.cluster,
                }
                for opened in openings
            ],
            notes=list(notes(spec, ledger, openings, self._arms, verdict, cpu_hours)),
        )

    def _rng(self, place: str) -> np.random.Generator:
        """Return the generator of one figure."""
        seed = hashlib.sha256(f"{self._identity.digest} {place}".encode()).digest()
        return np.random.default_rng(int.from_bytes(seed[:8], "big"))

    def _baselines(self) -> list[Arm]:
        others = (WINNER, WINNER_STOCK, BEST_SMALL)
        return [
            arm
            for (name, scale), arm in self._arms.items()
            if scale == self._holdup.target_scale and name not in others
        ]

    def _screening(self) -> str:
        """Return how the baselines were chosen that were confirmed."""
        means = next(each.evidence["baselines"] for each in self._ledger.decisions if "baselines" in each.evidence)
        chosen = f"chosen on {count(BASELINE_SEEDS, 'seed')}"
        return f"{len(self._baselines())} confirmed of {len(means)} that ran; {chosen}"

    def _solves(self, name: str, scale: int) -> bool:
        arm = self._arms[name, scale]
        return arm.num_solved >= num_solved_needed(len(arm.runs), self._holdup.solved_share)

    # --- arms --------------------------------------------------------------------------------------------------

    def _figures(self, name: str, scale: int) -> ArmFigures:
        trials, arm = self._groups[name, scale], self._arms[name, scale]
        finals = [_final_return(trial.row, self._spec.floor) for trial in trials]
        rows = [trial.row for trial in trials]
        horizon, times = horizon_of([arm], self._spec.budget.env_steps), arm.times("env_steps_to_target")
        reached = censored(times, horizon)[1] if horizon else np.zeros(len(times), dtype=np.bool_)
        reached_after = (
            run.env_steps_to_target - (run.env_steps_before_target or 0.0)
            for run in arm.runs
            if run.env_steps_to_target is not None
        )
        folded = any(row.scale is not None for row in rows)
        emulated = any(row.execution == "emulated" for row in rows)
        return ArmFigures(
            name=name,
            scale=scale,
            digest=rows[0].digest,
            variant=rows[0].variant,
            execution=", ".join(sorted({row.execution for row in rows})),
            timing=_counted(row.timing for row in rows),
            folded=folded,
            n=len(rows),
            n_failed=arm.num_failed,
            seeds=tuple(row.seed for row in rows),
            solved=arm.num_solved,
            solve_rate=rate_interval(arm.num_solved, len(rows)),
            score=mean_interval(arm.scores),
            iqm_final_return=iqm_interval(finals),
            env_steps_to_target=restricted_mean(*censored(times, horizon), horizon=horizon) if horizon else None,
            horizon_env_steps=horizon,
            resolution_env_steps=max(reached_after, default=None),
            n_censored=int((~reached).sum()),
            cpu_s_spent=_mean([row.summary.get("cpu_s_spent") for row in rows]),
            # What one process of an emulated trial reserves says nothing of what its runners would.
            cpu_s_reserved=None if emulated or folded else _mean([row.summary.get("cpu_s_reserved") for row in rows]),
            curve=dict(self._curve(trials)),
        )

    def _curve(self, trials: Sequence[TrialHistory]) -> Iterator[tuple[str, Point]]:
        """Yield the runs at every evaluation of the budget; a run that failed counts as the floor from then on."""
        count, floor = self._spec.evaluation.num_evaluations, self._spec.floor
        at: list[dict[int, float]] = []
        steps: dict[int, list[int]] = defaultdict(list)
        for trial in trials:
            returns: dict[int, float] = {}
            for record in trial.evaluations:
                mean = sum(record.returns) / len(record.returns)
                number = math.floor(record.progress * count + _ROUNDING)
                returns[number] = mean if math.isfinite(mean) else floor
                steps[number].append(record.env_steps)
            at.append(returns)
        for number in sorted(steps):
            values = [
                returns.get(number, floor)
                for trial, returns in zip(trials, at, strict=True)
                if number in returns or (trial.row.status == "failed" and number > max(returns, default=0))
            ]
            yield (
                f"{number}/{count}",
                Point(
                    env_steps=int(np.median(steps[number])),
                    iqm_return=iqm_interval(values),
                    at_target=sum(value >= self._spec.target for value in values),
                ),
            )

    # --- the study ---------------------------------------------------------------------------------------------

    def _seeds(self) -> dict[str, Any]:
        used: dict[str, set[int]] = defaultdict(set)
        for row in self._ledger.rows.values():
            used[row.stage or ""].add(row.seed)

        def shown(seeds: SeedsSpec, *stages: str) -> dict[str, int]:
            count = len(set().union(*(used[stage] for stage in stages)))
            return {"first": seeds.first, "count": seeds.count, "used": count}

        return {
            "tune": shown(self._holdup.tune_seeds, "calibrate", "search"),
            "rank": shown(self._holdup.rank_seeds, "race", "stress"),
            "test": shown(self._holdup.test_seeds, "confirm", "measure"),
        }

    def _winner(self) -> dict[str, Any]:
        assert self._ledger.frozen is not None  # compared with the decision that froze it
        digest = self._ledger.frozen.winner
        rule: dict[str, Value] = self._ledger.frozen.settings[digest]
        judged = (self._holdup.target_scale, self._holdup.small_scale, *self._holdup.unseen_scales)
        scales = sorted({*self._spec.scales, *judged})
        return {
            "digest": digest,
            "rule": rule,
            "resolved": {str(scale): fitted(self._spec, rule, scale) for scale in scales},
        }

    def _optimism(self) -> Optimism:
        digest, target = self._winner()["digest"], self._holdup.target_scale
        chosen = [
            score_of(row)
            for row in self._ledger.rows.values()
            if row.digest == digest and row.num_env_runners == target and row.stage in ("race", "stress")
        ]
        when_chosen, when_confirmed = mean_interval(chosen), mean_interval(self._arms[WINNER, target].scores)
        return Optimism(
            when_chosen=when_chosen,
            when_confirmed=when_confirmed,
            optimism=when_chosen.value - when_confirmed.value,
        )

    def _cpu_hours(self) -> dict[str, float]:
        stages: dict[int, str] = {}
        spent: dict[str, list[float]] = {stage: [] for stage in STAGES}
        for record in (line.record for line in self._lines):
            if isinstance(record, TrialStarted):
                stages[record.trial] = record.stage or ""
            elif isinstance(record, Iteration):
                spent[stages[record.trial]].append(record.metrics.get("cpu_time_s") or 0.0)
        hours = {stage: math.fsum(seconds) / 3600 for stage, seconds in spent.items()}
        return hours | {"all": math.fsum(hours.values())}

    def _trials(self) -> dict[str, dict[str, int]]:
        restarted = [trial for trial, _ in self._ledger.restarts]
        table: dict[str, dict[str, int]] = {}
        for stage in STAGES:
            rows = [row for row in self._ledger.rows.values() if row.stage == stage]
            table[stage] = {
                "n": len(rows),
                "n_failed": sum(row.status == "failed" for row in rows),
                "n_restarts": sum(restarted.count(row.trial) for row in rows),
            }
        return table

    def _measured(self) -> Iterator[dict[str, Any]]:
        groups: dict[tuple[str, int], list[TrialRow]] = defaultdict(list)
        for row in self._ledger.rows.values():
            if row.stage == "measure":
                groups[row.anchor or "", row.num_env_runners].append(row)
        for (kind, scale), rows in sorted(groups.items()):
            rates = [
                rate
                for row in rows
                if row.timing == "measured" and (rate := row.summary.get("env_steps_per_s")) is not None
            ]
            yield {
                "kind": kind,
                "scale": scale,
                "n": len(rows),
                "n_failed": sum(row.status == "failed" for row in rows),
                "timing": _counted(row.timing for row in rows),
                "env_steps_per_s": (min(rates), float(np.median(rates)), max(rates)) if rates else None,
            }


# Small parts


def _run(trial: TrialHistory, spec: StudySpec) -> Run:
    before = _before_target(trial, spec.target)
    return replace(
        run_of(spec, trial.row),
        env_steps_before_target=before.env_steps if before else 0.0,
        time_before_target_s=before.wall_time_s if before else 0.0,
    )


def _before_target(trial: TrialHistory, target: float) -> Evaluation | None:
    """Return the last evaluation that saw the run below its target, before it was reached or the run ended.

    One at the target that is the last of all does not count: another one would have confirmed it.
    """
    hit = trial.row.summary.get("env_steps_to_target")
    seen = [each for each in trial.evaluations if hit is None or each.env_steps < hit]
    if hit is None and seen and sum(seen[-1].returns) / len(seen[-1].returns) >= target:
        seen.pop()
    return seen[-1] if seen else None


def _final_return(row: TrialRow, floor: float) -> float:
    final = row.summary.get("final_return")
    return final if row.status == "finished" and final is not None and math.isfinite(final) else floor


def _mean(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return mean_interval(known) if known else None


def _counted(labels: Iterator[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(label or "never built" for label in labels).items()))


def _without_paths(value: Any) -> Any:
    """Return the value with absolute paths cut to their last part: where a file lay is private."""
    if isinstance(value, dict):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    return f"…/{PurePath(value).name}" if isinstance(value, str) and value.startswith(("/", "~")) else value
