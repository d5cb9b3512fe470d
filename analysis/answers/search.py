"""What a search says: the best setting of each scale, how sure that is, what to run next. Selects."""

import math
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.answers.answer import Answer
from analysis.answers.facts import (
    Fact,
    complete,
    cost_and_clocks,
    nothing_yet,
    overlap,
    progress,
    run_again,
    runners,
    to_copy,
    unfinished,
    values_in_words,
)
from analysis.answers.throughput import unmeasured
from analysis.estimates.settings import learning_runs
from analysis.load import StudyData
from analysis.quantity import estimate_of
from analysis.tables.numbers import in_words
from analysis.tables.scaling import num_seeds
from analysis.tables.table import Table, TableColumn, table_of
from study.space.domains import Range
from study.space.parameters import PARAMETERS, SCALE
from study.text import count, duration, listed

if TYPE_CHECKING:
    from analysis.opened import Study

NEW_SEEDS = 5
"""Runs of the best setting that the recommended command starts: the fewest of which a mean has a useful interval."""
EDGE = 0.02
"""Share of a range, on its own scale, within which a value counts as lying at its edge."""
BEST = (
    TableColumn(SCALE, "1", "runners", "Environment runners."),
    TableColumn("setting", "", "best setting", "The values that differ in this study."),
    TableColumn("final_return", "1", "return", "Interquartile mean of the final returns.", estimate=True),
    TableColumn("n", "1", "runs", "Runs of this setting at this scale, each of a seed of its own."),
    TableColumn("solved", "", "settings that solved it", "In every run, of those tried here."),
)


def candidates(study: "Study") -> pd.DataFrame:
    """Return every setting at every scale, the best first, those of which every run failed without a return last.

    Returns:
        Columns: `arm`, the name of the setting; `num_env_runners`; `values`, those of the parameters that differ in the
        study; `runs`, its rows of trials; `n`, its seeds; `final_return`, an estimate or None; `num_solved`, runs at
        the target, None where the space has no target; `order`, its place among others.
    """
    runs = learning_runs(study.data.runs)
    known = study.estimates("final_return").dropna(subset=[SCALE])
    returns = {(row["arm"], row[SCALE]): estimate_of(row) for _, row in known.iterrows()}
    varying = [name for name in PARAMETERS if name != SCALE and runs[name].nunique() > 1]
    shown = varying or [name for name in ("train_batch_size", "lr") if runs[name].notna().any()]
    rows = []
    for each in sorted(study.settings, key=lambda each: each.order):
        some, first = each.runs, each.runs.iloc[0]
        ended = some["final_return"].notna().any()
        rows.append(
            {
                "arm": each.name,
                SCALE: each.num_env_runners,
                "values": {name: first[name] for name in shown if pd.notna(first[name])},
                "runs": some,
                "n": num_seeds(some),
                "final_return": returns.get((each.name, each.num_env_runners)) if ended else None,
                "num_solved": None if each.target is None else int(each.solved.sum()),
                "order": each.order,
            }
        )
    columns = ["arm", SCALE, "values", "runs", "n", "final_return", "num_solved", "order"]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return frame.sort_values("final_return", key=lambda each: each.isna(), kind="stable").reset_index(drop=True)


def search_answer(study: "Study") -> Answer:
    """Return what a search says: which setting learnt best at each scale."""
    data, found = study.data, candidates(study)
    if _of_times(data) and study.measured.empty:
        return unmeasured(study)
    if found["final_return"].isna().all():
        missing = "which setting learns best: no trial has finished with a return."
        return Answer(kind=data.kind, findings=nothing_yet(data, missing))
    best = found.iloc[0]
    said = (_headline(found, data), *_support(found), cost_and_clocks(data))
    unknown = (*unfinished(data), *_unknown(found, data))
    return Answer(
        kind=data.kind,
        findings=(*said, *unknown),
        setting=to_copy({SCALE: best[SCALE], **best["values"]}),
        rows=_rows(found),
        figure="score" if found[SCALE].nunique() > 1 else "return_steps",
    )


def _of_times(data: StudyData) -> bool:
    """Return whether a search asks for times: real runners at several scales, and nothing else that differs."""
    real = data.runs[data.runs["execution"].eq("real").fillna(False)]
    return data.spec is not None and not data.spec.tuned and real[SCALE].nunique() > 1


def _headline(found: pd.DataFrame, data: StudyData) -> Fact:
    best, target = found.iloc[0], None if data.spec is None else data.spec.environment.target
    value, where = in_words(best["final_return"]), runners(best[SCALE])
    where += f", {words}" if (words := values_in_words(best["values"])) else ""
    if target is not None and best["final_return"].value < target:
        value += f", below the {target:g} that counts as solved"
    elif target is not None:
        value = f"{value[:-1]}; solved is {target:g})" if value.endswith(")") else f"{value} (solved is {target:g})"
    so_far, ended = ("", "") if complete(data) else (" so far", f"; {progress(data)}")
    text = f"The best setting{so_far} has {where}: return {value}{ended}."
    if found["final_return"].notna().sum() == 1:
        text = f"With {where} this study reached a return of {value}{ended}."
    return Fact(role="answer", text=text, quantity="final_return")


