"""What a search says: the best setting of each scale, how sure that is, what to run next. Selects; pandas."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
import pandas as pd

from analysis.answers.answer import Answer
from analysis.answers.facts import (
    MOST_NAMED,
    Fact,
    capital,
    complete,
    cost_and_clocks,
    estimate_of,
    in_words,
    nothing_yet,
    progress,
    run_again,
    runners,
    table_of,
    to_copy,
    unfinished,
    values_in_words,
)
from analysis.answers.throughput import main_workload, overlap, price_list
from analysis.estimates.settings import Setting, learning_runs
from analysis.load.study_data import StudyData
from analysis.tables import columns
from analysis.tables.table import Table
from study.space.domains import Range
from study.space.parameters import PARAMETERS, SCALE
from study.statistics import Estimate
from study.text import count, duration, listed

if TYPE_CHECKING:
    from analysis.opened import Study

NEW_SEEDS = 5
"""Runs of the best setting that the recommended command starts: the fewest of which a mean has a useful interval."""
EDGE = 0.02
"""Share of a range, on its own scale, within which a value counts as lying at its edge."""
BEST = (
    columns.count(SCALE, "runners", "Environment runners."),
    columns.text("setting", "best setting", "The values that differ in this study."),
    columns.estimate("final_return", "1", "return", "Interquartile mean of the final returns."),
    columns.count("n", "runs", "Runs of this setting at this scale."),
    columns.text("solved", "settings that solved it", "In every run, of those tried here."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One setting at one scale, with what its runs came to."""

    of: Setting
    setting: Mapping[str, Any]
    """Values of the parameters that differ in the study; the rest is the same for all."""
    final_return: Estimate
    num_solved: int | None
    """Runs that ended at the target; None where no target is known."""
    max_iterations: int | None = None
    """Length of its trainings where the study has several; else None."""

    @property
    def scale(self) -> int:
        """Its number of runners."""
        return self.of.num_env_runners

    @property
    def solved(self) -> bool:
        """Whether every run ended at the target."""
        return self.num_solved == len(self.of.runs)

    def words(self, *, most: int = MOST_NAMED) -> str:
        """Return what sets it apart in the study, for a sentence: at most so many of its parameters."""
        length = "" if self.max_iterations is None else count(self.max_iterations, "iteration")
        return ", ".join(each for each in (values_in_words(self.setting, most=most), length) if each)


def candidates(study: "Study") -> list[Candidate]:
    """Return every setting at every scale that ended with a return, the best first."""
    runs, spec = learning_runs(study.data.runs), study.data.spec
    returns = {
        (row["arm"], int(row[SCALE])): estimate_of(row)
        for _, row in study.estimates("final_return").dropna(subset=[SCALE]).iterrows()
    }
    varying = [name for name in PARAMETERS if name != SCALE and runs[name].nunique() > 1]
    shown = varying or [name for name in ("train_batch_size", "lr") if runs[name].notna().any()]
    several = runs["max_iterations"].nunique() > 1
    target = None if spec is None else spec.environment.target
    found = []
    for each in study.settings:
        value, some = returns.get((each.name, each.num_env_runners)), each.runs
        if value is None or some["final_return"].isna().all():
            continue
        first = some.iloc[0]
        solved = None if target is None else int((~each.failed & (some["final_return"] >= target)).fillna(False).sum())
        found.append(
            Candidate(
                of=each,
                setting={name: first[name] for name in shown if pd.notna(first[name])},
                final_return=value,
                num_solved=solved,
                max_iterations=int(first["max_iterations"]) if several and pd.notna(first["max_iterations"]) else None,
            )
        )
    return sorted(found, key=lambda each: each.of.order)


def search_answer(study: "Study", price_per_cpu_hour: float | None) -> Answer:
    """Return what a search says: which setting learnt best at each scale."""
    data, found = study.data, candidates(study)
    failed = [each for each in study.settings if each.failed.all() and each.runs["final_return"].isna().all()]
    if not found:
        missing = "which setting learns best: no trial has ended with a return."
        return Answer(kind=data.kind, findings=nothing_yet(data, missing))
    best, workload = found[0], main_workload(study.estimates())
    return Answer(
        kind=data.kind,
        findings=(
            _headline(found, data),
            *_support(found, failed),
            cost_and_clocks(data),
            *titles(study, best.of.name, best.scale),
            *unfinished(data),
            *_unknown(found, data),
        ),
        setting=to_copy({SCALE: best.scale, **best.setting}),
        rows=_rows(found, failed),
        prices=None if workload is None else price_list(workload, price_per_cpu_hour),
        figure="score" if len({each.scale for each in found}) > 1 else "return_steps",
    )


def titles(study: "Study", arm: str, scale: int) -> Iterator[Fact]:
    """Yield the score of a setting, and its env steps to the target, for the titles of figures."""
    who = "The best setting" if study.kind != "holdup" else capital(arm)
    for quantity, said in (("score", "scores {}"), ("steps_to_target", "takes {} env steps to the target")):
        rows = study.estimates(quantity, arm=arm, num_env_runners=scale)
        if len(rows):
            text = f"{who} {said.format(in_words(estimate_of(rows.iloc[0])))} with {runners(scale)}."
            yield Fact(role="title", text=text, quantity=quantity, num_env_runners=scale, arm=arm)


