"""The figures: efficiency, phases, settings side by side, learning curves. They select and compute no statistics."""

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.answers.answer import runners
from analysis.estimates.settings import ARMS, Setting, learning_curves, learning_runs
from analysis.figures.figure import (
    COLOURS,
    GREY,
    MAX_SERIES,
    Figure,
    absent,
    legend,
    legend_lines,
    lines_of,
    sentences,
    wrapped,
)
from analysis.quantity import estimate_of
from analysis.tables.table import in_words, number, percent
from study.space.settings import WINNER
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

# --- times -----------------------------------------------------------------------------------------------------------

PARTS = {
    "share_runners": ("sampling", "#0072B2"),
    "share_imbalance": ("waiting for the slowest", "#56B4E9"),
    "share_transfer": ("collecting samples", "#B9DDF3"),
    "share_learn": ("learning", "#E69F00"),
    "share_sync": ("sending weights", "#009E73"),
    "share_rest": ("the rest", "#6b6b6b"),
}
"""Share -> what the picture calls it, and its colour: sampling is blue; neighbours differ in lightness."""
FINEST = 0.05
"""Smallest range of an axis of efficiencies or scores: small differences are not made to look large."""
APART = 0.07
"""Least distance of two tick labels, in widths of the axis."""


def efficiency(study: "Study", title: str) -> Figure:
    """Return the speed-up over the growth of the runners, a line for each workload that ran at two scales or more."""
    frame = study.estimates("efficiency_per_runner", basis="measured").sort_values("num_cpus", kind="stable")
    # A workload whose scales ran on several numbers of CPUs is several lines: placement 1 has the fewest.
    place = frame.groupby(["workload", "num_env_runners"], dropna=False).cumcount() + 1
    several = frame["workload"].isin(frame.loc[place > 1, "workload"])
    line = frame["workload"].where(~several, frame["workload"] + ", placement " + place.astype("string"))
    found = [name for name in line.sort_index().unique() if frame.loc[line == name, "num_env_runners"].nunique() > 1]
    if not found:
        table = study.table("strong_scaling")
        return absent("efficiency", title, table.conclusion, table.command)
    shown = told_apart(found)
    frame = frame.assign(series=line.map(dict(zip(found, shown, strict=True))))[line.isin(found[:MAX_SERIES])]
    frame = frame.sort_values("num_env_runners", kind="stable")
    frame = frame.sort_values("series", key=lambda each: each.map(shown.index), kind="stable").reset_index(drop=True)
    ends = [
        f"{row['series'] or 'efficiency'}: {in_words(estimate_of(row))} with {runners(row['num_env_runners'])}"
        for _, row in frame.groupby("series", sort=False).tail(1).iterrows()
    ]
    more, engine = len(found) - MAX_SERIES, f"Engine: {study.engine}"
    reading = "T(n_ref) / T(n) x n_ref / n, the batch fixed: 1, dotted, is ideal; the smallest scale of a line is 1 by "
    reading += "definition. Bars: 95 % intervals."
    return Figure(
        key="efficiency",
        title=title,
        alt=sentences(ends),
        caption=sentences([reading, f"{more} more workloads: see the table" if more > 0 else "", engine]),
        frame=frame,
        paint=_lines,
        height_in=2.7 + 0.17 * legend_lines([*frame["series"].unique()]),
    )


def told_apart(workloads: list[str]) -> list[str]:
    """Return the names of workloads without what is the same in all of them; "" where nothing differs."""
    parts = [each.split(", ") for each in workloads]
    common = set(parts[0]).intersection(*parts) if len(parts) > 1 else set()
    return [", ".join(part for part in each if part not in common) for each in parts]


def _lines(ax: Axes, frame: pd.DataFrame) -> None:
    ticks: list[int] = []
    scales = sorted({int(each) for each in frame["num_env_runners"]}, reverse=True)
    for scale in scales:  # the largest is always named
        if not ticks or math.log2(ticks[-1] / scale) >= APART * math.log2(scales[0] / scales[-1]):
            ticks.append(scale)

    def bars(rows: pd.DataFrame, look: Mapping[str, Any]) -> None:
        known = rows.dropna(subset=["low", "high"])
        ax.vlines(known["num_env_runners"], known["low"], known["high"], **look)

    ax.set_xscale("log", base=2)
    ax.minorticks_off()
    lines_of(ax, frame, "num_env_runners", bars)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.axhline(1, color=GREY, dashes=(1, 2), linewidth=1.2, zorder=1)
    low, high = min(frame[["value", "low"]].min()), max(1.0, *frame[["value", "high"]].max())
    span = max(high - low, FINEST)
    ax.set(ylim=(high - 1.08 * span, high + 0.06 * span), xlabel="environment runners [count]")
    ax.set_ylabel("efficiency [1 = ideal]")


