"""Learning curves: the evaluation return against environment steps or wall clock. No statistics."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.estimates.curves import Axis, learning_curves
from analysis.estimates.settings import Setting
from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.learning import WINNER, by_scale, seeds, shown
from analysis.figures.words import number, of_row, sentence
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

CURVES = {"env_steps": "Return against environment steps", "wall_time_s": "Return against wall clock"}
CUT = 4.0
"""A curve's beginning is cut off where with it the axis would be so many times as long as for its second half."""


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
        (arm if n == target_scale else f"{arm}, with {n}") if named else count(int(n), "runner")
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
        seeds(study),
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


def _ending(ends: pd.DataFrame, study: "Study") -> str:
    """Return the title of the curves: where they end, while a final return is a mean over several evaluations."""
    first = ends.iloc[0]
    if study.kind == "holdup" and str(first["arm"]) == WINNER and len(ends) > 1:
        worst = ends.iloc[1:].sort_values("value").iloc[0]
        end = by_scale([(first["value"], first["num_env_runners"])])
        other = f"{worst['arm']}: {number(float(worst['value']))}{', one run' if worst['n'] == 1 else ''}"
        return f"In the last evaluation the chosen setting returns {end}; {other}"
    subject = "the best settings return" if len(ends) > 1 else "the setting returns"
    return f"In the last evaluation {subject} {by_scale(zip(ends['value'], ends['num_env_runners'], strict=True))}"


def _named(chosen: Sequence[Setting]) -> list[str]:
    return [f"{count(each.num_env_runners, 'runner')}: {each.name} (n={len(each.runs)})" for each in chosen]


def _failures(frame: pd.DataFrame, floor: float | None) -> str:
    lost = frame.groupby("series", sort=False)["n_failed"].first()
    fate = "counted at the floor from its end on" if floor is not None else "left out, as no floor is known"
    return " ".join(f"{name}: {count(int(runs), 'failed run')} {fate}." for name, runs in lost[lost > 0].items())


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
    ax.set(xlim=(0, longest / divisor * 1.02), ylim=limits, ylabel="evaluation return")
    ax.set_xlabel(f"environment steps [{unit}]" if steps else f"training time, wall clock [{unit}]")
    style.plain_numbers(ax.xaxis)
    style.plain_numbers(ax.yaxis)
    ax.locator_params(axis="x", nbins=6)
    if target is not None and limits[0] <= target <= limits[1]:
        ax.axhline(target, color=style.GREY, dashes=(1, 2), linewidth=1.2, zorder=1)
    _name_ends(ax, here, "at", "value", names)


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
