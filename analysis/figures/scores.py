"""Score against the number of runners, and return against cost. Imports pandas, Matplotlib's objects."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.marks import ends, whiskers
from analysis.figures.settings import NO_SCALE, arms, learning_runs, legend_of, on_which_runs, per_setting, spread
from analysis.figures.words import counted, engine_of, listed, number, sentence, with_interval
from study.statistics import mean_interval

MAX_DOTS = 400
"""Single runs in one picture; the frame has them all."""
FINEST_SCORE = 0.2
"""Smallest range of a score axis: what is closer together than a tenth of it is not made to look far apart."""
SCORE_RANGE = (-0.6, 1.6)
"""Scores lie in [0, 1.2]; intervals of few runs reach further, and are cut in the picture."""
TAIL = 0.05
"""Share of the runs that may lie outside of the front's picture, as arrows at its edge."""
SCORE_COLUMNS = ("kind", "series", "num_env_runners", "score", "low", "high", "n", "n_failed")
FRONT_COLUMNS = ("trial", "num_env_runners", "cpu_s_spent", "final_return", "on_front")
NO_LEARNING = "No run was given its whole learning budget. Fix: none for a throughput study, which claims no learning."


def score(runs: pd.DataFrame) -> Figure:
    """Return the mean score per setting and number of runners with Student's 95 % interval; failed runs count as 0.

    Args:
        runs: One row per trial.
    """
    key, title = "score", "Score against the number of runners"
    here = learning_runs(runs)
    failed = here["status"].eq("failed").fillna(False)
    if here.empty or "score" not in here or (here["score"].isna().all() and not failed.any()):
        return absent(key, title, NO_LEARNING)
    chosen, left_out = per_setting(arms(runs))
    if not chosen:
        return absent(key, title, NO_SCALE)
    indexed = here.set_index("trial")
    rows: list[tuple[object, ...]] = []
    for found in chosen.values():
        for arm in found:
            some = indexed.loc[list(arm.trials)]
            failed = some["status"].eq("failed").fillna(False)
            scores = some["score"].astype("Float64").where(~failed, 0.0).fillna(0.0).to_numpy(float)
            rows += [("run", arm.label, arm.num_env_runners, value, np.nan, np.nan, 1, 0) for value in scores]
            mean = mean_interval(scores)
            entry = ("mean", arm.label, arm.num_env_runners, mean.value, *ends(mean), mean.n, int(failed.sum()))
            rows.append(entry)
    frame = pd.DataFrame(rows, columns=list(SCORE_COLUMNS))
    means = frame[frame["kind"] == "mean"]
    parts = []
    for name, some in means.groupby("series", sort=False):
        words = [
            f"{with_interval(row['score'], row['low'], row['high'], int(row['n']))} with {row['num_env_runners']}"
            for _, row in some.sort_values("num_env_runners").iterrows()
        ]
        parts.append(sentence(f"{name}: mean score {listed(words)} runners"))
    lost = int(means["n_failed"].sum())
    names = legend_of(runs, (arm for found in chosen.values() for arm in found))
    caption = (
        "Marks with whiskers: mean over runs with Student's 95 % interval; small marks: single runs; without whiskers: "
        f"n=1, no interval. Score 0 is the floor, 1 the reference. {counted(lost, 'failed run')} counted as 0. "
        f"Such intervals are too narrow where failures are rare. {on_which_runs(runs)} {left_out} {names} "
        f"{engine_of(here)}"
    )
    return Figure(
        key=key, title=title, alt=" ".join(parts), caption=" ".join(caption.split()), frame=frame, painter=_paint_scores
    )


def cost_return_front(runs: pd.DataFrame) -> Figure:
    """Return final return against CPU-seconds spent, run by run, with the runs that no other one beats in both.

    Args:
        runs: One row per trial; a front is drawn for each number of runners.
    """
    key, title = "front", "Return against cost"
    here = learning_runs(runs)
    finished = here[here["status"].eq("finished").fillna(False)] if len(here) else here
    if not {"cpu_s_spent", "final_return"} <= set(here.columns):
        return absent(key, title, NO_LEARNING)
    finished = finished.dropna(subset=["cpu_s_spent", "final_return", "num_env_runners"])
    finished = finished[finished["cpu_s_spent"] > 0]
    if finished.empty:
        return absent(key, title, f"No finished run has both a return and a cost. {NO_LEARNING}")
    pieces = []
    for scale, some in finished.groupby("num_env_runners", sort=True):
        ordered = some.sort_values(["cpu_s_spent", "final_return", "trial"], ascending=[True, False, True])
        returns = ordered["final_return"].to_numpy(float)
        best = np.concatenate([[-np.inf], np.maximum.accumulate(returns)[:-1]])
        piece = ordered[["trial", "cpu_s_spent", "final_return"]].assign(num_env_runners=scale, on_front=returns > best)
        pieces.append(piece[list(FRONT_COLUMNS)])
    frame = pd.concat(pieces, ignore_index=True)
    front = frame[frame["on_front"]]
    parts = []
    for scale, some in front.groupby("num_env_runners"):
        first, last = some.iloc[0], some.iloc[-1]
        text = f"{scale} runners: the cheapest run {_bought(first)}"
        text += f", the best {_bought(last)}" if len(some) > 1 else ""
        parts.append(sentence(text))
    failed = int(here["status"].eq("failed").fillna(False).sum())
    frame["beyond"] = _beyond(frame)
    words = [str(name) for name in sorted(finished["timing"].dropna().unique())] if "timing" in finished else []
    caption = (
        "Every mark is one run (n=1, no interval); the line joins the runs that no other one of the same number of "
        f"runners beats in both. Not drawn, for lack of a return: {counted(failed, 'failed run')}. "
        f"Clock of the runs: {listed(words)}."
    )
    if beyond := int(frame["beyond"].sum()):
        caption += f" {counted(beyond, 'run')} far below the others: arrows at the lower edge."
    scales = sorted(int(scale) for scale in frame["num_env_runners"].unique())
    if len(shown := spread(scales)) < len(scales):
        caption += f" Of {len(scales)} numbers of runners {listed([str(scale) for scale in shown])} are drawn."
    if "emulated" in words:
        caption += " CPU-seconds of emulated runs are those of the emulation."
    caption += f" {engine_of(finished)}"
    alt = f"{counted(len(frame), 'run')}, {len(front)} on a front. {' '.join(parts)}"
    return Figure(key=key, title=title, alt=alt, caption=caption, frame=frame, painter=_paint_front)


