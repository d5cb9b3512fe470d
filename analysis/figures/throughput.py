"""Throughput against the number of runners. Imports pandas and Matplotlib's objects; no statistics.

Only rows whose clock was measured make a line; the others are hollow, in another colour, and say why.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.marks import NO_MEASURED_ROWS, ends, series, shown, whiskers
from analysis.figures.words import counted, engine_of, listed, number, sentence, with_interval
from analysis.models.calibration import MOST_SAID
from analysis.scaling.selection import at_their_scale
from study.statistics import Estimate, FloatArray

if TYPE_CHECKING:
    from analysis.scaling.results import Scaling, ScalingRow

MAX_MARKS = 300
"""Marks of single runs in one picture; more would hide each other, and the frame holds them all."""
COLUMNS = ("kind", "series", "num_env_runners", "env_steps_per_s", "low", "high", "n")
ALONE = "measured, but alone"
"""Runs whose workload was not measured at a second number of runners."""
_CEILING = style.COLOURS[2]

Row = tuple[str, str, float, float, float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A fitted or computed curve: a prediction, drawn as one.

    Attributes:
        label: For the legend, such as "USL fit".
        num_env_runners: Where it is known, shape (points,), increasing.
        env_steps_per_s: Its values, shape (points,).
        note: What a reader must know, such as "unidentified: fewer than 6 distinct n".
    """

    label: str
    num_env_runners: FloatArray
    env_steps_per_s: FloatArray
    note: str = ""


def throughput(
    scaling: "Scaling", runs: pd.DataFrame, *, lines: Sequence[Line] = (), ceiling: Estimate | None = None
) -> Figure:
    """Return throughput against n: measured cells with intervals, ideal line, fits, ceiling; other rows hollow.

    Args:
        scaling: Strong scaling: cells of equal workload.
        runs: One row per trial, for the rows that are in no cell.
        lines: Fits to the first group of `scaling`.
        ceiling: Throughput that the learner allows whatever n is, env steps/s, for the first group; a prediction.
    """
    key, title = "throughput", "Throughput against the number of runners"
    groups, left_out = shown(scaling)
    cells = [each for group in groups for each in series(group)]
    if len(cells) > style.MAX_SERIES:
        left_out = f"{left_out} {counted(len(cells) - style.MAX_SERIES, 'more placement')}: see the table.".strip()
        cells = cells[: style.MAX_SERIES]
    single = [*_single(runs, {group.fingerprint for group in scaling.groups})]
    if not cells and not single:
        return absent(key, title, NO_MEASURED_ROWS)
    rows: list[Row] = []
    for label, here in cells:
        for row in here:
            rate = row.env_steps_per_s
            rows.append(("measured", label, row.num_env_runners, rate.value, *ends(rate), row.n))
    if cells:
        rows += _computed(cells[0][1], groups[0].reference, lines, ceiling)
    frame = pd.DataFrame([*rows, *single], columns=list(COLUMNS))
    hollow = frame[frame["kind"].isin(["alone", "not measured"])]
    words = [sentence(_finding(label, here)) for label, here in cells]
    if (
        cells
        and ceiling is not None
        and ceiling.value <= MOST_SAID * max(row.env_steps_per_s.value for row in cells[0][1])
    ):
        most = with_interval(ceiling.value, ceiling.low, ceiling.high, ceiling.n, unit="env steps/s")
        words.append(f"What runners cannot shorten allows at most {most}, whatever their number (prediction).")
    if not cells:
        words.append("No line is drawn: no workload has a measured clock at two numbers of runners.")
    words += [sentence(_count(hollow))] if len(hollow) else []
    caption = [
        "Filled marks: env steps over seconds after warm-up, total over total, with 95 % intervals over runs, at equal "
        "workload."
        if cells
        else "",
        "The ideal line goes through the reference of the first workload." if cells else "",
        " ".join(sentence(f"{line.label}: {line.note}") for line in lines if line.note and cells),
        "Fits and ceiling are predictions." if cells and (lines or ceiling is not None) else "",
        f"The ceiling is that of the first workload with its {ceiling.level:.0%} interval."
        if cells and ceiling
        else "",
        "Hollow marks: single runs that are no evidence on scaling (n=1 each, no interval): their clock was not "
        "measured, or their workload was measured at one number of runners alone."
        if len(hollow)
        else "",
        left_out,
        engine_of(runs),
    ]
    return Figure(
        key=key,
        title=title,
        alt=" ".join(words),
        caption=" ".join(part for part in caption if part),
        frame=frame,
        painter=_paint,
    )


def _single(runs: pd.DataFrame, grouped: set[str]) -> Iterator[Row]:
    """Yield the runs with a rate that are in no group: with another clock, or measured and alone."""
    if not {"timing", "env_steps_per_s", "num_env_runners"} <= set(runs.columns):
        return
    here = at_their_scale(runs).dropna(subset=["env_steps_per_s", "num_env_runners", "timing"])
    prints = here["fingerprint"] if "fingerprint" in here else pd.Series(None, index=here.index, dtype=object)
    columns = (here["timing"], prints, here["num_env_runners"], here["env_steps_per_s"])
    for timing, fingerprint, scale, rate in zip(*columns, strict=True):
        if timing in style.NOT_MEASURED:
            yield "not measured", str(timing), float(scale), float(rate), np.nan, np.nan, 1
        elif fingerprint not in grouped:
            yield "alone", ALONE, float(scale), float(rate), np.nan, np.nan, 1


