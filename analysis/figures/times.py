"""Steps and time to the target against the number of runners, with censoring shown. Imports no engine.

Runs that never reached the target are drawn where they ended, as triangles that point upwards: their time is longer
than that. The line is Kaplan and Meier's median, which counts them; a mean over the successes alone would not.
"""

from functools import partial
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.marks import whiskers
from analysis.figures.settings import NO_SCALE, arms, clocked, legend_of, on_which_runs, per_setting
from analysis.figures.words import counted, engine_of, listed, number, sentence
from analysis.scaling.targets import BEFORE, TIME_BEFORE
from study.statistics import FEWEST_RUNS, BoolArray, FloatArray, median_time, resamples

Quantity = Literal["env_steps", "time"]
COLUMNS = ("kind", "series", "num_env_runners", "value", "low", "high", "n", "n_reached")
LEVEL = 0.95
ROUNDING = 1e-9
"""By which a product of survivals may miss one half."""


def to_target(runs: pd.DataFrame, *, quantity: Quantity, num_resamples: int = 1000) -> Figure:
    """Return the median environment steps, or training seconds, to the target per setting and number of runners.

    Args:
        runs: One row per trial; without `BEFORE` and `TIME_BEFORE` (`watched`) its times count as exact.
        quantity: `env_steps` holds for emulated runs too; `time` needs a measured clock.
        num_resamples: Resamples, >= 1.
    """
    steps = quantity == "env_steps"
    key, title = (
        ("steps_to_target", "Environment steps to the target") if steps else ("time_to_target", "Time to the target")
    )
    title = f"{title} against the number of runners"
    hit, end = ("env_steps_to_target", "env_steps") if steps else ("time_to_target_s", "wall_time_s")
    before = BEFORE if steps else TIME_BEFORE
    if not steps and (runs := clocked(runs)).empty:
        why = "No run has a measured clock, so there is no time to the target. Fix: read the steps to the target."
        return absent(key, title, why)
    if hit not in runs or runs[hit].isna().all():
        why = "No run reached the target, or the environment has none."
        return absent(key, title, f"{why} Fix: give `environment.target`, or a larger budget.")
    chosen, left_out = per_setting(arms(runs))
    if not chosen:
        return absent(key, title, NO_SCALE)
    indexed = runs.set_index("trial")
    rows: list[tuple[object, ...]] = []
    for found in chosen.values():
        for arm in found:
            here = indexed.loc[list(arm.trials)]
            times, reached = _censored(here, hit, end, indexed)
            since = _since(here, before, times, reached)
            for time, event in zip(times, reached, strict=True):
                kind = "reached" if event else "not reached"
                rows.append((kind, arm.label, arm.num_env_runners, float(time), np.nan, np.nan, 1, int(event)))
            low, high = _median_interval(times, since, reached, num_resamples)
            middle = median_time(times, reached)
            rows.append(("median", arm.label, arm.num_env_runners, middle, low, high, len(times), int(reached.sum())))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    medians, lost = frame[frame["kind"] == "median"], int((frame["kind"] == "not reached").sum())
    unit = "env steps" if steps else "s"
    known = "a run got there at some time since the one before" + (
        ", and the intervals hold all of it." if before in runs else ", which is not known."
    )
    if (medians["low"] == 0).any():
        known += " Those that reach down to the axis end at 0: the first evaluation saw the target."
    alt = " ".join(_finding(name, here, unit) for name, here in medians.groupby("series", sort=False))
    names = legend_of(runs, (arm for found in chosen.values() for arm in found))
    caption = (
        f"Lines: Kaplan-Meier median over runs, with 95 % bootstrap intervals from {FEWEST_RUNS} runs on (fewer have "
        "none); small marks: single runs. Times are "
        f"those of evaluations: {known} "
        f"Triangles: {counted(lost, 'run')} that ended without the target, drawn at their end; a failed run counts as "
        f"not reached within its whole budget. {on_which_runs(runs)} {left_out} {names} "
        f"{engine_of(runs)}"
    )
    painter = _paint_steps if steps else _paint_times
    return Figure(key=key, title=title, alt=alt, caption=" ".join(caption.split()), frame=frame, painter=painter)


def _longest(runs: pd.DataFrame, end: str, hit: str) -> float:
    """Return the longest that any of the runs was watched; NaN where none was."""
    watched = runs[[end, hit]].max().max()
    return np.nan if pd.isna(watched) else float(watched)


def _censored(runs: pd.DataFrame, hit: str, end: str, every: pd.DataFrame) -> tuple[FloatArray, BoolArray]:
    """Return each run's time and whether it is one to the target.

    A failed run counts as watched for as long as the longest run of its arm, or of all where its whole arm failed.
    """
    times = runs[hit].astype("Float64").to_numpy(float, na_value=np.nan)
    reached = ~np.isnan(times)
    watched = runs[end].astype("Float64").to_numpy(float, na_value=np.nan)
    failed = runs["status"].eq("failed").fillna(False).to_numpy(bool)
    budget = _longest(runs[~failed], end, hit)
    budget = _longest(every, end, hit) if np.isnan(budget) else budget
    return np.where(reached, times, np.where(failed | np.isnan(watched), budget, watched)), reached