def _headline(found: Sequence[Candidate], data: StudyData) -> Fact:
    best, target = found[0], None if data.spec is None else data.spec.environment.target
    solved = ""
    if target is not None:
        reached = best.final_return.value >= target
        solved = f" (solved is {target:g})" if reached else f", below the {target:g} that counts as solved"
    values = best.words()
    where = f"{runners(best.scale)}{', ' + values if values else ''}"
    so_far, ended = ("", "") if complete(data) else (" so far", f"; {progress(data)}")
    value = in_words(best.final_return)
    if solved.startswith(" (") and value.endswith(")"):
        value, solved = value[:-1], f"; {solved[2:]}"
    end = f"{value}{solved}{ended}."
    text = f"The best setting{so_far} has {where}: return {end}"
    if len(found) == 1:
        text = f"With {where} this study reached a return of {end}"
    return Fact(role="answer", text=text, quantity="final_return", num_env_runners=best.scale, arm=best.of.name)


def _support(found: Sequence[Candidate], failed: Sequence[Setting]) -> Iterator[Fact]:
    best, n, tried = found[0], len(found[0].of.runs), len(found) + len(failed)
    seeds = "one run" if n == 1 else f"{n} runs"
    if n > 1 and best.num_solved is not None:
        seeds += f"; {best.num_solved or 'none'} of them ended at the target"
    how = f"is the best of {tried:,} settings, judged by" if tried > 1 else "is the only one that was tried, in"
    yield Fact(role="support", text=f"It {how} {seeds}.", quantity="solved_share", num_env_runners=best.scale)
    if failed:
        yield Fact(role="support", text=f"Of {len(failed):,} of them every run failed.")
    if n > 1:
        equal = [each for each in found[1:] if overlap(each.final_return, best.final_return)]
        said = "cannot be told from it: their intervals overlap"
    else:
        equal = [each for each in found[1:] if each.of.order[:2] == best.of.order[:2]]
        faster = bool(equal) and best.of.order[2] < equal[0].of.order[2]
        said = f"reached the same return{'; this one got to the target in the fewest steps' if faster else ''}"
    if equal:
        others = f"{len(equal):,} others" if len(equal) > 1 else "One other"
        yield Fact(role="support", text=f"{others} {said}.", quantity="final_return")


def _rows(found: Sequence[Candidate], failed: Sequence[Setting]) -> Table:
    """Return the best setting of each number of runners; where every run failed, that."""
    rows = []
    for scale in sorted({*(each.scale for each in found), *(each.num_env_runners for each in failed)}):
        some = [each for each in found if each.scale == scale]
        lost = [each for each in failed if each.num_env_runners == scale]
        row: dict[str, Any] = {SCALE: scale, "setting": "none: every run failed", "n": sum(len(e.runs) for e in lost)}
        if some:
            values = {"setting": some[0].words(most=4), "final_return": some[0].final_return, "n": len(some[0].of.runs)}
            row |= values
        if found[0].num_solved is not None:
            row["solved"] = f"{sum(each.solved for each in some)} of {len(some) + len(lost)}"
        rows.append(row)
    lost_runs = sum(len(each.runs) for each in failed)
    table = table_of("answer", "The best setting with each number of runners", BEST, rows, first=3)
    n = sum(len(each.of.runs) for each in found) + lost_runs
    return replace(table, n=n, n_failed=sum(int(each.of.failed.sum()) for each in found) + lost_runs)


def _unknown(found: Sequence[Candidate], data: StudyData) -> Iterator[Fact]:
    best, n = found[0], len(found[0].of.runs)
    if n < NEW_SEEDS:
        runs = "one run per setting" if n == 1 else f"{n} runs of it"
        order = "whether the order would be the same with other seeds" if len(found) > 1 else "how much seeds matter"
        seconds = (best.of.runs["ended"] - best.of.runs["started"]).dropna().mean() * NEW_SEEDS
        time = "" if pd.isna(seconds) else duration(max(float(seconds), 1.0))
        lasts = f"; {NEW_SEEDS} more of the best one take about {time}" if time else ""
        yield Fact(role="unknown", text=f"{order} ({runs}{lasts}).", command=_more_seeds(best, data))
    if data.spec is not None and data.spec.environment.target is None:
        yield Fact(role="unknown", text="whether this return is good: the space names no `environment.target`.")
    if edges := _edges(best, data):
        lie = "lies at the end of its range" if len(edges) == 1 else "lie at the ends of their ranges"
        text = f"whether a better value lies beyond: of the best setting, {listed(edges)} {lie}."
        yield Fact(role="unknown", text=text)
    timing = learning_runs(data.runs)["timing"].dropna()
    if (without := timing[timing != "measured"]).size:
        text = (
            f"what any of this takes in hours: {len(without):,} of {count(len(timing), 'run')} had no measured clock."
        )
        command = run_again(data, "real", ["execution=real"])
        needed = f" Real ones need {max(each.scale for each in found) + 1} CPUs." if command else ""
        yield Fact(role="unknown", text=f"{text}{needed}", command=command)


def _more_seeds(best: Candidate, data: StudyData) -> str:
    """Return the command that runs the best setting on new seeds."""
    spec = data.spec
    if spec is None or data.kind != "search":
        return ""
    first = max(set(data.runs["seed"].dropna().astype(int)), default=0) + 1
    row = best.of.runs.iloc[0]
    values = {SCALE: best.scale, **best.setting}
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
            found.append(values_in_words({name: best.setting[name]}))
    return found