def _computed(
    cells: Sequence["ScalingRow"], reference: int, lines: Sequence[Line], ceiling: Estimate | None
) -> Iterator[Row]:
    """Yield what was computed and not measured: ideal line, fits, ceiling."""
    rates = {row.num_env_runners: row.env_steps_per_s.value for row in cells}
    base = reference if reference in rates else min(rates)
    for scale in (min(rates), max(rates)):
        yield "ideal", "ideal: E = 1", scale, rates[base] * scale / base, np.nan, np.nan, 0
    for line in lines:
        for n, rate in zip(line.num_env_runners, line.env_steps_per_s, strict=True):
            yield "fit", line.label, float(n), float(rate), np.nan, np.nan, 0
    if ceiling is not None:
        for scale in (min(rates), max(rates)):
            yield "ceiling", "learner ceiling (prediction)", scale, ceiling.value, *ends(ceiling), ceiling.n


def _count(hollow: pd.DataFrame) -> str:
    parts = [
        f"{counted(int(count), 'run')} {name}" for name, count in hollow["series"].value_counts(sort=False).items()
    ]
    return f"drawn hollow, no evidence on scaling: {listed(parts)}"


def _finding(label: str, rows: Sequence["ScalingRow"]) -> str:
    first, last = rows[0], rows[-1]
    rates = [
        with_interval(row.env_steps_per_s.value, row.env_steps_per_s.low, row.env_steps_per_s.high, row.n)
        for row in (first, last)
    ]
    head = f"{label}: {rates[0]} env steps/s with {counted(first.num_env_runners, 'runner')}"
    if first is last:
        return head
    gain = last.env_steps_per_s.value / first.env_steps_per_s.value
    ideal = last.num_env_runners / first.num_env_runners
    return (
        f"{head}, {rates[1]} with {last.num_env_runners}: {number(gain)} times as much, where {number(ideal)} is ideal"
    )


def _paint(ax: Axes, frame: pd.DataFrame) -> None:
    style.label_axes(ax, ("environment runners", "count"), ("throughput", "env steps/s"))
    computed = frame["kind"].isin(["fit", "ceiling", "ideal"])
    logarithmic = style.runner_axis(ax, frame.loc[~computed, "num_env_runners"])
    known = frame[["env_steps_per_s", "low", "high"]].to_numpy(float)
    low, high = float(np.nanmin(known)), float(np.nanmax(known))
    if high > 4 * low and (logarithmic or high > 20 * low):
        style.logarithmic_y(ax, low, high)
    else:
        ax.set_ylim(0, high * 1.08)
        style.plain_numbers(ax.yaxis)
    for index, (name, here) in enumerate(frame[frame["kind"] == "measured"].groupby("series", sort=False)):
        ax.errorbar(
            here["num_env_runners"],
            here["env_steps_per_s"],
            yerr=whiskers(here, "env_steps_per_s"),
            color=style.COLOURS[index],
            marker=style.MARKS[index],
            linestyle="-",
            zorder=3,
            label=f"measured: {name}",
        )
    _paint_computed(ax, frame)
    for name, here in frame[frame["kind"].isin(["alone", "not measured"])].groupby("series", sort=False):
        some = here.iloc[:: max(-(-len(here) // MAX_MARKS), 1)]
        ax.plot(
            some["num_env_runners"],
            some["env_steps_per_s"],
            linestyle="none",
            marker=style.NOT_MEASURED_MARKS.get(str(name), "o"),
            markerfacecolor="none",
            markeredgecolor=style.NOT_MEASURED.get(str(name), style.COLOURS[0]),
            markersize=5,
            label=f"{name} ({counted(len(here), 'run')})",
        )


def _paint_computed(ax: Axes, frame: pd.DataFrame) -> None:
    ideal = frame[frame["kind"] == "ideal"]
    if len(ideal):
        ax.plot(
            ideal["num_env_runners"], ideal["env_steps_per_s"], color=style.GREY, dashes=(1, 2), label="ideal: E = 1"
        )
    for index, (name, here) in enumerate(frame[frame["kind"] == "fit"].groupby("series", sort=False)):
        dash = style.DASHES[1 + index % (len(style.DASHES) - 1)]
        ax.plot(
            here["num_env_runners"], here["env_steps_per_s"], color=style.INK, linestyle=dash, linewidth=1, label=name
        )
    ceiling = frame[frame["kind"] == "ceiling"]
    if len(ceiling):
        edges, first = ax.get_xlim(), ceiling.iloc[0]
        ax.plot(edges, [first["env_steps_per_s"]] * 2, color=_CEILING, linewidth=2.2, label=first["series"])
        if np.isfinite(first["low"]) and np.isfinite(first["high"]):
            ax.fill_between(edges, first["low"], first["high"], color=_CEILING, alpha=0.15, linewidth=0)
        ax.set_xlim(*edges)
