"""Painters that several figures share, drawn with seaborn's objects on axes that are given. No statistics.

seaborn is imported when something is drawn: it takes a second, and a program that only reads figures needs none of it.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from study.text import count as counted

NEAR = 0.3
"""An end of an interval that is so small a share of its value is not made room for."""
PANEL_SERIES = 4
"""Lines in one panel, at most; of more each gets a panel of its own."""


def lines(axes: Sequence[Axes], frame: pd.DataFrame, *, label: str, finest: float | None = None) -> None:
    """Draw `value` against the number of runners, a line for each series with its intervals and its name at its end.

    Args:
        axes: One for each value of `panel`.
        frame: Columns `panel`, `kind` (measured, ideal), `series`, `num_env_runners`, `value`, `low`, `high`.
        label: Of its axis, with the unit.
        finest: As in `style.value_axis`.
    """
    import seaborn.objects as so

    data = frame[frame["kind"] == "measured"]
    names = list(dict.fromkeys(data["series"]))
    looks = {name: place % style.MAX_SERIES for place, name in enumerate(names)}
    panels = list(dict.fromkeys(data["panel"])) or [""]
    for ax, panel in zip(axes, panels, strict=True):
        here = data[data["panel"] == panel]
        present = list(dict.fromkeys(here["series"]))
        plot = so.Plot(here, x="num_env_runners", y="value", color="series", marker="series", linestyle="series")
        plot = plot.add(so.Line(), legend=False).add(so.Range(linestyle="-"), ymin="low", ymax="high", legend=False)
        plot.scale(
            color=so.Nominal([style.COLOURS[looks[name]] for name in present], order=present),
            marker=so.Nominal([style.MARKS[looks[name]] for name in present], order=present),
            linestyle=so.Nominal([style.DASHES[looks[name]] for name in present], order=present),
        ).on(ax).plot()
        ideal = frame[frame["kind"] == "ideal"]
        ax.plot(ideal["num_env_runners"], ideal["value"], color=style.GREY, dashes=(1, 2), linewidth=1.2, zorder=1)
        style.runner_axis(ax, frame["num_env_runners"])
        seen = frame[["value", "low", "high"]].astype("Float64").to_numpy(np.float64, na_value=np.nan)
        style.value_axis(ax, "y", seen, finest=finest, factor=np.inf)
        ax.set_ylabel(label)
        if panel:
            ax.text(0, 1.02, style.wrapped(panel, 32), transform=ax.transAxes, fontsize=8.5, va="bottom")
        if here["series"].nunique() > 1:
            last = here.sort_values("num_env_runners").groupby("series", sort=False).last()
            ends = [
                (str(name), float(row["num_env_runners"]), float(row["value"]), style.COLOURS[looks[str(name)]])
                for name, row in last.iterrows()
            ]
            style.end_labels(ax, ends)


ROW_LABEL = 24
"""Characters of one line of the name of a row."""
TAIL = 0.03
"""Share of the runs on either side for which a picture makes no room: they are arrows at its edge."""


def rows(
    axes: Sequence[Axes],
    frame: pd.DataFrame,
    *,
    label: str,
    finest: float | None = None,
    reference: float | None = None,
) -> None:
    """Draw one row for each name: its single runs as faint dots, its value with the interval, the number beside it.

    Args:
        axes: One.
        frame: Columns `kind` (run, not reached, mean), `row`, `value`, `low`, `high`, `note`; names in order, the
            number of runners behind a line break.
        label: Of the axis of values, with the unit.
        finest: As in `style.value_axis`.
        reference: Where a dotted line stands, if it lies within the data.
    """
    import seaborn.objects as so

    (ax,) = axes
    names = list(dict.fromkeys(frame["row"]))
    means, runs, lost = (frame[frame["kind"] == kind] for kind in ("mean", "run", "not reached"))
    single = frame.loc[frame["kind"] != "mean", "value"]
    seen = [*means["value"], *means["high"], *single.quantile([TAIL, 1 - TAIL])]
    seen += [low for low, value in zip(means["low"], means["value"], strict=True) if low > NEAR * value]
    limits = style.value_axis(ax, "x", seen, finest=finest)
    inside = runs[runs["value"].between(*limits)]
    plot = so.Plot(frame, y="row", x="value")
    faint = so.Dot(pointsize=4, alpha=0.3, color=style.GREY, edgewidth=0)
    plot = plot.add(faint, so.Jitter(0.5, seed=1), data=inside, orient="y", legend=False)
    plot = plot.add(so.Dot(pointsize=7, color=style.COLOURS[0]), data=means, orient="y", legend=False)
    interval = so.Range(color=style.COLOURS[0], linewidth=1.8)
    ends = means.assign(low=means["low"].clip(lower=limits[0]), high=means["high"].clip(upper=limits[1]))
    plot = plot.add(interval, data=ends, orient="y", xmin="low", xmax="high", legend=False)
    plot.scale(y=so.Nominal(order=names)).on(ax).plot()
    style.value_axis(ax, "x", seen, finest=finest)
    below, above = runs[runs["value"] < limits[0]], runs[runs["value"] > limits[1]]
    for mark, some in (("<", below), (">", pd.concat([above, lost]))):
        if len(some):  # without points, marks that are not clipped take room at the corner of the picture
            at = [names.index(name) - 0.3 * (mark == ">") for name in some["row"]]
            ax.plot(some["value"].clip(*limits), at, linestyle="none", marker=mark, markerfacecolor="white",
                    color=style.GREY, markersize=5, clip_on=False)  # fmt: skip
            left = mark == "<"
            for place, count in Counter(at).items():
                ax.annotate(
                    counted(count, "run"),
                    (limits[0 if left else 1], place),
                    xytext=(6 if left else -6, 3),
                    textcoords="offset points",
                    ha="left" if left else "right",
                    color=style.GREY,
                )
    if reference is not None and limits[0] <= reference <= limits[1]:
        ax.axvline(reference, color=style.GREY, dashes=(1, 2), linewidth=1.2, zorder=1)
    ax.set_yticks(range(len(names)), [row_label(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.set(xlabel=label, ylabel="")
    for _, row in means.iterrows():
        ax.annotate(
            row["note"],
            (1.03, names.index(row["row"])),
            xycoords=ax.get_yaxis_transform(),
            va="center",
            annotation_clip=False,
        )


def row_label(name: str) -> str:
    """Return the name of a row in lines that fit."""
    return "\n".join(style.wrapped(line, ROW_LABEL) for line in name.split("\n"))