def phases(study: "Study", title: str) -> Figure:
    """Return the shares of an iteration, a bar for each number of runners of the workload that ran at most of them."""
    shares = study.estimates(PARTS)
    if shares.empty:
        table = study.table("phases")
        return absent("phases", title, table.conclusion, table.command)
    cell = ["workload", "num_env_runners", "train_batch_size"]
    cells = shares.drop_duplicates(cell)
    most = cells["workload"].value_counts(sort=False)
    chosen = (cells[cells["workload"] == most.idxmax()] if most.max() > 1 else cells).sort_values(cell[1:])
    batches = chosen["num_env_runners"].duplicated().any()
    times = study.estimates("iteration_time_s")[[*cell, "value"]].drop_duplicates(cell)
    frame = chosen[cell].merge(shares, on=cell).merge(times.rename(columns={"value": "seconds"}), on=cell, how="left")
    frame["bar"] = [
        runners(int(n)) + (f", batch {batch:,}" if batches else "")
        for n, batch in zip(frame["num_env_runners"], frame["train_batch_size"], strict=True)
    ]
    frame["phase"] = [PARTS[name][0] for name in frame["quantity"]]
    bars = []
    for name, here in frame.groupby("bar", sort=False):
        whole = "" if pd.isna(here["seconds"].iloc[0]) else f" of {number(float(here['seconds'].iloc[0]))} s"
        parts = [f"{percent(float(value))} {phase}" for value, phase in zip(here["value"], here["phase"], strict=True)]
        bars.append(f"{name}: an iteration{whole} is {listed(parts)} (n={here['n'].iloc[0]})")
    rest, engine = len(cells) - len(chosen), f"Engine: {study.engine}"
    reading = (
        "Shares of the mean training iteration after the warm-up, and its seconds; runs with a measured clock alone. "
    )
    reading += "Learning includes the connectors."
    return Figure(
        key="phases",
        title=title,
        alt=sentences(bars),
        caption=sentences([reading, f"{count(rest, 'more cell')} in the table" if rest > 0 else "", engine]),
        frame=frame,
        paint=_stacked,
        height_in=1.7 + 0.4 * len(bars),
    )


def _stacked(ax: Axes, frame: pd.DataFrame) -> None:
    bars = list(dict.fromkeys(frame["bar"]))
    shares = (100 * frame["value"]).groupby([frame["bar"], frame["phase"]]).first().unstack().loc[bars]
    left = np.zeros(len(bars))
    for name, colour in PARTS.values():
        if name in shares:
            ax.barh(range(len(bars)), shares[name], left=left, color=colour, label=name)
            left += shares[name].to_numpy()
    seconds = frame.groupby("bar")["seconds"].first()
    labels = [wrapped(bar) + ("" if pd.isna(seconds[bar]) else f"\n{number(float(seconds[bar]))} s") for bar in bars]
    ax.set_yticks(range(len(bars)), labels)
    ax.invert_yaxis()
    ax.set(xlim=(0, 100), xlabel="share of the iteration [%]")
    ax.grid(visible=False)
    legend(ax, [name for name, _ in PARTS.values()])


# --- what was learnt --------------------------------------------------------------------------------------------------

NO_LEARNING = "No run was given its whole learning budget. Fix: none for a throughput study, which claims no learning."
CHOSEN = ARMS[WINNER]
MOST_CURVES = 4
"""Lines that can be told apart where many cross."""


def score(study: "Study", title: str) -> Figure:
    """Return the mean score of each setting; where the environment has no scale of scores, the return."""
    spec, known = study.data.spec, study.estimates("score")
    if known.empty or (spec is not None and not spec.is_scored):
        known = study.estimates("final_return")
        return _rows(study, title, "score", known, "final_return", "final return [return]", "interquartile means")
    label = "score [0 = floor, 1 = reference]"
    if spec is not None:
        label = f"score [0 = return {spec.environment.floor:g}, 1 = return {spec.environment.reference:g}]"
    return _rows(study, title, "score", known, "score", label, "mean scores, a failed run counted as 0")


def steps_to_target(study: "Study", title: str) -> Figure:
    """Return the env steps to the target of each setting, and the runs behind them."""
    key = "steps_to_target"
    if study.data.runs["env_steps_to_target"].isna().all():
        why = "No run reached the target, or the environment has none."
        return absent(key, title, f"{why} Fix: give `environment.target`, or a larger budget.")
    marks = "Kaplan-Meier means up to the common horizon; arrows: runs that never got there, where they ended"
    return _rows(study, title, key, study.estimates(key), "env_steps_to_target", "environment steps [count]", marks)


