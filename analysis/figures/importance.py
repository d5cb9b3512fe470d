"""Which parameters mattered at each number of runners. Imports pandas; the caller computed the numbers (PED-ANOVA)."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.words import listed, number, sentence

COLUMNS = ("num_env_runners", "parameter", "importance", "n")
ROW_IN = 0.28
"""Height of one parameter."""
LEAST_IN = 2.0
"""Room for the name of the axis."""


def importance(
    values: Mapping[int, Mapping[str, float]], *, runs: Mapping[int, int] | None = None, fewest: int = 10
) -> Figure:
    """Return parameter importance per number of runners.

    Args:
        values: Scale -> parameter -> importance, dimensionless, sum 1 at each scale.
        runs: Scale -> trials behind it.
        fewest: Trials of a scale below which the caller computes none.
    """
    key, title = "importance", "Which parameters mattered, per number of runners"
    if not any(values.values()):
        why = f"No number of runners has {fewest} ended trials that a sampler proposed, and fewer would be noise."
        return absent(key, title, f"{why} Fix: add trials, for instance with --resume --trials.")
    scales = [scale for scale in sorted(values) if values[scale]][: style.MAX_SERIES]
    n = runs or {}
    rows = [(scale, name, value, n.get(scale, 0)) for scale in scales for name, value in values[scale].items()]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    order = frame.groupby("parameter")["importance"].mean().sort_values(ascending=False)
    frame["rank"] = frame["parameter"].map({name: place for place, name in enumerate(order.index)})
    frame = frame.sort_values(["rank", "num_env_runners"], ignore_index=True).drop(columns="rank")
    parts = []
    for scale in scales:
        here = frame[frame["num_env_runners"] == scale].sort_values("importance", ascending=False)
        top = [f"{row['parameter']} {number(row['importance'], 2)}" for _, row in here.head(3).iterrows()]
        parts.append(sentence(f"{scale} runners: {listed(top)}"))
    caption = (
        "PED-ANOVA: what tells the better half of the trials from the rest, at that number of runners alone; sum 1. "
        "Computed from trials that a sampler chose, so it ranks parameters and has no interval; it says nothing of "
        "values that were never proposed."
    )
    height = max(0.8 + ROW_IN * len(order) * max(len(scales) * 0.4, 1.0), LEAST_IN)
    return Figure(
        key=key, title=title, alt=" ".join(parts), caption=caption, frame=frame, painter=_paint, height_in=height
    )


def _paint(ax: Axes, frame: pd.DataFrame) -> None:
    names = list(dict.fromkeys(frame["parameter"]))
    scales = sorted(frame["num_env_runners"].unique())
    thick = 0.8 / len(scales)
    for index, scale in enumerate(scales):
        here = frame[frame["num_env_runners"] == scale].set_index("parameter")["importance"].reindex(names)
        trials = int(frame.loc[frame["num_env_runners"] == scale, "n"].iloc[0])
        places = [place + (index - (len(scales) - 1) / 2) * thick for place in range(len(names))]
        ax.barh(
            places,
            here.fillna(0.0),
            height=thick,
            color=style.COLOURS[index],
            edgecolor="white",
            linewidth=0.5,
            label=f"n = {scale}" + (f" ({trials} trials, no interval)" if trials else ""),
        )
    ax.set_yticks(range(len(names)), [style.category(name) for name in names])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlim(left=0)
    ax.set_xlabel("importance [share, sum 1]")
    ax.set_ylabel("parameter [name]")
