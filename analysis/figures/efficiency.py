"""Efficiency against the number of runners, or why it is refused. Imports no engine, does no statistics."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.marks import NO_MEASURED_ROWS, ends, series, shown, whiskers
from analysis.figures.words import engine_of_workloads, sentence, with_interval

if TYPE_CHECKING:
    from analysis.scaling.results import Scaling

COLUMNS = ("kind", "series", "num_env_runners", "efficiency", "low", "high", "n", "reference")
PER_RUNNER, PER_CPU = "per runner, E_n", "per CPU, E_P"


def efficiency(scaling: "Scaling", *, key: str = "efficiency") -> Figure:
    """Return efficiency against n: per runner (E_n) and per CPU reserved (E_P), with intervals, and the line at 1.

    Args:
        scaling: Strong or weak scaling.
        key: Name of the figure.
    """
    weak = scaling.kind == "weak"
    title = f"{'Weak-scaling e' if weak else 'E'}fficiency against the number of runners"
    groups, left_out = shown(scaling)
    rows: list[tuple[object, ...]] = []
    for group in groups:
        for label, here in series(group):
            for kind, name in ((PER_RUNNER, "efficiency_n"), (PER_CPU, "efficiency_p")):
                for row in here:
                    if (value := getattr(row, name)) is not None:
                        place = (kind, label, row.num_env_runners)
                        rows.append((*place, value.value, *ends(value), value.n, group.reference))
    if not rows:
        return absent(key, title, _why(scaling))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame = frame[frame["series"].isin(list(dict.fromkeys(frame["series"]))[: style.MAX_SERIES])]
    formula = "T_iter(n_ref) / T_iter(n)" if weak else "E_n = S n_ref / n, E_P = S P_ref / P"
    caption = [
        f"{formula}; whiskers: 95 % intervals; without whiskers: no interval. Only rows with a measured clock and "
        "equal workload; 1 is ideal.",
        left_out,
        " ".join(dict.fromkeys(sentence(f"Refused: {refusal.reason}") for refusal in scaling.refusals[:2])),
        engine_of_workloads(group.fingerprint for group in groups),
    ]
    return Figure(
        key=key,
        title=title,
        alt=" ".join(sentence(_finding(str(name), here)) for name, here in frame.groupby("series", sort=False)),
        caption=" ".join(part for part in caption if part),
        frame=frame,
        painter=_paint,
    )


def _why(scaling: "Scaling") -> str:
    if scaling.refusals:
        first = scaling.refusals[0]
        fix = f" Fix: {first.command}" if first.command else ""
        return f"{'' if first.second is None else 'Refused. '}{sentence(first.reason)}{fix}"
    if not any("equal workload" in reason for reason in scaling.excluded):
        return NO_MEASURED_ROWS
    fixed = "steps per runner" if scaling.kind == "weak" else "workload"
    return (
        f"Efficiency needs measured runs at two numbers of runners or more with equal {fixed}. "
        "Fix: run a throughput study over several numbers of runners."
    )


def _finding(label: str, frame: pd.DataFrame) -> str:
    parts = []
    for kind, here in frame.groupby("kind", sort=False):
        last = here.sort_values("num_env_runners").iloc[-1]
        value = with_interval(last["efficiency"], last["low"], last["high"], int(last["n"]))
        parts.append(f"{value} {kind}")
    largest, reference = int(frame["num_env_runners"].max()), int(frame["reference"].iloc[0])
    return f"{label}: efficiency with {largest} runners, relative to {reference}, is {' and '.join(parts)}"


def _paint(ax: Axes, frame: pd.DataFrame) -> None:
    style.label_axes(ax, ("environment runners", "count"), ("efficiency", "1 = ideal"))
    logarithmic = style.runner_axis(ax, frame["num_env_runners"])
    ax.axhline(1.0, color=style.GREY, dashes=(1, 2), linewidth=1.2)
    names = list(dict.fromkeys(frame["series"]))
    for (name, kind), here in frame.groupby(["series", "kind"], sort=False):
        index, per_cpu = names.index(name), kind == PER_CPU
        ax.errorbar(
            # Beside each other, so that two error bars at one n are both seen.
            style.dodged(here["num_env_runners"], 0.025 if per_cpu else -0.025, logarithmic),
            here["efficiency"],
            yerr=whiskers(here, "efficiency"),
            color=style.COLOURS[index if len(names) > 1 or not per_cpu else 1],
            marker="s" if per_cpu else "o",
            linestyle="--" if per_cpu else "-",
            label=str(kind) if len(names) == 1 else f"{name}: {kind}",
        )
    highest = float(np.nanmax(frame[["efficiency", "high"]].to_numpy(float)))
    ax.set_ylim(min(0.0, float(np.nanmin(frame[["efficiency", "low"]].to_numpy(float)))), max(1.08, 1.06 * highest))