def shown(study: "Study") -> list[Setting]:
    """Return the settings of a picture.

    Once a hold-up study has its confirmation these are its arms; before, and in other studies, the best setting of each
    number of runners.
    """
    arms = [each for each in study.settings if each.runs["stage"].eq("confirm").all()] if study.kind == "holdup" else []
    if arms:
        return sorted(arms, key=lambda each: (each.name != CHOSEN, "own engine" in each.name, each.num_env_runners))
    best: dict[int, Setting] = {}
    for each in sorted(study.settings, key=lambda each: each.order):
        best.setdefault(each.num_env_runners, each)
    return [best[scale] for scale in sorted(best)]


def _seeds(study: "Study") -> str:
    """Return on which seeds the runs of a hold-up study ran; empty where every run was an equal."""
    if study.kind != "holdup":
        return ""
    if learning_runs(study.data.runs)["stage"].eq("confirm").all():
        return "Runs of the confirmation alone, on seeds that nothing was chosen by"
    return "On the seeds that settings were chosen by: the best ones look better than they are"


def _rows(study: "Study", title: str, key: str, known: pd.DataFrame, column: str, label: str, marks: str) -> Figure:
    """Return a row for each setting: its single runs as pale dots, its estimate with the interval."""
    chosen = shown(study)
    rows: list[dict[str, Any]] = []
    for each in chosen:
        same = (known["arm"] == each.name) & (known["num_env_runners"] == each.num_env_runners)
        values = each.runs[column].astype("Float64")
        if column == "score":
            values = values.where(~each.failed, 0.0)
        found: list[dict[Any, Any]] = known[same].to_dict("records")
        if not found and len(values) == 1:  # what ran once has no mean up to a horizon
            found = [{"value": value, "n": 1, "level": 0.95, "method": "one run"} for value in values.dropna()]
        one = ", one run" if len(each.runs) == 1 else ""
        place: dict[str, Any] = {"row": f"{each.name}, {runners(each.num_env_runners)}{one}"}
        place |= {"arm": each.name, "num_env_runners": each.num_env_runners}
        rows += [{**row, **place, "kind": "estimate"} for row in found]
        rows += [{**place, "kind": "run", "value": value, "n": 1} for value in values.dropna() if len(values) > 1]
        if column == "env_steps_to_target":
            ends = each.runs.loc[values.isna(), "env_steps"].dropna()
            rows += [{**place, "kind": "not reached", "value": value, "n": 1} for value in ends]
    columns = ["kind", "row", "arm", "num_env_runners", "value", "low", "high", "level", "n", "method", "basis"]
    types = dict.fromkeys(("value", "low", "high", "level"), "Float64") | {"n": "Int64", "num_env_runners": "Int64"}
    frame = pd.DataFrame(rows, columns=columns).astype(types)
    means = frame[frame["kind"] == "estimate"]
    if means.empty:
        return absent(key, title, NO_LEARNING)
    failed = count(sum(int(each.failed.sum()) for each in chosen), "failed run")
    none = "none for one run, and none for fewer than five of which some are solved and others are not"
    reading = f"Large dots: {marks}. Bars: 95 % intervals; {none}. Pale dots: single runs"
    return Figure(
        key=key,
        title=title,
        alt=sentences(f"{row['row']}: {in_words(estimate_of(row))}" for _, row in means.iterrows()),
        caption=sentences([reading, failed, _seeds(study), f"Engine: {study.engine}"]),
        frame=frame,
        paint=partial(_dots, label=label, least=FINEST if column == "score" else 0.0),
        height_in=0.8 + sum(0.3 + 0.16 * wrapped(name).count("\n") for name in frame["row"].unique()),
    )


def _dots(ax: Axes, frame: pd.DataFrame, *, label: str, least: float) -> None:
    """Draw rows; the axis holds every run, an interval as far as its end is known, and a span of `least` at least."""
    names = list(dict.fromkeys(frame["row"]))
    here = frame.replace([np.inf, -np.inf], np.nan).assign(y=frame["row"].map(names.index))
    means, runs, lost = (here[here["kind"] == kind] for kind in ("estimate", "run", "not reached"))
    low, high = here["value"].min(), here["value"].max()
    span = (high - low) or 0.1 * abs(high) or 1.0
    # An interval of few runs may be far wider than they lie apart.
    ends = means.assign(low=means["low"].clip(lower=low - span / 2), high=means["high"].clip(upper=high + span / 2))
    ends = ends.dropna(subset=["low", "high"])
    apart = np.random.default_rng(1).uniform(-0.2, 0.2, len(runs))
    ax.scatter(runs["value"], runs["y"] + apart, s=16, color=GREY, alpha=0.5, linewidths=0)
    ax.scatter(lost["value"], lost["y"], s=16, color=GREY, marker=">")
    ax.hlines(ends["y"], ends["low"], ends["high"], color=COLOURS[0], linewidth=1.8)
    ax.scatter(means["value"], means["y"], s=42, color=COLOURS[0], zorder=3)
    low, high = min([low, *ends["low"]]), max([high, *ends["high"]])
    wider = max(0.0, least - (high - low)) / 2
    low, high = low - wider, high + wider
    ax.set_yticks(range(len(names)), [wrapped(name) for name in names])
    ax.set(xlim=(low - 0.06 * span, high + 0.06 * span), ylim=(len(names) - 0.4, -0.6), xlabel=label)
    ax.locator_params(axis="x", nbins=5)
    ax.xaxis.set_major_formatter("{x:,.10g}")
    ax.grid(visible=False, axis="y")


