"""Figures of the trials one by one: return against cost, and which parameters mattered. No statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from analysis.estimates.settings import learning_runs
from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.learning import NO_LEARNING, seeds
from analysis.figures.words import drawn_of, number, sentence
from analysis.scaling.fingerprint import in_words
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

FRONT = "Return against cost"
IMPORTANCE = "Which parameters mattered, per number of runners"
NOT_COMPUTED = "Nobody computed it. Fix: run `python -m study report STUDY`, with the folder of the study."
MOST_DOTS = 400
"""Single runs in one picture; the frame has them all."""
TAIL = 0.05
"""Share of the runs that may lie outside of the picture of costs, as arrows at its edge."""


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
        text = f"{count(int(scale), 'runner')}: the cheapest run {_bought(some.iloc[0])}"
        parts.append(sentence(text + (f", the best {_bought(some.iloc[-1])}" if len(some) > 1 else "")))
    best_run = front.sort_values(["final_return", "cpu_s_spent"], ascending=[False, True]).iloc[0]
    emulated = "emulated" in set(frame["timing"].dropna())
    failed = int(here["status"].eq("failed").fillna(False).sum())
    scales = sorted(int(scale) for scale in frame["num_env_runners"].unique())
    drawn = style.evenly(scales)
    beyond = int(frame["beyond"].sum())
    caption = [
        "Every mark is one run (n=1, no interval); lines join the runs that no other one of the same number of runners "
        f"beats in both. Not drawn, for lack of a return: {count(failed, 'failed run')}.",
        "CPU-seconds of emulated runs are those of the emulation." if emulated else "",
        f"{count(beyond, 'run')} far below the others: arrows at the lower edge." if beyond else "",
        drawn_of(scales, drawn),
        seeds(study),
        f"Engine: {study.engine}.",
    ]
    return Figure(
        key="front",
        title=f"The cheapest run with the highest return, {number(float(best_run['final_return']))}, took "
        f"{_cost(best_run)}, with {count(int(best_run['num_env_runners']), 'runner')}",
        alt=f"{count(len(frame), 'run')}, {len(front)} on a front. {' '.join(parts)}",
        caption=" ".join(part for part in caption if part),
        frame=frame,
        painter=partial(_front, drawn=drawn),
    )


def _bought(run: "pd.Series[Any]") -> str:
    return f"returns {number(float(run['final_return']))} for {_cost(run)}"


def _cost(run: "pd.Series[Any]") -> str:
    return f"{number(float(run['cpu_s_spent']))} CPU-seconds{' (emulated)' if run['timing'] == 'emulated' else ''}"


def _beyond(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return which runs would make the rest a line: far below the bulk, and few."""
    returns = frame["final_return"].astype(float)
    low, high = returns.quantile(TAIL), returns.max()
    return (returns < low - 2 * (high - low)) & ~frame["on_front"]


def _front(axes: Sequence[Axes], frame: pd.DataFrame, *, drawn: Sequence[int]) -> None:
    import seaborn as sns

    (ax,) = axes
    names = [count(scale, "runner") for scale in drawn]
    frame = frame.assign(series=[count(int(n), "runner") for n in frame["num_env_runners"]])
    inside, low = frame[~frame["beyond"]], frame[frame["beyond"]]
    some = inside[inside["series"].isin(names)]
    rest, front = some[~some["on_front"]], some[some["on_front"]]
    look: dict[str, Any] = {
        "x": "cpu_s_spent", "y": "final_return", "hue": "series", "style": "series", "hue_order": names,
        "style_order": names, "palette": list(style.COLOURS[: len(names)]), "markers": list(style.MARKS[: len(names)]),
    }  # fmt: skip
    thinned = rest.iloc[:: max(-(-len(rest) // MOST_DOTS), 1)]
    if len(thinned):  # of an empty frame seaborn takes no colours, and warns
        sns.scatterplot(thinned, s=18, alpha=0.35, ax=ax, legend=False, **look)
    sns.lineplot(front, drawstyle="steps-post", dashes=False, estimator=None, ax=ax, **look)
    sns.move_legend(ax, "upper left", bbox_to_anchor=(1.0, 1.0), title=None, frameon=False)
    style.value_axis(ax, "x", frame["cpu_s_spent"].to_numpy(float), factor=3.0)
    bottom, _ = style.value_axis(ax, "y", inside["final_return"].to_numpy(float), finest=0.0)
    if len(low):
        ax.plot(low["cpu_s_spent"], [bottom] * len(low), linestyle="none", marker="v", markerfacecolor="none",
                color=style.INK, clip_on=False)  # fmt: skip
    ax.set(xlabel="CPU time spent in training [CPU-s]", ylabel="final return")


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
    """Return which parameters mattered at each number of runners, as the caller computed it (PED-ANOVA)."""
    if isinstance(found, str):
        return absent("importance", IMPORTANCE, found or NOT_COMPUTED)
    if not any(found.values.values()):
        why = f"No number of runners has {found.fewest} ended trials with different results; fewer would be noise."
        return absent("importance", IMPORTANCE, f"{why} Fix: add trials, for instance with --resume --trials.")
    known = [scale for scale in sorted(found.values) if found.values[scale]]
    scales = style.evenly(known)
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
        parts.append(sentence(f"{count(scale, 'runner')}: {listed(words)}"))
    caption = (
        "PED-ANOVA: what tells the better half of the trials from the rest, at that number of runners alone; sum 1. "
        "Computed from trials that a sampler chose, so it ranks parameters and has no interval; it says nothing of "
        f"values that were never proposed. Trials: {listed([f'{n} with {scale}' for scale, n in _trials(frame)])}. "
        f"{drawn_of(known, scales)} Engine: {engine}."
    )
    last = tops.iloc[-1]
    name = in_words(last["parameter"])
    title = f"{name[0].upper()}{name[1:]} matters most with {count(int(last['num_env_runners']), 'runner')}"
    other = tops[tops["parameter"] != last["parameter"]]
    if len(other):
        first = other.iloc[0]
        title += f", {in_words(first['parameter'])} with {first['num_env_runners']}"
    return Figure(
        key="importance",
        title=title,
        alt=" ".join(parts),
        caption=" ".join(caption.split()),
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
    here = frame.assign(scale=frame["num_env_runners"].map(lambda n: count(int(n), "runner")))
    order = [count(scale, "runner") for scale in scales]
    plot = so.Plot(here, x="importance", y="parameter", color="scale")
    plot = plot.add(so.Bar(alpha=1, edgecolor="white", edgewidth=0.5), so.Dodge(), orient="y", legend=False)
    colours = so.Nominal(list(style.COLOURS[: len(order)]), order=order)
    plot.scale(color=colours, y=so.Nominal(order=names)).on(ax).plot()
    ax.set_yticks(range(len(names)), [style.wrapped(in_words(name)) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.grid(visible=False, axis="y")
    ax.set(xlabel="importance [share, sum 1]", ylabel="")
    handles = [Patch(color=style.COLOURS[place]) for place in range(len(order))]
    ax.legend(handles, order, loc="lower right", frameon=False, handlelength=1.2)