def _since(runs: pd.DataFrame, before: str, times: FloatArray, reached: BoolArray) -> FloatArray:
    """Return when each run that reached the target was last seen below it; the time itself for others."""
    if before not in runs:
        return times
    return np.where(reached, np.minimum(runs[before].to_numpy(float, na_value=0.0), times), times)


def _median_interval(
    times: FloatArray, since: FloatArray, reached: BoolArray, num_resamples: int
) -> tuple[float, float]:
    """Return a percentile interval of the median over resampled runs; inf where it was not reached.

    NaN below five runs. With times of a coefficient of variation of 0.35 and up to 20 % of runs that never reach the
    target a nominal 95 % covers 92-96 % at n = 5, 10 and 20 (`study/statistics/README.md`).
    The lower end is that of the evaluations before, the upper one that of the evaluations that saw the target.
    """
    if times.size < FEWEST_RUNS:
        return np.nan, np.nan
    order = np.lexsort((since, reached, times))
    times, since, reached = times[order], since[order], reached[order]
    picks = resamples().integers(times.size, size=(num_resamples, times.size))
    low, high = (
        np.sort(_medians(ends[picks], reached[picks]))[round(share * (num_resamples - 1))]
        for ends, share in ((since, (1 - LEVEL) / 2), (times, (1 + LEVEL) / 2))
    )
    return float(low), float(high)


def _medians(times: FloatArray, reached: BoolArray) -> FloatArray:
    """Return Kaplan-Meier medians of many samples at once: shape (samples, runs) -> (samples,); inf where not reached.

    The same as `median_time` of each (tested), which is too slow for resamples.
    """
    order = np.lexsort((~reached, times), axis=-1)  # at equal times those that reached go first
    ends, events = np.take_along_axis(times, order, axis=-1), np.take_along_axis(reached, order, axis=-1)
    survival = np.cumprod(1 - events / np.arange(times.shape[-1], 0, -1), axis=-1)
    below = survival <= 0.5 + ROUNDING
    first = np.take_along_axis(ends, below.argmax(axis=-1)[:, None], axis=-1)[:, 0]
    return np.where(below.any(axis=-1), first, np.inf)


def _finding(name: object, medians: pd.DataFrame, unit: str) -> str:
    parts = []
    for _, row in medians.sort_values("num_env_runners").iterrows():
        n, share = int(row["n"]), f"{row['n_reached']:.0f} of {row['n']:.0f} reached it"
        if not np.isfinite(row["value"]):
            parts.append(f"with {row['num_env_runners']} runners fewer than half reached it ({share})")
            continue
        known = not np.isnan(row["low"])
        interval = f"{_open(row['low'])} to {_open(row['high'])}" if known else f"n={n}, no interval"
        parts.append(f"{number(row['value'])} {unit} ({interval}; {share}) with {row['num_env_runners']}")
    return sentence(f"{name}: median {listed(parts)}")


def _open(value: float) -> str:
    return number(value) if np.isfinite(value) else "never"


def _paint(ax: Axes, frame: pd.DataFrame, y: tuple[str, str]) -> None:
    style.label_axes(ax, ("environment runners", "count"), y)
    logarithmic = style.runner_axis(ax, frame["num_env_runners"])
    finite = frame[["value", "low"]].replace([0.0, np.inf], np.nan)  # a logarithmic axis has no 0
    low, high = float(finite.min().min()), float(finite["value"].max())
    if high > 8 * low:
        style.logarithmic_y(ax, low, high)
    else:
        ax.set_ylim(0, high * 1.1)
        style.plain_numbers(ax.yaxis)
    top = ax.get_ylim()[1]
    series = list(dict.fromkeys(frame["series"]))
    for index, name in enumerate(series):
        here, colour = frame[frame["series"] == name], style.COLOURS[index]
        shift = (index - (len(series) - 1) / 2) * 0.03
        at = partial(_places, shift=shift, logarithmic=logarithmic)
        for kind, mark, face in (("reached", style.MARKS[index], colour), ("not reached", "^", "none")):
            some = here[here["kind"] == kind]
            ax.plot(
                at(some), some["value"], linestyle="none", marker=mark, markersize=3.5, alpha=0.45,
                markerfacecolor=face, markeredgecolor=colour,
            )  # fmt: skip
        medians = here[(here["kind"] == "median") & np.isfinite(here["value"])].sort_values("num_env_runners")
        capped = medians.assign(high=medians["high"].replace(np.inf, top))
        ax.errorbar(
            at(medians),
            medians["value"],
            yerr=whiskers(capped, "value"),
            color=colour,
            marker=style.MARKS[index],
            linestyle=style.DASHES[index],
            label=f"{name}: median",
        )
    if (frame["kind"] == "not reached").any():
        ax.plot(
            [], [], linestyle="none", marker="^", markerfacecolor="none", markeredgecolor=style.INK,
            label="ended without the target",
        )  # fmt: skip


def _places(rows: pd.DataFrame, *, shift: float, logarithmic: bool) -> FloatArray:
    return style.dodged(rows["num_env_runners"], shift, logarithmic)


def _paint_steps(ax: Axes, frame: pd.DataFrame) -> None:
    _paint(ax, frame, ("env steps to the target", "count"))


def _paint_times(ax: Axes, frame: pd.DataFrame) -> None:
    _paint(ax, frame, ("training time to the target", "s"))
