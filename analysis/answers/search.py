"""What a search says: the best setting of each scale, how sure that is, what to run next. Selects."""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from analysis.answers.answer import (
    Answer,
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
from analysis.estimates.settings import Setting, final_return, learning_runs
from analysis.load import StudyData
from analysis.tables.scaling import num_seeds
from analysis.tables.table import Table, TableColumn, in_words, table_of
from study.space.parameters import PARAMETERS, SCALE
from study.statistics import Estimate
from study.text import count, duration

if TYPE_CHECKING:
    from analysis.opened import Study

NEW_SEEDS = 5
"""Runs of the best setting that the recommended command starts: the fewest of which a mean has a useful interval."""
BEST = (
    TableColumn(SCALE, "1", "runners", "Environment runners."),
    TableColumn("setting", "", "best setting", "The values that differ in this study."),
    TableColumn("final_return", "1", "return", "Interquartile mean of the final returns.", estimate=True),
    TableColumn("n", "1", "runs", "Runs of this setting at this scale, each of a seed of its own."),
    TableColumn("solved", "", "settings that solved it", "In every run, of those tried here."),
)


class Candidate(NamedTuple):
    """A setting at a number of runners: values that differ in the study, seeds, no return where every run failed."""

    of: Setting
    values: dict[str, Any]
    n: int
    final_return: Estimate | None


def candidates(study: "Study") -> list[Candidate]:
    """Return every setting at every scale, the best first, those of which every run failed without a return last."""
    runs = learning_runs(study.data.runs)
    varying = [name for name in PARAMETERS if name != SCALE and runs[name].nunique() > 1]
    shown = varying or [name for name in ("train_batch_size", "lr") if runs[name].notna().any()]
    found = []
    for each in sorted(study.settings, key=lambda each: each.order):
        first, ended = each.runs.iloc[0], each.runs["final_return"].notna().any()
        values = {name: first[name] for name in shown if pd.notna(first[name])}
        found.append(Candidate(each, values, num_seeds(each.runs), final_return(each) if ended else None))
    return sorted(found, key=lambda each: each.final_return is None)


def search_answer(study: "Study") -> Answer:
    """Return what a search says: which setting learnt best at each scale."""
    data, found = study.data, candidates(study)
    if _of_times(data) and study.measured.empty:
        return unmeasured(study)
    if not found or (reached := found[0].final_return) is None:
        missing = "which setting learns best: no trial has finished with a return."
        return Answer(kind=data.kind, findings=nothing_yet(data, missing))
    best = found[0]
    said = (_headline(found, reached, data), *_support(found, reached), cost_and_clocks(data))
    return Answer(
        kind=data.kind,
        findings=(*said, *unfinished(data), *_unknown(found, data)),
        setting=to_copy({SCALE: best.of.num_env_runners, **best.values}),
        rows=_rows(found),
        figure="score" if len({each.of.num_env_runners for each in found}) > 1 else "return_steps",
    )


def _of_times(data: StudyData) -> bool:
    real = data.runs[data.runs["execution"].eq("real").fillna(False)]
    return data.spec is not None and not data.spec.tuned and real[SCALE].nunique() > 1


def _headline(found: Sequence[Candidate], reached: Estimate, data: StudyData) -> Fact:
    best, target = found[0], None if data.spec is None else data.spec.environment.target
    value, where = in_words(reached), runners(best.of.num_env_runners)
    where += f", {words}" if (words := values_in_words(best.values)) else ""
    if target is not None and reached.value < target:
        value += f", below the {target:g} that counts as solved"
    elif target is not None:
        value = f"{value[:-1]}; solved is {target:g})" if value.endswith(")") else f"{value} (solved is {target:g})"
    so_far, ended = ("", "") if complete(data) else (" so far", f"; {progress(data)}")
    text = f"The best setting{so_far} has {where}: return {value}{ended}."
    if sum(each.final_return is not None for each in found) == 1:
        text = f"With {where} this study reached a return of {value}{ended}."
    return Fact(role="answer", text=text, quantity="final_return")


def _support(found: Sequence[Candidate], reached: Estimate) -> Iterator[Fact]:
    best, tried = found[0], len(found)
    seeds = "one run" if best.n == 1 else f"{best.n} runs"
    if best.n > 1 and best.of.target is not None:
        seeds += f"; {int(best.of.solved.sum()) or 'none'} of them ended at the target"
    how = f"is the best of {tried:,} settings, judged by" if tried > 1 else "is the only one that was tried, in"
    yield Fact(role="support", text=f"It {how} {seeds}.")
    others = [each for each in found[1:] if each.final_return is not None]
    if failed := tried - 1 - len(others):
        yield Fact(role="support", text=f"{count(failed, 'other setting')} failed in every run.")
    if best.n > 1:
        equal = sum(each.final_return is not None and overlap(each.final_return, reached) for each in others)
        said = "cannot be told from it: their intervals overlap"
    else:  # of single runs those are equal that have its score and its return
        steps = [each.of.order[2] for each in others if each.of.order[:2] == best.of.order[:2]]
        equal, faster = len(steps), bool(steps) and best.of.order[2] < steps[0]
        said = f"reached the same return{'; this one got to the target in the fewest steps' if faster else ''}"
    if equal:
        text = f"{f'{equal:,} others' if equal > 1 else 'One other'} {said}."
        yield Fact(role="support", text=text, quantity="final_return")


def _rows(found: Sequence[Candidate]) -> Table:
    """Return the best setting of each number of runners; where every run failed, that."""
    rows = []
    for scale in sorted({each.of.num_env_runners for each in found}):
        some = [each for each in found if each.of.num_env_runners == scale]
        lost = some[0].final_return is None
        words = "none: every run failed" if lost else values_in_words(some[0].values, most=4)
        n = sum(each.n for each in some) if lost else some[0].n
        row = {SCALE: scale, "setting": words, "final_return": some[0].final_return, "n": n}
        if some[0].of.target is not None:
            row["solved"] = f"{sum(bool(each.of.solved.all()) for each in some)} of {len(some)}"
        rows.append(row)
    title, n = "The best setting with each number of runners", sum(len(each.of.runs) for each in found)
    n_failed = sum(int(each.of.failed.sum()) for each in found)
    return table_of("answer", title, BEST, rows, title, n=n, n_failed=n_failed)


def _unknown(found: Sequence[Candidate], data: StudyData) -> Iterator[Fact]:
    best, n = found[0], found[0].n
    if n < NEW_SEEDS:
        runs = "one run per setting" if n == 1 else f"{n} runs of it"
        order = "whether the order would be the same with other seeds" if len(found) > 1 else "how much seeds matter"
        seconds = (best.of.runs["ended"] - best.of.runs["started"]).dropna().mean() * NEW_SEEDS
        time = "" if pd.isna(seconds) else duration(max(float(seconds), 1.0))
        lasts = f"; {NEW_SEEDS} more of the best one take about {time}" if time else ""
        yield Fact(role="unknown", text=f"{order} ({runs}{lasts}).", command=_more_seeds(best, data))
    if data.spec is not None and data.spec.environment.target is None:
        yield Fact(role="unknown", text="whether this return is good: the space names no `environment.target`.")
    timing = learning_runs(data.runs)["timing"].dropna()
    if len(without := timing[timing != "measured"]):
        text = (
            f"what any of this takes in hours: {len(without):,} of {count(len(timing), 'run')} had no measured clock."
        )
        command = ""
        if without.eq("emulated").any():
            needed = 1 + max(each.of.num_env_runners for each in found if each.final_return is not None)
            cores = (data.sheet.get("hardware") or {}).get("physical_cpus") or 0
            text += f" Real ones need {needed} CPUs."
            if needed <= cores:
                command = run_again(data, "real", ["execution=real"])
            else:
                text += " Where they are (`--address`, or the command `launch`), run it with `--set execution=real`."
        elif without.eq("tainted").any():
            text += " Run it again while nothing else uses these CPUs."
        yield Fact(role="unknown", text=text, command=command)


def _more_seeds(best: Candidate, data: StudyData) -> str:
    """Return the command that runs the best setting on new seeds; empty for a study that was read in MLflow."""
    if data.spec is None or "://" in data.source:
        return ""
    trial = str(best.of.runs["trial"].iloc[0])
    return shlex.join(["python", "-m", "study", "repeat", data.source, "--trial", trial, "--seeds", str(NEW_SEEDS)])
