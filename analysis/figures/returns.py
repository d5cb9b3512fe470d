"""Return against env steps and against wall clock, with bands over runs. Imports pandas, NumPy, `study.statistics`.

A failed run stays in its band: from its end on it counts with the floor of the environment, or, where no floor is
known, it is named and the band says that it is without it.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.marks import ends
from analysis.figures.settings import Arm, arms, clocked, legend_of, on_which_runs, one_per_scale
from analysis.figures.words import counted, engine_of, sentence, with_interval
from study.statistics import FEWEST_RUNS, FloatArray, iqm_interval

GRID_POINTS = 24
"""Points of a curve whose runs were evaluated at different times."""
MARKS_OF_A_LINE = 8
COLUMNS = ("series", "num_env_runners", "at", "eval_return", "low", "high", "n")
Axis = Literal["env_steps", "wall_time_s"]


def return_curves(
    runs: pd.DataFrame,
    evaluations: pd.DataFrame,
    *,
    against: Axis,
    floor: float | None = None,
) -> Figure:
    """Return the interquartile mean of the evaluation return over runs, with 95 % bands, per number of runners.

    Args:
        runs: One row per trial.
        evaluations: One row per greedy evaluation: trial, env_steps, wall_time_s, eval_return.
        against: `env_steps`, or `wall_time_s` of training, which needs a measured clock.
        floor: Return that a failed run counts with from its end on; None where it is not known.
    """
    steps = against == "env_steps"
    key = "return_steps" if steps else "return_wall_clock"
    title = f"Return against {'environment steps' if steps else 'wall clock'}"
    if evaluations.empty:
        why = "No evaluation is recorded, so no return can be drawn. Fix: wait for the first one."
        return absent(key, title, why)
    if not steps and (runs := clocked(runs)).empty:
        why = "No run has a measured clock: seconds of emulated or oversubscribed runs are not those of n runners."
        return absent(key, title, f"{why} Fix: read the return against environment steps.")
    known = evaluations.dropna(subset=["eval_return"])
    chosen, left_out = one_per_scale(
        [arm for arm in arms(runs) if set(arm.trials) & set(known["trial"])],
    )
    if not chosen:
        return absent(
            key,
            title,
            "No run of a known scale with its whole budget has an evaluation yet. Fix: wait for the first one.",
        )
    rows: list[tuple[object, ...]] = []
    notes = []
    for arm in chosen:
        curve, lost = _curve(arm, runs, known, against, floor)
        series = f"{counted(arm.num_env_runners, 'runner')}: {arm.label}"
        for at, values in curve:
            estimate = iqm_interval(values)
            rows.append((series, arm.num_env_runners, at, estimate.value, *ends(estimate), estimate.n))
        if lost:
            fate = "counted at the floor from its end on" if floor is not None else "not in the band after its end"
            notes.append(f"{series}: {counted(lost, 'failed run')} {fate}.")
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    bands = "Lines: interquartile mean over runs of one setting; bands: 95 % interval, by bootstrap from "
    bands += f"{FEWEST_RUNS} runs on, Student's t below"
    bands += "; one run has no band" if (frame["n"] == 1).any() else ""
    bands += ". Bands that leave the picture are cut." if frame["n"].between(2, FEWEST_RUNS - 1).any() else "."
    rule = "For each number of runners the setting with the most runs, then the best one." if left_out else ""
    names = legend_of(runs, chosen)
    clock = "" if steps else "Training seconds of runs with a measured clock, and of failed ones."
    return Figure(
        key=key,
        title=title,
        alt=" ".join(_ending(frame, series, steps) for series in dict.fromkeys(frame["series"])),
        caption=" ".join(
            part for part in (bands, clock, on_which_runs(runs), rule, left_out, *notes, names, engine_of(runs)) if part
        ),
        frame=frame,
        painter=_paint_steps if steps else _paint_wall,
    )


def _curve(
    arm: Arm, runs: pd.DataFrame, evaluations: pd.DataFrame, against: Axis, floor: float | None
) -> tuple[list[tuple[float, FloatArray]], int]:
    """Return (place, value of each run) along the axis, and how many runs failed.

    Each run keeps its last evaluation until the next one; the curve begins where every run that was ever evaluated
    has one.
    """
    status = dict(zip(runs["trial"], runs["status"], strict=True))
    failed = [trial for trial in arm.trials if status.get(trial) == "failed"]
    tracks: list[tuple[FloatArray, FloatArray]] = []
    for trial in arm.trials:
        here = evaluations[evaluations["trial"] == trial].sort_values(against)
        at, values = here[against].to_numpy(float), here["eval_return"].to_numpy(float)
        if trial in failed:
            if floor is None:
                continue
            # The evaluation after the last one is the first that the run did not live to see.
            at, values = np.append(at, np.nextafter(at[-1], np.inf) if at.size else 0.0), np.append(values, floor)
        if at.size:
            tracks.append((at, values))
    living = [track for track in tracks if track[0].size > 1] or tracks
    if not tracks:
        return [], len(failed)
    first = max(float(at[0]) for at, _ in living)
    places = np.unique(np.concatenate([at for at, _ in tracks]))
    places = places[(places >= first) & (places <= max(float(at[-1]) for at, _ in tracks))]
    if places.size > GRID_POINTS:
        places = np.linspace(first, float(places[-1]), GRID_POINTS)
    curve = []
    for place in places:
        values = np.array(
            [value[np.searchsorted(at, place, side="right") - 1] for at, value in tracks if at[0] <= place]
        )
        curve.append((float(place), values))
    return curve, len(failed)


def _ending(frame: pd.DataFrame, series: str, steps: bool) -> str:
    last = frame[frame["series"] == series].iloc[-1]
    unit = f"{last['at']:,.0f} env steps" if steps else f"{last['at']:,.0f} s of training"
    value = with_interval(last["eval_return"], last["low"], last["high"], int(last["n"]))
    return sentence(f"{series}: the return after {unit} is {value}")


def _paint(ax: Axes, frame: pd.DataFrame, x: tuple[str, str], divisor: float) -> None:
    style.label_axes(ax, x, ("evaluation return", "return"))
    for index, (name, here) in enumerate(frame.groupby("series", sort=False)):
        colour = style.COLOURS[index]
        at = here["at"] / divisor
        single = int(here["n"].max()) == 1
        ax.plot(
            at,
            here["eval_return"],
            color=colour,
            linestyle=style.DASHES[index],
            marker=style.MARKS[index],
            markersize=3.5,
            markevery=max(len(here) // MARKS_OF_A_LINE, 1),
            label=f"{name} (n=1, no interval)" if single else f"{name} (n={int(here['n'].max())})",
        )
        band = here.dropna(subset=["low", "high"])
        ax.fill_between(band["at"] / divisor, band["low"], band["high"], color=colour, alpha=0.14, linewidth=0)
    # Student's t of two runs is many times as wide as the curves are apart: the picture cuts it, the frame has it.
    low, high = float(frame["eval_return"].min()), float(frame["eval_return"].max())
    span = max(high - low, 1e-9)
    bottom, top = ax.get_ylim()
    ax.set_ylim(max(bottom, low - span), min(top, high + span))
    lengths = frame.groupby("series")["at"].max()
    if lengths.max() > 5 * lengths.min():
        style.logarithmic_x(ax, float(frame["at"].min()) / divisor, float(lengths.max()) / divisor)
    else:
        ax.set_xlim(left=0)
        style.plain_numbers(ax.xaxis)
        ax.locator_params(axis="x", nbins=6)
    style.plain_numbers(ax.yaxis)


def _paint_steps(ax: Axes, frame: pd.DataFrame) -> None:
    thousands = float(frame["at"].max()) >= 20_000
    _paint(ax, frame, ("environment steps", "thousands" if thousands else "count"), 1000.0 if thousands else 1.0)


def _paint_wall(ax: Axes, frame: pd.DataFrame) -> None:
    units: Sequence[tuple[float, str]] = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
    divisor, unit = next(each for each in units if frame["at"].max() >= 3 * each[0] or each[0] == 1.0)
    _paint(ax, frame, ("training time, wall clock", unit), divisor)