def _support(found: pd.DataFrame) -> Iterator[Fact]:
    best, n, tried = found.iloc[0], found["n"].iloc[0], len(found)
    seeds = "one run" if n == 1 else f"{n} runs"
    if n > 1 and best["num_solved"] is not None:
        seeds += f"; {best['num_solved'] or 'none'} of them ended at the target"
    how = f"is the best of {tried:,} settings, judged by" if tried > 1 else "is the only one that was tried, in"
    yield Fact(role="support", text=f"It {how} {seeds}.", quantity="solved_share")
    if failed := found["final_return"].isna().sum():
        yield Fact(role="support", text=f"Of {failed:,} of them every run failed.")
    others = found[found["final_return"].notna()].iloc[1:]
    if n > 1:
        equal = sum(overlap(each, best["final_return"]) for each in others["final_return"])
        said = "cannot be told from it: their intervals overlap"
    else:  # of single runs those are equal that have its score and its return
        steps = [each[2] for each in others["order"] if each[:2] == best["order"][:2]]
        equal, faster = len(steps), bool(steps) and best["order"][2] < steps[0]
        said = f"reached the same return{'; this one got to the target in the fewest steps' if faster else ''}"
    if equal:
        text = f"{f'{equal:,} others' if equal > 1 else 'One other'} {said}."
        yield Fact(role="support", text=text, quantity="final_return")


def _rows(found: pd.DataFrame) -> Table:
    """Return the best setting of each number of runners; where every run failed, that."""
    rows = []
    for scale, some in found.groupby(SCALE, sort=True):
        first, tried = some.iloc[0], len(some)
        lost = first["final_return"] is None
        row = {SCALE: scale, "setting": "none: every run failed" if lost else values_in_words(first["values"], most=4)}
        row |= {"final_return": first["final_return"], "n": some["n"].sum() if lost else first["n"]}
        if first["num_solved"] is not None:
            row["solved"] = f"{(some['num_solved'] == some['runs'].map(len)).sum()} of {tried}"
        rows.append(row)
    runs = pd.concat(found["runs"].tolist())
    title, failed = "The best setting with each number of runners", int(runs["status"].eq("failed").fillna(False).sum())
    return table_of("answer", title, BEST, rows, title, n=len(runs), n_failed=failed)


def _unknown(found: pd.DataFrame, data: StudyData) -> Iterator[Fact]:
    best, n = found.iloc[0], found["n"].iloc[0]
    if n < NEW_SEEDS:
        runs = "one run per setting" if n == 1 else f"{n} runs of it"
        order = "whether the order would be the same with other seeds" if len(found) > 1 else "how much seeds matter"
        seconds = (best["runs"]["ended"] - best["runs"]["started"]).dropna().mean() * NEW_SEEDS
        time = "" if pd.isna(seconds) else duration(max(float(seconds), 1.0))
        lasts = f"; {NEW_SEEDS} more of the best one take about {time}" if time else ""
        yield Fact(role="unknown", text=f"{order} ({runs}{lasts}).", command=_more_seeds(best, data))
    if data.spec is not None and data.spec.environment.target is None:
        yield Fact(role="unknown", text="whether this return is good: the space names no `environment.target`.")
    if edges := _edges(best["values"], data):
        lie = "lies at the end of its range" if len(edges) == 1 else "lie at the ends of their ranges"
        text = f"whether a better value lies beyond: of the best setting, {listed(edges)} {lie}."
        yield Fact(role="unknown", text=text)
    timing = learning_runs(data.runs)["timing"].dropna()
    if len(without := timing[timing != "measured"]):
        text = (
            f"what any of this takes in hours: {len(without):,} of {count(len(timing), 'run')} had no measured clock."
        )
        command = run_again(data, "real", ["execution=real"]) if without.eq("emulated").any() else ""
        if command:
            cpus = found.loc[found["final_return"].notna(), SCALE].max() + 1
            text += f" Real ones need {cpus} CPUs."
        elif without.eq("tainted").any():
            text += " Run it again while nothing else uses these CPUs."
        yield Fact(role="unknown", text=text, command=command)


def _more_seeds(best: Any, data: StudyData) -> str:
    """Return the command that runs the best setting on new seeds; empty for a study that was read in MLflow."""
    if data.spec is None or "://" in data.source:
        return ""
    trial = str(best["runs"]["trial"].iloc[0])
    return shlex.join(["python", "-m", "study", "repeat", data.source, "--trial", trial, "--seeds", str(NEW_SEEDS)])


def _edges(values: dict[str, Any], data: StudyData) -> list[str]:
    """Return the searched parameters whose best value lies at an end of its range, in words."""
    found = []
    for name, domain in (data.spec.tuned if data.spec is not None else {}).items():
        if isinstance(domain, Range) and name in values:
            ends = [float(each) for each in (domain.low, domain.high, values[name])]
            low, high, at = map(math.log, ends) if domain.log else ends
            if high > low and min(at - low, high - at) / (high - low) <= EDGE:
                found.append(values_in_words({name: values[name]}))
    return found
