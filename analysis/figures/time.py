"""Figures of time: efficiency against the number of runners, and the phases of an iteration. Select; no statistics."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.answers.facts import runners
from analysis.figures.figure import GREY, MAX_SERIES, Figure, absent, legend, legend_lines, lines_of, sentences, wrapped
from analysis.quantity import estimate_of
from analysis.tables.numbers import in_words, number, percent
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

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
"""Smallest range of an axis of efficiencies: small differences are not made to look large."""
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
    more = len(found) - MAX_SERIES
    return Figure(
        key="efficiency",
        title=title,
        alt=sentences(ends),
        caption=sentences(
            [
                "T(n_ref) / T(n) x n_ref / n, the batch fixed: 1, dotted, is ideal; the smallest scale of a line is 1 "
                "by definition. Bars: 95 % intervals.",
                f"{more} more workloads: see the table" if more > 0 else "",
                f"Engine: {study.engine}",
            ]
        ),
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
    lines_of(ax, frame, "num_env_runners", "value", bars)
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
    rest = len(cells) - len(chosen)
    return Figure(
        key="phases",
        title=title,
        alt=sentences(bars),
        caption=sentences(
            [
                "Shares of the mean training iteration after the warm-up, and its seconds; runs with a measured clock "
                "alone. Learning includes the connectors.",
                f"{count(rest, 'more cell')} in the table" if rest > 0 else "",
                f"Engine: {study.engine}",
            ]
        ),
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