def return_steps(study: "Study", title: str) -> Figure:
    """Return the evaluation return along the training: of the chosen setting and its strongest rivals, or by scale."""
    key, evaluations, spec = "return_steps", study.evaluations, study.data.spec
    if evaluations.empty:
        why = "No evaluation is recorded, so no return can be drawn."
        fix = "" if study.kind == "throughput" else " Fix: wait for the first one."
        return absent(key, title, f"{why}{fix}")
    chosen = every = shown(study)
    if spec is not None and spec.holdup is not None:  # the chosen setting's other scales, and weaker arms: see `score`
        mine = [each for each in chosen if CHOSEN in each.name and each.num_env_runners == spec.holdup.target_scale]
        rivals = sorted((each for each in chosen if CHOSEN not in each.name), key=lambda each: each.order)
        chosen = [*mine, *rivals[: MOST_CURVES - len(mine)]]
    floor, goal = (spec.environment.floor, spec.environment.target) if spec is not None else (None, None)
    frame = learning_curves(chosen, evaluations)
    if frame.empty:
        why = "No run of a known scale with its whole budget has an evaluation yet. Fix: wait for the first one."
        return absent(key, title, why)
    named = study.kind == "holdup" and frame["arm"].nunique() > 1
    runs = frame.groupby(["arm", "num_env_runners"])["n"].transform("max")
    frame["series"] = [
        (f"{arm}, {runners(scale)}" if named else runners(scale)) + (", one run" if n == 1 else "")
        for arm, scale, n in zip(frame["arm"], frame["num_env_runners"], runs, strict=True)
    ]
    ends, lost = (getattr(frame.groupby("series", sort=False), of)() for of in ("last", "first"))
    fate = "counted at the floor from its end on" if floor is not None else "left out, as no floor is known"
    failures = [f"{name}: {count(int(n), 'failed run')} {fate}" for name, n in lost["n_failed"].items() if n > 0]
    reading = (
        "Lines: interquartile mean of the greedy evaluation return over the runs of a setting; bands: 95 % intervals, "
    )
    reading += "none for one run, and none for fewer than five of which some are at the target and others are not"
    said = (
        f"{name}: the return after {row['at']:,.0f} env steps is {in_words(estimate_of(row))}"
        for name, row in ends.iterrows()
    )
    dotted = "" if goal is None else f"Dotted: the target, {goal:g}"
    rest = f"Of {len(every)} arms these are the chosen one and its strongest rivals" if len(every) > len(chosen) else ""
    return Figure(
        key=key,
        title=title,
        alt=sentences(said),
        caption=sentences([reading, dotted, rest, *failures, _seeds(study), f"Engine: {study.engine}"]),
        frame=frame,
        paint=partial(_curves, target=goal),
        height_in=2.7 + 0.17 * legend_lines([*ends.index]),
    )


def _curves(ax: Axes, frame: pd.DataFrame, *, target: float | None) -> None:
    low, high = frame["value"].min(), frame["value"].max()
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    thousands = frame["at"].max() >= 3_000
    here = frame.assign(at=frame["at"] / (1_000 if thousands else 1))
    here[["low", "high"]] = here[["low", "high"]].clip(low - room, high + room)  # bands of few runs are far wider

    def band(rows: pd.DataFrame, look: Mapping[str, Any]) -> None:
        ax.fill_between(rows["at"], rows["low"], rows["high"], alpha=0.14, linewidth=0, **look)

    lines_of(ax, here, "at", band)
    if target is not None and low - room <= target <= high + room:
        ax.axhline(target, color=GREY, dashes=(1, 2), linewidth=1.2, zorder=1)
    ax.set(ylim=(low - room, high + room), ylabel="evaluation return")
    ax.set_xlabel(f"environment steps [{'thousands' if thousands else 'count'}]")
