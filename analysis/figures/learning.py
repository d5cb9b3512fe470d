"""Figures of what was learnt: score, learning curves, steps and time to the target, cost, importance. No statistics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from analysis.estimates.curves import Axis, clocked, learning_curves
from analysis.estimates.settings import Setting, learning_runs, settings_of
from analysis.figures import painting, style
from analysis.figures.figure import Figure, absent
from analysis.figures.words import SHORT, counted, listed, number, of_row, sentence

if TYPE_CHECKING:
    from analysis.opened import Study

SCORE = "Score of the settings"
CURVES = {"env_steps": "Return against environment steps", "wall_time_s": "Return against wall clock"}
TARGETS = {"steps_to_target": "Environment steps to the target", "time_to_target_s": "Time to the target"}
FRONT = "Return against cost"
IMPORTANCE = "Which parameters mattered, per number of runners"
NOT_COMPUTED = "Nobody computed it. Fix: run `python -m study report STUDY`, with the folder of the study."
NO_LEARNING = "No run was given its whole learning budget. Fix: none for a throughput study, which claims no learning."
MOST_SETTINGS = 1_000
"""Settings that are looked at, those with the most runs first."""
MOST_ROWS = 10
MOST_DOTS = 400
"""Single runs in one picture; the frame has them all."""
ROW_IN = 0.36
FINEST_SCORE = 0.1
"""Smallest range of an axis of scores."""
CUT = 4.0
"""A curve's beginning is cut off where with it the axis would be so many times as long as for its second half."""
TAIL = 0.05
"""Share of the runs that may lie outside of the picture of costs, as arrows at its edge."""
WINNER = "the chosen setting"


def score(study: "Study") -> Figure:
    """Return the mean score of each arm of a hold-up study, of the best setting of each scale in other studies."""
    estimates = study.estimates("score")
    chosen, found, left_out = shown(study)
    if estimates.empty or not chosen:
        return absent("score", SCORE, NO_LEARNING)
    frame = _rows(chosen, found, estimates, "score")
    means = frame[frame["kind"] == "mean"]
    lost = sum(int(setting.runs["status"].eq("failed").sum()) for setting in chosen)
    caption = (
        "Large marks: mean score over runs with Student's 95 % interval (one run has none); dots: single runs. "
        f"0 is the environment's floor, 1 its reference (dotted). {counted(lost, 'failed run')} counted as 0. "
        "Arrows at an edge: runs beyond it. "
        f"Such intervals are too narrow where failures are rare. {_seeds(study)} {left_out} Engine: {study.engine}."
    )
    return Figure(
        key="score",
        title=_compared(study, means, "scores"),
        alt=_alt(means, "the mean score is"),
        caption=" ".join(caption.split()),
        frame=frame,
        painter=partial(painting.rows, label="score [0 = floor, 1 = reference]", finest=FINEST_SCORE, reference=1.0),
        height_in=_height(frame),
    )


def to_target(study: "Study", quantity: str) -> Figure:
    """Return `steps_to_target` or `time_to_target_s` of each setting: the estimates, and the runs behind them."""
    steps = quantity == "steps_to_target"
    key, column, end = (
        ("steps_to_target", "env_steps_to_target", "env_steps")
        if steps
        else ("time_to_target", "time_to_target_s", "wall_time_s")
    )
    chosen, found, left_out = shown(study, clock=not steps)
    if not chosen:
        why = "No run has a measured clock, so there is no time to the target. Fix: read the steps to the target."
        return absent(key, TARGETS[quantity], NO_LEARNING if steps else why)
    if all(setting.runs[column].isna().all() for setting in chosen):
        why = "No run reached the target, or the environment has none."
        return absent(key, TARGETS[quantity], f"{why} Fix: give `environment.target`, or a larger budget.")
    frame = _rows(chosen, found, study.estimates(quantity), column, end=end)
    means = frame[frame["kind"] == "mean"]
    lost = sum(int(setting.runs[column].isna().sum()) for setting in chosen)
    unit = "env steps" if steps else "s"
    caption = (
        "Large marks: Kaplan-Meier mean over runs up to the common horizon, with its 95 % interval, which holds the "
        "time between two evaluations (it goes on to smaller values where it leaves the picture); dots: single runs. "
        f"{counted(lost, 'run')} never reached it{': open marks, at the end of the run' if lost else ''}. "
        f"{_seeds(study)} {left_out} Engine: {study.engine}."
    )
    return Figure(
        key=key,
        title=_compared(study, means, "needs", "steps or fewer" if steps else "s or less")
        if len(means)
        else TARGETS[quantity],
        alt=_alt(means, "to the target", unit) or f"{counted(len(frame), 'run')}; no setting has an estimate.",
        caption=" ".join(caption.split()),
        frame=frame,
        painter=partial(painting.rows, label=f"{'environment steps' if steps else 'training time'} [{unit}]"),
        height_in=_height(frame),
    )


