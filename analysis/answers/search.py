"""The answer of a search: the best setting of each scale, how sure that is, what to run next. Imports pandas."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pandas as pd

from analysis.answers.answer import Answer, Number, Unknown
from analysis.answers.prices import main_workload, price_list, target_prices
from analysis.answers.progress import complete, nothing_yet, progress, unfinished
from analysis.answers.words import (
    MOST_NAMED,
    clocks_counted,
    clocks_in_words,
    in_words,
    interval,
    known,
    run_again,
    runners,
    to_copy,
    took,
)
from analysis.estimates import Results, Row
from analysis.estimates.settings import Setting, learning_runs
from analysis.load.study_data import StudyData
from analysis.tables import columns
from analysis.tables.numbers import intervals_overlap
from analysis.tables.table import Layout, Table
from study.space.domains import Range
from study.space.parameters import PARAMETERS, SCALE
from study.statistics import Estimate
from study.text import count, duration, listed

NEW_SEEDS = 5
"""Runs of the best setting that the recommended command starts: the fewest of which a mean has a useful interval."""
EDGE = 0.02
"""Share of a range, on its own scale, within which a value counts as lying at its edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One setting at one scale, with what its runs came to."""

    num_env_runners: int
    setting: Mapping[str, Any]
    """Values of the parameters that differ in the study; the rest is the same for all."""
    final_return: Estimate
    place: tuple[float, float, float, int, str]
    """`Setting.order`; less is better."""
    num_solved: int | None
    """Runs that ended at the target; None where no target is known."""
    trials: tuple[int, ...]
    num_failed: int
    max_iterations: int | None = None
    """Length of its trainings where the study has several; else None."""

    def words(self, *, most: int = MOST_NAMED) -> str:
        """Return what sets it apart in the study, for a sentence: at most so many of its parameters."""
        length = "" if self.max_iterations is None else count(self.max_iterations, "iteration")
        return ", ".join(each for each in (in_words(self.setting, most=most), length) if each)

    @property
    def solved(self) -> bool | None:
        """Whether every run ended at the target; None where no target is known."""
        return None if self.num_solved is None else self.num_solved == len(self.trials)


def search_answer(results: Results, rows: Sequence[Row], price_per_cpu_hour: float | None) -> Answer:
    """Return what a search says: which setting learnt best at each scale."""
    data = results.data
    found = candidates(results, rows)
    failed = [each for each in results.settings if each.failed.all() and each.runs["final_return"].isna().all()]
    if not found:
        return nothing_yet(data, "which setting learns best: no trial has ended with a return.")
    best = found[0]
    by_scale = {each.num_env_runners: each for each in reversed(found)}
    target = data.spec.environment.target if data.spec is not None else None
    workload = main_workload(rows)
    return Answer(
        kind=data.kind,
        sentence=_sentence(found, target, data),
        setting=to_copy({SCALE: best.num_env_runners, **best.setting}),
        facts=tuple(_facts(found, failed, data, results.engine)),
        numbers=tuple(_numbers(best, found, failed, target)),
        rows=_rows(by_scale, found, failed),
        prices=target_prices(rows, price_per_cpu_hour)
        or (price_list(workload, price_per_cpu_hour) if workload else None),
        unknown=(*unfinished(data), *_unknown(best, found, data)),
        figure="score" if len(by_scale) > 1 else "return_steps",
    )


def candidates(results: Results, rows: Iterable[Row]) -> list[Candidate]:
    """Return every setting at every scale that ended with a return, the best first."""
    data = results.data
    returns = {(row.cell.arm, row.cell.num_env_runners): row.estimate for row in rows if row.quantity == "final_return"}
    runs = learning_runs(data.runs)
    varying = [name for name in PARAMETERS if name != SCALE and runs[name].nunique() > 1]
    lengths = runs["max_iterations"].nunique() > 1
    shown = varying or [name for name in ("train_batch_size", "lr") if runs[name].notna().any()]
    target = data.spec.environment.target if data.spec is not None else None
    found = []
    for setting in results.settings:
        some = setting.runs
        value = returns.get((setting.name, setting.num_env_runners))
        if value is None or some["final_return"].isna().all():
            continue
        limit = some["max_iterations"].iloc[0]
        solved = None if target is None else (~setting.failed & (some["final_return"] >= target)).fillna(False)
        found.append(
            Candidate(
                num_env_runners=setting.num_env_runners,
                setting={name: some[name].iloc[0] for name in shown if pd.notna(some[name].iloc[0])},
                final_return=value,
                place=setting.order,
                num_solved=None if solved is None else int(solved.sum()),
                trials=tuple(int(each) for each in some["trial"]),
                num_failed=int(setting.failed.sum()),
                max_iterations=int(limit) if lengths and pd.notna(limit) else None,
            )
        )
    return sorted(found, key=lambda each: each.place)


def _sentence(found: list[Candidate], target: float | None, data: StudyData) -> str:
    best = found[0]
    solved = ""
    if target is not None:
        reached = best.final_return.value >= target
        solved = f" (solved is {target:g})" if reached else f", below the {target:g} that counts as solved"
    values = best.words()
    where = f"{runners(best.num_env_runners)}{', ' + values if values else ''}"
    so_far, ended = ("", "") if complete(data) else (" so far", f"; {progress(data)}")
    if len(found) == 1:
        return f"With {where} this study reached a return of {known(best.final_return)}{solved}{ended}."
    return f"The best setting{so_far} has {where}: return {known(best.final_return)}{solved}{ended}."


def _facts(found: list[Candidate], failed: list[Setting], data: StudyData, engine: str) -> Iterator[str]:
    best, tried = found[0], len(found) + len(failed)
    seeds = "one run" if len(best.trials) == 1 else f"{len(best.trials)} runs"
    reached = "" if best.num_solved is None else f"; {best.num_solved or 'none'} of them ended at the target"
    if tried > 1:
        yield f"It is the best of {tried:,} settings, judged by {seeds}{reached if len(best.trials) > 1 else ''}."
    else:
        yield f"It is the only one that was tried, in {seeds}{reached if len(best.trials) > 1 else ''}."
    if failed:
        yield f"Of {len(failed):,} of them every run failed."
    if len(best.trials) > 1:
        equal = [each for each in found[1:] if intervals_overlap(each.final_return, best.final_return)]
        if equal:
            yield f"{_others(equal)} cannot be told from it: their intervals overlap."
    elif equal := [each for each in found[1:] if each.place[:2] == best.place[:2]]:
        faster = "; this one got to the target in the fewest steps" if best.place[2] < equal[0].place[2] else ""
        yield f"{_others(equal)} reached the same return{faster}."
    if cost := took(data):
        yield f"{cost}; engine: {engine}; {clocks_counted(data.runs)}."


def _others(found: list[Candidate]) -> str:
    return f"{len(found):,} others" if len(found) > 1 else "One other"


def _numbers(best: Candidate, found: list[Candidate], failed: list[Setting], target: float | None) -> Iterator[Number]:
    many = len(best.trials) > 1
    note = interval(best.final_return) if many else "one run, no interval"
    yield Number(label="return", text=known(best.final_return), note=note)
    if target is not None:
        solved = sum(bool(each.solved) for each in found)
        text = f"{solved} of {len(found) + len(failed)}"
        yield Number(label="settings solved in every run", text=text, note=f"target: a return of {target:g}")
    runs, lost = _counted(found, failed)
    yield Number(label="runs behind this", text=f"{runs:,}", note=f"{lost:,} failed")


def _counted(found: list[Candidate], failed: list[Setting]) -> tuple[int, int]:
    """Return how many runs there are, and how many of them failed."""
    lost = sum(len(each.runs) for each in failed)
    return sum(len(each.trials) for each in found) + lost, sum(each.num_failed for each in found) + lost


def _rows(by_scale: Mapping[int, Candidate], found: list[Candidate], failed: list[Setting]) -> Table:
    """Return the best setting of each number of runners; where every run failed, that."""
    scales = sorted({*by_scale, *(each.num_env_runners for each in failed)})
    best = [by_scale.get(scale) for scale in scales]
    lost = {scale: [each for each in failed if each.num_env_runners == scale] for scale in scales}
    many = any(len(each.trials) > 1 for each in by_scale.values())
    kind = columns.estimate("final_return", "1", "return", "Interquartile mean of the final returns.")
    layout = Layout(
        key="answer",
        title="The best setting with each number of runners",
        columns=(
            columns.count("num_env_runners", "runners", "Environment runners."),
            columns.text("setting", "best setting", "The values that differ in this study."),
            replace(kind, estimate=many),
            columns.count("n", "runs", "Runs of this setting at this scale."),
            columns.text(
                "solved",
                "settings that solved it",
                "Settings of which every run ended at the target, of those tried here.",
            ),
        ),
        first=("setting", "final_return"),
    )
    returns = [each and each.final_return for each in best]
    solved = {scale: [each.solved for each in found if each.num_env_runners == scale] for scale in scales}
    judged = any(each.solved is not None for each in found)
    runs, num_failed = _counted(found, failed)
    return layout.table(
        scales,
        "The best setting of each scale.",
        n=runs,
        n_failed=num_failed,
        values={
            "num_env_runners": scales,
            "setting": ["none: every run failed" if each is None else each.words(most=4) for each in best],
            "final_return": returns if many else [each and each.value for each in returns],
            "n": [
                sum(len(each.runs) for each in lost[scale]) if one is None else len(one.trials)
                for scale, one in zip(scales, best, strict=True)
            ],
            "solved": [f"{sum(map(bool, some))} of {len(some) + len(lost[scale])}" for scale, some in solved.items()],
        },
        hidden=() if judged else ("solved",),
    )


def _unknown(best: Candidate, found: list[Candidate], data: StudyData) -> Iterator[Unknown]:
    if len(best.trials) < NEW_SEEDS:
        runs = "one run per setting" if len(best.trials) == 1 else f"{len(best.trials)} runs of it"
        order = "whether the order would be the same with other seeds" if len(found) > 1 else "how much seeds matter"
        ended = data.runs.set_index("trial").loc[list(best.trials)]
        seconds = (ended["ended"] - ended["started"]).dropna().mean() * NEW_SEEDS
        time = "" if pd.isna(seconds) else duration(max(float(seconds), 1.0))
        lasts = f"; {NEW_SEEDS} more of the best one take about {time}" if time else ""
        yield Unknown(text=f"{order} ({runs}{lasts}).", command=_more_seeds(best, data))
    if data.spec is not None and data.spec.environment.target is None:
        yield Unknown(text="whether this return is good: the space names no `environment.target`.")
    if edges := _edges(best, data):
        lie = "lies at the end of its range" if len(edges) == 1 else "lie at the ends of their ranges"
        text = f"whether a better value lies beyond: of the best setting, {listed(edges)} {lie}."
        yield Unknown(text=text)
    told = clocks_in_words(learning_runs(data.runs))
    if told:
        most = max(each.num_env_runners for each in found)
        text = f"what any of this takes in hours: {told}, so their times say nothing about real runners."
        command = run_again(data, "real", ["execution=real"])
        needed = f" Real ones need {most + 1} CPUs." if command else ""
        yield Unknown(text=f"{text}{needed}", command=command)


def _more_seeds(best: Candidate, data: StudyData) -> str:
    spec = data.spec
    if spec is None or data.kind != "search":
        return ""
    used = set(data.runs["seed"].dropna().astype(int))
    first = max(used, default=0) + 1
    values = {SCALE: best.num_env_runners, **best.setting}
    row = data.runs[data.runs["trial"] == best.trials[0]].iloc[0]
    exact = {name: int(each) if PARAMETERS[name].kind is int else float(f"{float(each):.6g}")
             for name, each in values.items()}  # fmt: skip
    if set(spec.tuned) <= set(exact):
        changes = [f"parameters.{name}={each}" for name, each in exact.items() if name in spec.tuned or name == SCALE]
    else:  # a rule gives some values: all parameters in its place
        every = {name: row[name] for name in PARAMETERS if pd.notna(row[name])}
        every = {name: int(each) if PARAMETERS[name].kind is int else float(each) for name, each in every.items()}
        changes = [f"parameters={orjson.dumps(every).decode()}"]
    if spec.search.sampler != "grid":
        changes += ["search.sampler=grid", "search.num_trials=null"]
    changes += ["search.baselines=[]"] if spec.search.baselines else []
    if isinstance(spec.budget.iterations, list):
        changes.append(f"budget.iterations={row['max_iterations']}")
    return run_again(data, "seeds", [*changes, f"search.seeds={list(range(first, first + NEW_SEEDS))}"])


def _edges(best: Candidate, data: StudyData) -> list[str]:
    """Return the searched parameters whose best value lies at an end of its range, in words."""
    found = []
    for name, domain in (data.spec.tuned if data.spec is not None else {}).items():
        if not isinstance(domain, Range) or name not in best.setting:
            continue
        low, high, at = float(domain.low), float(domain.high), float(best.setting[name])
        if domain.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        if high > low and min(at - low, high - at) / (high - low) <= EDGE:
            found.append(in_words({name: best.setting[name]}))
    return found
