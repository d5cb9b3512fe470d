"""Figures of time: efficiency against the number of runners, and the phases of an iteration. Select; no statistics."""

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes

from analysis.answers.facts import estimate_of, in_words, number, percent, runners
from analysis.figures.figure import GREY, MAX_SERIES, Figure, absent, looks, put, sentence, wrapped
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

PARTS = {
    "share_runners": "sampling",
    "share_imbalance": "waiting for the slowest",
    "share_transfer": "collecting samples",
    "share_learn": "learning",
    "share_sync": "sending weights",
    "share_rest": "the rest",
}
"""Share -> what the picture calls it, in the order of an iteration."""
PHASES = ("#0072B2", "#56B4E9", "#B9DDF3", "#E69F00", "#009E73", "#6b6b6b")
"""Colours of these: sampling is blue; neighbours differ in lightness."""
MAX_BARS = 8
FINEST = 0.05
"""Smallest range of an axis of efficiencies: small differences are not made to look large."""


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
    names = dict(zip(found, told_apart(found), strict=True))
    frame = frame.assign(series=line.map(names))[line.isin(found[:MAX_SERIES])].sort_values(
        ["series", "num_env_runners"]
    )
    frame = frame.sort_values("series", key=lambda each: each.map(list(names.values()).index), kind="stable")
    rest = len(found) - MAX_SERIES
    last = frame.groupby("series", sort=False).tail(1)
    ends = [
        sentence(
            f"{row['series'] or 'efficiency'}: {in_words(estimate_of(row))} with {runners(row['num_env_runners'])}"
        )
        for _, row in last.iterrows()
    ]
    caption = (
        "T(n_ref) / T(n) x n_ref / n, the batch fixed: 1, dotted, is ideal; the smallest scale of a line is 1 by "
        f"definition. Bars: 95 % intervals. {f'{rest} more workloads: see the table.' if rest > 0 else ''} "
        f"Engine: {study.engine}."
    )
    return Figure(
        key="efficiency",
        title=title,
        alt=" ".join(ends),
        caption=sentence(caption),
        frame=frame.reset_index(drop=True),
        paint=_lines,
        height_in=2.7 + 0.18 * (len(ends) if len(ends) > 1 else 0),
    )


def told_apart(workloads: list[str]) -> list[str]:
    """Return the names of workloads without what is the same in all of them; "" where nothing differs."""
    parts = [each.split(", ") for each in workloads]
    common = set(parts[0]).intersection(*parts) if len(parts) > 1 else set()
    return [", ".join(part for part in each if part not in common) for each in parts]


def _lines(ax: Axes, frame: pd.DataFrame) -> None:
    import seaborn.objects as so

    names = list(dict.fromkeys(frame["series"]))
    scales = sorted({int(each) for each in frame["num_env_runners"]})
    plot = so.Plot(frame, x="num_env_runners", y="value", color="series", marker="series")
    plot = plot.add(so.Line()).add(so.Range(), ymin="low", ymax="high")
    across = so.Continuous(trans="log2").tick(at=scales).label(like="{x:g}")
    put(plot.scale(x=across, **looks(names)), ax, legend=len(names) > 1)
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
    chosen = cells[cells["workload"] == most.idxmax()] if most.max() > 1 else cells
    chosen = chosen.sort_values(cell[1:]).tail(MAX_BARS)
    batches = chosen["num_env_runners"].duplicated().any()
    times = study.estimates("iteration_time_s")[[*cell, "value"]].drop_duplicates(cell)
    times = times.rename(columns={"value": "seconds"})
    frame = chosen[cell].merge(shares, on=cell).merge(times, on=cell, how="left")
    frame["bar"] = [
        runners(int(n)) + (f", batch {batch:,}" if batches else "")
        for n, batch in zip(frame["num_env_runners"], frame["train_batch_size"], strict=True)
    ]
    frame["phase"] = frame["quantity"].map(PARTS)
    bars = []
    for name, here in frame.groupby("bar", sort=False):
        whole = "" if pd.isna(here["seconds"].iloc[0]) else f" of {number(float(here['seconds'].iloc[0]))} s"
        parts = [f"{percent(float(value))} {phase}" for value, phase in zip(here["value"], here["phase"], strict=True)]
        bars.append(sentence(f"{name}: an iteration{whole} is {listed(parts)} (n={here['n'].iloc[0]})"))
    rest = len(cells) - len(chosen)
    caption = (
        "Shares of the mean training iteration after the warm-up, and its seconds; runs with a measured clock alone. "
        f"Learning includes the connectors. {count(rest, 'more cell') + ' in the table.' if rest > 0 else ''} "
        f"Engine: {study.engine}."
    )
    return Figure(
        key="phases",
        title=title,
        alt=" ".join(bars),
        caption=sentence(caption),
        frame=frame,
        paint=_stacked,
        height_in=1.7 + 0.4 * len(bars),
    )


def _stacked(ax: Axes, frame: pd.DataFrame) -> None:
    import seaborn.objects as so

    here = frame.assign(percent=100 * frame["value"])
    bars, order = list(dict.fromkeys(here["bar"])), list(PARTS.values())
    plot = so.Plot(here, x="percent", y="bar", color="phase").add(so.Bar(alpha=1, edgewidth=0), so.Stack(), orient="y")
    put(plot.scale(color=so.Nominal(list(PHASES), order=order), y=so.Nominal(order=bars)), ax)
    seconds = here.groupby("bar")["seconds"].first()
    labels = [wrapped(bar) + ("" if pd.isna(seconds[bar]) else f"\n{number(float(seconds[bar]))} s") for bar in bars]
    ax.set(xlim=(0, 100), xlabel="share of the iteration [%]", ylabel="")
    ax.set_yticks(range(len(bars)), labels)
    ax.grid(visible=False)