def return_curves(study: "Study", against: Axis) -> Figure:
    """Return the evaluation return along the training, of the arms that are compared, or the best of each scale."""
    steps = against == "env_steps"
    key = "return_steps" if steps else "return_wall_clock"
    evaluations = study.evaluations
    if evaluations.empty:
        why = "No evaluation is recorded, so no return can be drawn. Fix: wait for the first one."
        return absent(key, CURVES[against], why)
    chosen, _, left_out = shown(study, clock=not steps, curves=True)
    if not steps and not chosen:
        why = "No run has a measured clock: seconds of emulated or oversubscribed runs are not those of n runners."
        return absent(key, CURVES[against], f"{why} Fix: read the return against environment steps.")
    spec = study.data.spec
    floor = spec.environment.floor if spec is not None else None
    frame = learning_curves(chosen, evaluations, against=against, floor=floor)
    if frame.empty:
        why = "No run of a known scale with its whole budget has an evaluation yet. Fix: wait for the first one."
        return absent(key, CURVES[against], why)
    named = frame["arm"].nunique() > 1 and study.kind == "holdup"
    target_scale = spec.holdup.target_scale if named and spec is not None and spec.holdup is not None else 0
    labels = [
        (arm if n == target_scale else f"{arm}, with {n}") if named else counted(int(n), "runner")
        for arm, n in zip(frame["arm"], frame["num_env_runners"], strict=True)
    ]
    frame = frame.assign(series=labels)
    values = _visible(frame)
    cut = frame["value"] < values[0]
    target = spec.environment.target if spec is not None else None
    caption = [
        "Lines: interquartile mean of the greedy evaluation return over the runs of a setting; bands: 95 % intervals, "
        "by bootstrap from 5 runs on, Student's t below; one run has none.",
        f"All with {target_scale} runners, where no other number is said." if target_scale else "",
        f"Below the picture: {_cut_off(frame, cut)}." if cut.any() else "",
        f"Dotted: the target, {target:g}." if target is not None and values[0] <= target <= values[1] else "",
        "" if steps else "Training seconds of runs with a measured clock, and of failed ones.",
        _failures(frame, floor),
        "" if named else f"Settings: {'; '.join(_named(chosen))}.",
        _seeds(study),
        left_out,
        f"Engine: {study.engine}.",
    ]
    ends = frame.groupby("series", sort=False).last()
    unit = "env steps" if steps else "s of training"
    return Figure(
        key=key,
        title=_ending(ends, study),
        alt=" ".join(
            sentence(f"{name}: the return after {row['at']:,.0f} {unit} is {of_row(row)}")
            for name, row in ends.iterrows()
        ),
        caption=" ".join(part for part in caption if part),
        frame=frame,
        painter=partial(_curves, limits=values, target=target, steps=steps),
        height_in=style.HEIGHT_IN + (0.5 if named else 0),
    )