def _bought(run: "pd.Series[Any]") -> str:
    return f"returns {number(run['final_return'])} for {number(run['cpu_s_spent'])} CPU-s"


def _beyond(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return which runs would make the rest a line: far below the bulk, and few."""
    returns = frame["final_return"].astype(float)
    low, high = returns.quantile(TAIL), returns.max()
    return (returns < low - 2 * (high - low)) & ~frame["on_front"]


def _paint_scores(ax: Axes, frame: pd.DataFrame) -> None:
    style.label_axes(ax, ("environment runners", "count"), ("score", "0 = floor, 1 = reference"))
    logarithmic = style.runner_axis(ax, frame["num_env_runners"])
    ax.axhline(1.0, color=style.GREY, dashes=(1, 2), linewidth=1.0)
    series = list(dict.fromkeys(frame["series"]))
    for index, name in enumerate(series):
        here, colour = frame[frame["series"] == name], style.COLOURS[index]
        shift = (index - (len(series) - 1) / 2) * 0.04
        dots, means = here[here["kind"] == "run"], here[here["kind"] == "mean"].sort_values("num_env_runners")
        dots = dots.iloc[:: max(-(-len(frame) // MAX_DOTS), 1)]
        ax.plot(
            style.dodged(dots["num_env_runners"], shift, logarithmic),
            dots["score"],
            linestyle="none",
            marker=style.MARKS[index],
            markersize=3,
            alpha=0.35,
            color=colour,
        )
        ax.errorbar(
            style.dodged(means["num_env_runners"], shift, logarithmic),
            means["score"],
            yerr=whiskers(means, "score"),
            color=colour,
            marker=style.MARKS[index],
            linestyle=style.DASHES[index] if len(means) > 1 else "none",
            label=str(name),
        )
    known = np.clip(frame[["score", "low", "high"]].to_numpy(float), *SCORE_RANGE)
    low, high = float(np.nanmin(known)) - 0.02, max(1.0, float(np.nanmax(known))) + 0.02
    middle, half = (low + high) / 2, max(high - low, FINEST_SCORE) / 2
    ax.set_ylim(middle - half, middle + half)
    style.plain_numbers(ax.yaxis)


def _paint_front(ax: Axes, frame: pd.DataFrame) -> None:
    style.label_axes(ax, ("CPU time spent in training", "CPU-s"), ("final return", "return"))
    shown = spread(sorted(frame["num_env_runners"].unique()))
    low, high = float(frame["cpu_s_spent"].min()), float(frame["cpu_s_spent"].max())
    if high > 5 * low:
        style.logarithmic_x(ax, low, high)
    else:
        style.plain_numbers(ax.xaxis)
        ax.locator_params(axis="x", nbins=6)
    stride = max(-(-len(frame) // MAX_DOTS), 1)
    for index, scale in enumerate(shown):
        here, colour = frame[frame["num_env_runners"] == scale], style.COLOURS[index]
        front = here[here["on_front"]].sort_values("cpu_s_spent")
        rest = here[~here["on_front"] & ~here["beyond"]].iloc[::stride]
        mark = style.MARKS[index]
        ax.plot(
            rest["cpu_s_spent"],
            rest["final_return"],
            linestyle="none",
            marker=mark,
            markersize=3.5,
            alpha=0.4,
            color=colour,
        )
        ax.plot(
            front["cpu_s_spent"],
            front["final_return"],
            drawstyle="steps-post",
            linestyle=style.DASHES[index],
            marker=mark,
            color=colour,
            label=f"n = {scale} ({counted(len(here), 'run')})",
        )
    beyond, (bottom, top) = frame[frame["beyond"]], ax.get_ylim()
    if len(beyond):
        edge = bottom + 0.02 * (top - bottom)
        ax.plot(
            beyond["cpu_s_spent"],
            [edge] * len(beyond),
            linestyle="none",
            marker="v",
            markerfacecolor="none",
            color=style.INK,
            label=f"far below ({counted(len(beyond), 'run')})",
        )
        ax.set_ylim(bottom, top)
    style.plain_numbers(ax.yaxis)
