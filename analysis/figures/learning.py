"""The settings of a study side by side: score, and steps to the target. No statistics."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.estimates.curves import clocked
from analysis.estimates.settings import Setting, learning_runs, settings_of
from analysis.figures import painting, style
from analysis.figures.figure import Figure, absent
from analysis.figures.words import drawn_of, number, of_row, sentence
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

SCORE = "Score of the settings"
TARGET = "Environment steps to the target"
NO_LEARNING = "No run was given its whole learning budget. Fix: none for a throughput study, which claims no learning."
MOST_ROWS = 10
ROW_IN = 0.36
FINEST_SCORE = 0.1
"""Smallest range of an axis of scores."""
WINNER = "the chosen setting"


def score(study: "Study") -> Figure:
    """Return the mean score of each arm of a hold-up study, of the best setting of each scale in other studies.

    Where the environment has no scale of scores, it is the return.
    """
    spec, estimates = study.data.spec, study.estimates("score")
    if raw := estimates.empty or (spec is not None and not spec.is_scored):
        estimates = study.estimates("final_return")
    chosen, found, left_out = shown(study)
    if estimates.empty or not chosen:
        return absent("score", SCORE, NO_LEARNING)
    lost = count(sum(int(setting.failed.sum()) for setting in chosen), "failed run")
    look: dict[str, Any]
    if raw:
        column, end, words, verb = "final_return", "env_steps", "the return is", "returns"
        marks, scale = "interquartile mean of the final returns with its 95 % interval", f"{lost} without a return."
        look = {"label": "final return"}
    else:
        column, end, words, verb = "score", "", "the mean score is", "scores"
        marks = "mean score over runs with Student's 95 % interval"
        scale = f"0 is the environment's floor, 1 its reference (dotted). {lost} counted as 0."
        ends = "floor", "reference"
        if spec is not None:
            ends = f"return {spec.environment.floor:g}", f"return {spec.environment.reference:g}"
        label = f"score [0 = {ends[0]}, 1 = {ends[1]}]"
        look = {"label": label, "finest": FINEST_SCORE, "reference": 1.0}
    frame = _rows(chosen, found, estimates, column, end=end)
    frame = frame[frame["kind"] != "not reached"]
    means = frame[frame["kind"] == "mean"]
    caption = (
        f"Large marks: {marks} (one run has none); {_dots(chosen, found)}. {scale} Arrows at an edge: runs beyond it. "
        f"Such intervals are too narrow where failures are rare. {seeds(study)} {left_out} Engine: {study.engine}."
    )
    return Figure(
        key="score",
        title=_compared(study, means, verb),
        alt=_alt(means, words),
        caption=" ".join(caption.split()),
        frame=frame,
        painter=partial(painting.rows, **look),
        height_in=_height(frame),
    )


def steps_to_target(study: "Study") -> Figure:
    """Return the env steps to the target of each setting: the estimates, and the runs behind them."""
    key, column, end = "steps_to_target", "env_steps_to_target", "env_steps"
    chosen, found, left_out = shown(study)
    if not chosen:
        return absent(key, TARGET, NO_LEARNING)
    if all(setting.runs[column].isna().all() for setting in chosen):
        why = "No run reached the target, or the environment has none."
        return absent(key, TARGET, f"{why} Fix: give `environment.target`, or a larger budget.")
    frame = _rows(chosen, found, study.estimates(key), column, end=end)
    means = frame[frame["kind"] == "mean"]
    lost = sum(int(_in_row(setting, chosen, found)[column].isna().sum()) for setting in chosen)
    never = f"{count(lost, 'run')} never reached it: an open arrow where {'it' if lost == 1 else 'each'} ended."
    caption = (
        "Large marks: Kaplan-Meier mean over runs up to the common horizon, with its 95 % interval, which holds the "
        "time between two evaluations (it goes on to smaller values where it leaves the picture); "
        f"{_dots(chosen, found)}. {never if lost else 'Every run reached it.'} Arrows at an edge: runs beyond it. "
        f"{seeds(study)} {left_out} Engine: {study.engine}."
    )
    return Figure(
        key=key,
        title=_compared(study, means, "needs", "steps") if len(means) else TARGET,
        alt=_alt(means, "to the target", "env steps") or f"{count(len(frame), 'run')}; no setting has an estimate.",
        caption=" ".join(caption.split()),
        frame=frame,
        painter=partial(painting.rows, label="environment steps [env steps]"),
        height_in=_height(frame),
    )


def shown(study: "Study", *, clock: bool = False, curves: bool = False) -> tuple[list[Setting], list[Setting], str]:
    """Return the settings of a picture, those whose single runs it shows too, and what is left out, in words.

    Once a hold-up study has its confirmation these are its arms; before, and in other studies, the best setting of each
    number of runners: by mean score, then by return, then by the fewest steps to the target.

    Args:
        study: The study.
        clock: Whether only runs with a measured clock count.
        curves: Whether they are drawn as lines: as many as have marks of their own, and of a hold-up study those that
            its verdict compares.
    """
    runs, spec = study.trials, study.data.spec
    holdup = spec.holdup if spec is not None else None
    small = None if holdup is None else holdup.small_scale
    found = settings_of(clocked(runs), small=small) if clock else study.results.settings
    arms = [each for each in found if each.runs["stage"].eq("confirm").all()]
    if holdup is None or not arms:
        best: dict[int, Setting] = {}
        for setting in sorted(found, key=lambda each: each.order):
            best.setdefault(setting.num_env_runners, setting)
        scales = style.evenly(sorted(best), style.MAX_SERIES if curves else MOST_ROWS)
        rest = sum(each.num_env_runners in scales for each in found) - len(scales)
        others = f"{count(rest, 'other setting')} of these numbers of runners learnt less, or slower." if rest else ""
        return [best[scale] for scale in scales], found, f"{drawn_of(sorted(best), scales)} {others}".strip()
    compared = [each for each in arms if each.name != WINNER or each.num_env_runners == holdup.target_scale]
    chosen = compared if curves else arms
    chosen = sorted(chosen, key=lambda each: (each.name != WINNER, "own runner" in each.name, each.num_env_runners))
    most = style.MAX_SERIES if curves else MOST_ROWS
    rest = len(arms) - len(chosen[:most])
    return chosen[:most], arms, f"{count(rest, 'more arm')}: see the tables." if rest else ""


def _rows(
    chosen: Sequence[Setting], found: Sequence[Setting], estimates: pd.DataFrame, column: str, *, end: str = ""
) -> pd.DataFrame:
    """Return the rows that `painting.rows` draws: for each setting its estimate and the runs of its row.

    Args:
        chosen: The settings.
        found: All settings.
        estimates: Of one quantity. A setting that has none and ran once is shown by its run, without an interval.
        column: Of the trials, the same quantity.
        end: Column of the trials where a run without the quantity ended; empty where a failed run counts as 0.
    """
    rows: list[dict[str, Any]] = []
    for setting in chosen:
        name = f"{setting.name}\n{count(setting.num_env_runners, 'runner')}"
        place = {"row": name, "arm": setting.name, "num_env_runners": setting.num_env_runners}
        values = _values(setting.runs, column, end)
        same = (estimates["arm"] == setting.name) & (estimates["num_env_runners"] == setting.num_env_runners)
        known: list[dict[str, Any]] = estimates[same].to_dict("records")  # type: ignore[assignment]
        if not known and len(values) == 1:
            known = [{"value": value, "n": 1, "method": "one run"} for value in values.dropna()]
        for row in known:
            one = " (1 run)" if row["n"] == 1 else ""
            rows.append({**row, **place, "kind": "mean", "note": f"{number(float(row['value']))}{one}"})
        runs = _in_row(setting, chosen, found)
        values = _values(runs, column, end)
        rows += [{**place, "kind": "run", "value": value, "n": 1} for value in values.dropna() if len(runs) > 1]
        if end:
            lost = runs.loc[values.isna(), end].astype("Float64")
            rows += [{**place, "kind": "not reached", "value": value, "n": 1} for value in lost.dropna()]
    frame = pd.DataFrame(rows)
    wanted = ["kind", "row", "arm", "num_env_runners", "value", "low", "high", "level", "n", "method", "basis", "note"]
    types = dict.fromkeys(("value", "low", "high", "level"), "Float64") | {"n": "Int64", "num_env_runners": "Int64"}
    return frame.reindex(columns=wanted).astype(types)


def _in_row(setting: Setting, chosen: Sequence[Setting], found: Sequence[Setting]) -> pd.DataFrame:
    """Return the runs in the row of a setting: of all settings where one stands for its number of runners."""
    if len({each.num_env_runners for each in chosen}) < len(chosen):
        return setting.runs
    return pd.concat([each.runs for each in found if each.num_env_runners == setting.num_env_runners])


def _dots(chosen: Sequence[Setting], found: Sequence[Setting]) -> str:
    """Return what the pale dots are, in words."""
    others = any(len(_in_row(each, chosen, found)) > len(each.runs) for each in chosen)
    return f"pale dots: single runs{', those of other settings too' if others else ''}"


def _values(runs: pd.DataFrame, column: str, end: str) -> "pd.Series[Any]":
    values = runs[column].astype("Float64")
    return values if end else values.where(runs["status"].ne("failed").fillna(True), 0.0)


def _height(frame: pd.DataFrame) -> float:
    names = frame["row"].unique()
    lines = sum(painting.row_label(str(name)).count("\n") + 1 for name in names)
    return 0.8 + ROW_IN * len(names) + 0.13 * (lines - len(names))


def _compared(study: "Study", means: pd.DataFrame, verb: str, unit: str = "") -> str:
    """Return a title: the value of the setting that the study is about, and of the arm that differs most from it."""
    chosen = means[means["arm"] == WINNER].sort_values("num_env_runners")
    spec = study.data.spec
    if chosen.empty or spec is None or spec.holdup is None:
        # The best one by its return is not the one with the fewest steps.
        many = "The settings with the best returns" if unit else "The best settings"
        subject, does = (many, verb.removesuffix("s")) if len(means) > 1 else ("The setting", verb)
        values = by_scale(zip(means["value"], means["num_env_runners"], strict=True), unit)
        one = " (one run each)" if (means["n"] == 1).all() and len(means) > 1 else ""
        return f"{subject} {does} {values}{one}"
    target = chosen[chosen["num_env_runners"] == spec.holdup.target_scale]
    first = target.iloc[0] if len(target) else chosen.iloc[-1]
    text = f"The chosen setting {verb} {by_scale([(first['value'], first['num_env_runners'])], unit)}"
    others = means[means["arm"] != WINNER]
    if others.empty:
        return text
    far = others.loc[(others["value"] - first["value"]).abs().idxmax()]
    text += f"; {far['arm']}: {number(float(far['value']))}"
    # Ends of steps and times hold the time between evaluations as well, which needs a sentence of its own.
    return text if unit or not far["low"] < far["high"] else f"{text} [{number(far['low'])}, {number(far['high'])}]"


def by_scale(values: Iterable[tuple[float, int]], unit: str = "") -> str:
    """Return "500 with 1 and 2 runners, 488 with 4": equal values together, in the order of the scales.

    With a unit, values are those of an evaluation before which the target was reached: "at most 500 steps with 1".
    """
    scales: dict[str, list[str]] = {}
    for value, scale in values:
        scales.setdefault(number(float(value)), []).append(str(scale))
    (first, some), *rest = scales.items()
    text = f"at most {first} {unit}" if unit else first
    text += f" with {listed(some)} {'runner' if some == ['1'] else 'runners'}"
    return ", ".join([text, *(f"{value} with {listed(each)}" for value, each in rest)])


def _alt(means: pd.DataFrame, words: str, unit: str = "") -> str:
    names = means["row"].str.replace("\n", ", ")
    rows = zip(names, means.iterrows(), strict=True)
    return " ".join(sentence(f"{name}: {words} {of_row(row, unit=unit)}") for name, (_, row) in rows)


def seeds(study: "Study") -> str:
    """Return on which seeds the runs of a hold-up study ran; empty where every run was an equal."""
    if study.kind != "holdup":
        return ""
    judged = learning_runs(study.trials)
    if judged["stage"].eq("confirm").all():
        return "Runs of the confirmation alone, on seeds that nothing was chosen by."
    return "On the seeds that settings were chosen by: the best ones look better than they are."