def cost_return_front(study: "Study") -> Figure:
    """Return final return against CPU-seconds spent, run by run, with the runs that no other one beats in both."""
    here = learning_runs(study.trials)
    finished = here[here["status"].eq("finished").fillna(False)].dropna(subset=["cpu_s_spent", "final_return"])
    finished = finished[finished["cpu_s_spent"] > 0]
    if finished.empty:
        return absent("front", FRONT, f"No finished run has both a return and a cost. {NO_LEARNING}")
    pieces = []
    for _, some in finished.groupby("num_env_runners", sort=True):
        ordered = some.sort_values(["cpu_s_spent", "final_return", "trial"], ascending=[True, False, True])
        returns = ordered["final_return"].to_numpy(float)
        best = np.concatenate([[-np.inf], np.maximum.accumulate(returns)[:-1]])
        columns = ["trial", "num_env_runners", "cpu_s_spent", "final_return", "timing"]
        pieces.append(ordered[columns].assign(on_front=returns > best))
    frame = pd.concat(pieces, ignore_index=True)
    frame["beyond"] = _beyond(frame)
    front = frame[frame["on_front"]]
    parts = []
    for scale in sorted(front["num_env_runners"].unique()):
        some = front[front["num_env_runners"] == scale]
        text = f"{counted(int(scale), 'runner')}: the cheapest run {_bought(some.iloc[0])}"
        parts.append(sentence(text + (f", the best {_bought(some.iloc[-1])}" if len(some) > 1 else "")))
    best_run = front.sort_values(["final_return", "cpu_s_spent"], ascending=[False, True]).iloc[0]
    emulated = "emulated" in set(frame["timing"].dropna())
    failed = int(here["status"].eq("failed").fillna(False).sum())
    scales = sorted(int(scale) for scale in frame["num_env_runners"].unique())
    drawn = style.evenly(scales)
    beyond = int(frame["beyond"].sum())
    caption = [
        "Every mark is one run (n=1, no interval); lines join the runs that no other one of the same number of runners "
        f"beats in both. Not drawn, for lack of a return: {counted(failed, 'failed run')}.",
        "CPU-seconds of emulated runs are those of the emulation." if emulated else "",
        f"{counted(beyond, 'run')} far below the others: arrows at the lower edge." if beyond else "",
        f"Of {len(scales)} numbers of runners {listed([str(each) for each in drawn])} are drawn."
        if len(drawn) < len(scales)
        else "",
        _seeds(study),
        f"Engine: {study.engine}.",
    ]
    return Figure(
        key="front",
        title=f"The best run {_bought(best_run)}, with {counted(int(best_run['num_env_runners']), 'runner')}",
        alt=f"{counted(len(frame), 'run')}, {len(front)} on a front. {' '.join(parts)}",
        caption=" ".join(part for part in caption if part),
        frame=frame,
        painter=partial(_front, drawn=drawn),
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
    found = settings_of(
        clocked(runs) if clock else runs, most=MOST_SETTINGS, small=None if holdup is None else holdup.small_scale
    )
    arms = [each for each in found if each.runs["stage"].eq("confirm").all()] if "stage" in runs else []
    if holdup is None or not arms:
        best: dict[int, Setting] = {}
        for setting in sorted(found, key=_order):
            best.setdefault(setting.num_env_runners, setting)
        scales = style.evenly(sorted(best), style.MAX_SERIES if curves else MOST_ROWS)
        rest = len(found) - len(scales)
        words = f"{counted(rest, 'other setting')} of these numbers of runners learnt less, or slower." if rest else ""
        return [best[scale] for scale in scales], found, words
    compared = [each for each in arms if each.name != WINNER or each.num_env_runners == holdup.target_scale]
    chosen = compared if curves else arms
    chosen = sorted(chosen, key=lambda each: (each.name != WINNER, "own runner" in each.name, each.num_env_runners))
    most = style.MAX_SERIES if curves else MOST_ROWS
    rest = len(arms) - len(chosen[:most])
    return chosen[:most], arms, f"{counted(rest, 'more arm')}: see the tables." if rest else ""


def _order(setting: Setting) -> tuple[float, float, float, str]:
    """Return the place of a setting among others: best first."""
    failed = setting.runs["status"].eq("failed").fillna(False)
    scores = setting.runs["score"].astype("Float64").where(~failed, 0.0).fillna(0.0)
    returns, steps = setting.runs["final_return"].mean(), setting.runs["env_steps_to_target"].mean(skipna=False)
    worst = [np.inf if pd.isna(each) else float(each) for each in (-returns, steps)]
    return -float(scores.mean()), worst[0], worst[1], setting.name


def _rows(
    chosen: Sequence[Setting], found: Sequence[Setting], estimates: pd.DataFrame, column: str, *, end: str = ""
) -> pd.DataFrame:
    """Return the rows that `painting.rows` draws: for each setting its estimate and its runs.

    Where one setting stands for a number of runners, the runs are those of all settings there.

    Args:
        chosen: The settings.
        found: All settings.
        estimates: Of one quantity. A setting that has none and ran once is shown by its run, without an interval.
        column: Of the trials, the same quantity.
        end: Column of the trials where a run without the quantity ended; empty where a failed run counts as 0.
    """
    rows: list[dict[str, Any]] = []
    one_each = len({setting.num_env_runners for setting in chosen}) == len(chosen)
    for setting in chosen:
        name = f"{setting.name}\n{counted(setting.num_env_runners, 'runner')}"
        place = {"row": name, "arm": setting.name, "num_env_runners": setting.num_env_runners}
        values = _values(setting.runs, column, end)
        same = (estimates["arm"] == setting.name) & (estimates["num_env_runners"] == setting.num_env_runners)
        known: list[dict[str, Any]] = estimates[same].to_dict("records")  # type: ignore[assignment]
        if not known and len(values) == 1:
            known = [{"value": value, "n": 1, "method": "one run"} for value in values.dropna()]
        for row in known:
            one = " (1 run)" if row["n"] == 1 else ""
            rows.append({**row, **place, "kind": "mean", "note": f"{number(float(row['value']))}{one}"})
        here = [each.runs for each in found if each.num_env_runners == setting.num_env_runners]
        runs = pd.concat(here) if one_each else setting.runs
        values = _values(runs, column, end)
        rows += [{**place, "kind": "run", "value": value, "n": 1} for value in values.dropna() if len(runs) > 1]
        if end:
            lost = runs.loc[values.isna(), end].astype("Float64")
            rows += [{**place, "kind": "not reached", "value": value, "n": 1} for value in lost.dropna()]
    frame = pd.DataFrame(rows)
    wanted = ["kind", "row", "arm", "num_env_runners", "value", "low", "high", "level", "n", "method", "basis", "note"]
    types = dict.fromkeys(("value", "low", "high", "level"), "Float64") | {"n": "Int64", "num_env_runners": "Int64"}
    return frame.reindex(columns=wanted).astype(types)


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
        subject = "The best setting" if len(means) > 1 else "The setting"
        values = _by_scale(zip(means["value"], means["num_env_runners"], strict=True), unit)
        one = " (one run each)" if (means["n"] == 1).all() and len(means) > 1 else ""
        return f"{subject} {verb} {values}{one}"
    target = chosen[chosen["num_env_runners"] == spec.holdup.target_scale]
    first = target.iloc[0] if len(target) else chosen.iloc[-1]
    text = f"The chosen setting {verb} {_by_scale([(first['value'], first['num_env_runners'])], unit)}"
    others = means[means["arm"] != WINNER]
    if others.empty:
        return text
    far = others.loc[(others["value"] - first["value"]).abs().idxmax()]
    return f"{text}; {far['arm']}: {number(float(far['value']))}"


def _by_scale(values: Iterable[tuple[float, int]], unit: str = "") -> str:
    """Return "500 with 1 and 2 runners, 488 with 4": equal values together, in the order of the scales."""
    scales: dict[str, list[str]] = {}
    for value, scale in values:
        scales.setdefault(number(float(value)), []).append(str(scale))
    (first, some), *rest = scales.items()
    text = f"{first}{f' {unit}' if unit else ''} with {listed(some)} {'runner' if some == ['1'] else 'runners'}"
    return ", ".join([text, *(f"{value} with {listed(each)}" for value, each in rest)])


def _alt(means: pd.DataFrame, words: str, unit: str = "") -> str:
    names = means["row"].str.replace("\n", ", ")
    rows = zip(names, means.iterrows(), strict=True)
    return " ".join(sentence(f"{name}: {words} {of_row(row, unit=unit)}") for name, (_, row) in rows)


def _ending(ends: pd.DataFrame, study: "Study") -> str:
    """Return the title of the curves: where they end."""
    first = ends.iloc[0]
    if study.kind == "holdup" and str(first["arm"]) == WINNER and len(ends) > 1:
        worst = ends.iloc[1:].sort_values("value").iloc[0]
        end = _by_scale([(first["value"], first["num_env_runners"])])
        return f"The chosen setting ends at {end}; {worst['arm']}: {number(float(worst['value']))}"
    subject = "The best settings end" if len(ends) > 1 else "The return ends"
    return f"{subject} at {_by_scale(zip(ends['value'], ends['num_env_runners'], strict=True))}"


def _named(chosen: Sequence[Setting]) -> list[str]:
    return [f"{counted(each.num_env_runners, 'runner')}: {each.name} (n={len(each.runs)})" for each in chosen]


def _seeds(study: "Study") -> str:
    """Return on which seeds the runs of a hold-up study ran; empty where every run was an equal."""
    if study.kind != "holdup":
        return ""
    judged = learning_runs(study.trials)
    if "stage" in judged and judged["stage"].eq("confirm").all():
        return "Runs of the confirmation alone, on seeds that nothing was chosen by."
    return "On the seeds that settings were chosen by: the best ones look better than they are."


def _failures(frame: pd.DataFrame, floor: float | None) -> str:
    lost = frame.groupby("series", sort=False)["n_failed"].first()
    fate = "counted at the floor from its end on" if floor is not None else "not in the band after its end"
    return " ".join(f"{name}: {counted(int(count), 'failed run')} {fate}." for name, count in lost[lost > 0].items())


def _visible(frame: pd.DataFrame) -> tuple[float, float]:
    """Return the returns that a picture of curves shows: all, or those of the second halves where these are close."""
    late = frame[frame["at"] >= frame.groupby("series")["at"].transform("max") / 2]
    low, high = float(frame["value"].min()), float(frame["value"].max())
    bottom, top = float(late["value"].min()), float(late["value"].max())
    if cut := high - low > CUT * (top - bottom) > 0:
        low = bottom - 0.5 * (top - bottom)
    span = max(high - low, 0.01 * abs(high), 1e-9)
    # Student's t of two runs is many times as wide as the curves are apart: bands are cut there.
    least, most = (low if pd.isna(end) else float(end) for end in (frame["low"].min(), frame["high"].max()))
    least = low if cut else max(least, low - span)
    return min(low, least) - 0.05 * span, max(high, min(most, high + span)) + 0.05 * span


def _cut_off(frame: pd.DataFrame, cut: "pd.Series[bool]") -> str:
    starts = frame[cut].groupby("series", sort=False)["value"].min()
    return listed([f"{name} starts at {number(float(value))}" for name, value in starts.items()])


def _curves(
    axes: Sequence[Axes], frame: pd.DataFrame, *, limits: tuple[float, float], target: float | None, steps: bool
) -> None:
    import seaborn.objects as so

    (ax,) = axes
    longest = float(frame["at"].max())
    units = ((1000.0, "thousands"),) if steps else ((3600.0, "h"), (60.0, "min"))
    divisor, unit = next((each for each in units if longest >= 3 * each[0]), (1.0, "count" if steps else "s"))
    here = frame.assign(at=frame["at"] / divisor)
    here[["low", "high"]] = here[["low", "high"]].clip(*limits)
    names = list(dict.fromkeys(here["series"]))
    plot = so.Plot(here, x="at", y="value", color="series", marker="series", linestyle="series")
    plot = plot.add(so.Band(alpha=0.14), ymin="low", ymax="high", legend=False)
    plot = plot.add(so.Line(pointsize=3.5), legend=False)
    plot.scale(**_looks(names)).on(ax).plot()
    ax.set(xlim=(0, longest / divisor * 1.02), ylim=limits, ylabel="evaluation return [return]")
    ax.set_xlabel(f"environment steps [{unit}]" if steps else f"training time, wall clock [{unit}]")
    style.plain_numbers(ax.xaxis)
    style.plain_numbers(ax.yaxis)
    ax.locator_params(axis="x", nbins=6)
    if target is not None and limits[0] <= target <= limits[1]:
        ax.axhline(target, color=style.GREY, dashes=(1, 2), linewidth=1.2, zorder=1)
    _name_ends(ax, here, "at", "value", names)


def _bought(run: "pd.Series[Any]") -> str:
    emulated = " (emulated)" if run["timing"] == "emulated" else ""
    return f"returns {number(float(run['final_return']))} for {number(float(run['cpu_s_spent']))} CPU-seconds{emulated}"


def _beyond(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return which runs would make the rest a line: far below the bulk, and few."""
    returns = frame["final_return"].astype(float)
    low, high = returns.quantile(TAIL), returns.max()
    return (returns < low - 2 * (high - low)) & ~frame["on_front"]


def _front(axes: Sequence[Axes], frame: pd.DataFrame, *, drawn: Sequence[int]) -> None:
    import seaborn as sns

    (ax,) = axes
    names = [counted(scale, "runner") for scale in drawn]
    frame = frame.assign(series=[counted(int(n), "runner") for n in frame["num_env_runners"]])
    inside, low = frame[~frame["beyond"]], frame[frame["beyond"]]
    some = inside[inside["series"].isin(names)]
    rest, front = some[~some["on_front"]], some[some["on_front"]]
    look: dict[str, Any] = {
        "x": "cpu_s_spent", "y": "final_return", "hue": "series", "style": "series", "hue_order": names,
        "style_order": names, "palette": list(style.COLOURS[: len(names)]), "markers": list(style.MARKS[: len(names)]),
    }  # fmt: skip
    thinned = rest.iloc[:: max(-(-len(rest) // MOST_DOTS), 1)]
    sns.scatterplot(thinned, s=18, alpha=0.35, ax=ax, legend=False, **look)
    sns.lineplot(front, drawstyle="steps-post", dashes=False, estimator=None, ax=ax, **look)
    sns.move_legend(ax, "upper left", bbox_to_anchor=(1.0, 1.0), title=None, frameon=False)
    style.value_axis(ax, "x", frame["cpu_s_spent"].to_numpy(float), factor=3.0)
    bottom, _ = style.value_axis(ax, "y", inside["final_return"].to_numpy(float), finest=0.0)
    if len(low):
        ax.plot(low["cpu_s_spent"], [bottom] * len(low), linestyle="none", marker="v", markerfacecolor="none",
                color=style.INK, clip_on=False)  # fmt: skip
    ax.set(xlabel="CPU time spent in training [CPU-s]", ylabel="final return [return]")


def _looks(names: Sequence[str]) -> dict[str, Any]:
    """Return the scales of seaborn that give every series a colour, a mark and a dash of its own."""
    import seaborn.objects as so

    looks = {"color": style.COLOURS, "marker": style.MARKS, "linestyle": style.DASHES}
    return {name: so.Nominal(list(values[: len(names)]), order=list(names)) for name, values in looks.items()}


def _name_ends(ax: Axes, frame: pd.DataFrame, x: str, y: str, names: Sequence[str]) -> None:
    last = frame.groupby("series", sort=False).last()
    found = [name for name in names if name in last.index]
    points = last.loc[found, [x, y]].to_numpy(float)
    ends = [(name, *point, style.COLOURS[names.index(name)]) for name, point in zip(found, points, strict=True)]
    style.end_labels(ax, ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Which parameters mattered.

    Attributes:
        values: Scale -> parameter -> importance, dimensionless, sum 1 at each scale.
        runs: Scale -> trials behind it.
        fewest: Trials of a scale below which none is computed.
    """

    values: Mapping[int, Mapping[str, float]]
    runs: Mapping[int, int] = field(default_factory=dict)
    fewest: int = 10


def importance(found: Importance | str, *, engine: str) -> Figure:
    """Return which parameters mattered at each number of runners, as the caller computed it (PED-ANOVA).

    Args:
        found: The importance, or why it is not known.
        engine: Of the runs.
    """
    if isinstance(found, str):
        return absent("importance", IMPORTANCE, found or NOT_COMPUTED)
    if not any(found.values.values()):
        why = f"No number of runners has {found.fewest} ended trials that a sampler proposed, and fewer would be noise."
        return absent("importance", IMPORTANCE, f"{why} Fix: add trials, for instance with --resume --trials.")
    scales = style.evenly([scale for scale in sorted(found.values) if found.values[scale]])
    rows = [
        {"num_env_runners": scale, "parameter": name, "importance": value, "n": found.runs.get(scale, 0)}
        for scale in scales
        for name, value in found.values[scale].items()
    ]
    frame = pd.DataFrame(rows)
    means = frame.groupby("parameter")["importance"].mean().sort_values(ascending=False)
    place = {name: number_ for number_, name in enumerate(means.index)}
    frame = frame.sort_values(
        ["parameter", "num_env_runners"],
        key=lambda column: column.map(place) if column.name == "parameter" else column,
        ignore_index=True,
    )
    tops = frame.loc[frame.groupby("num_env_runners")["importance"].idxmax()]
    parts = []
    for scale in scales:
        top = frame[frame["num_env_runners"] == scale].sort_values("importance", ascending=False).head(3)
        words = [f"{row['parameter']} {number(row['importance'], 2)}" for _, row in top.iterrows()]
        parts.append(sentence(f"{counted(scale, 'runner')}: {listed(words)}"))
    caption = (
        "PED-ANOVA: what tells the better half of the trials from the rest, at that number of runners alone; sum 1. "
        "Computed from trials that a sampler chose, so it ranks parameters and has no interval; it says nothing of "
        f"values that were never proposed. Trials: {listed([f'{n} with {scale}' for scale, n in _trials(frame)])}. "
        f"Engine: {engine}."
    )
    last = tops.iloc[-1]
    name = SHORT.get(last["parameter"], last["parameter"])
    title = f"{name[0].upper()}{name[1:]} matters most with {counted(int(last['num_env_runners']), 'runner')}"
    other = tops[tops["parameter"] != last["parameter"]]
    if len(other):
        first = other.iloc[0]
        title += f", {SHORT.get(first['parameter'], first['parameter'])} with {first['num_env_runners']}"
    return Figure(
        key="importance",
        title=title,
        alt=" ".join(parts),
        caption=caption,
        frame=frame,
        painter=_bars,
        height_in=max(1.0 + 0.14 * len(frame) + 0.12 * len(means), 1.6),
    )


def _trials(frame: pd.DataFrame) -> list[tuple[int, int]]:
    known = frame.drop_duplicates("num_env_runners")
    return [(int(n), int(scale)) for n, scale in zip(known["n"], known["num_env_runners"], strict=True)]


def _bars(axes: Sequence[Axes], frame: pd.DataFrame) -> None:
    import seaborn.objects as so

    (ax,) = axes
    names = list(dict.fromkeys(frame["parameter"]))
    scales = [int(each) for each in sorted(frame["num_env_runners"].unique())]
    here = frame.assign(scale=frame["num_env_runners"].map(lambda n: counted(int(n), "runner")))
    order = [counted(scale, "runner") for scale in scales]
    plot = so.Plot(here, x="importance", y="parameter", color="scale")
    plot = plot.add(so.Bar(alpha=1, edgecolor="white", edgewidth=0.5), so.Dodge(), orient="y", legend=False)
    colours = so.Nominal(list(style.COLOURS[: len(order)]), order=order)
    plot.scale(color=colours, y=so.Nominal(order=names)).on(ax).plot()
    ax.set_yticks(range(len(names)), [style.wrapped(SHORT.get(name, name)) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.grid(visible=False, axis="y")
    ax.set(xlabel="importance [share, sum 1]", ylabel="")
    handles = [Patch(color=style.COLOURS[place]) for place in range(len(order))]
    ax.legend(handles, order, loc="lower right", frameon=False, handlelength=1.2)
