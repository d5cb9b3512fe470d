"""Where the time of one iteration goes, stacked per number of runners. Imports pandas, Matplotlib's objects."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.figure import Figure, absent
from analysis.figures.marks import NO_MEASURED_ROWS, ends, whiskers
from analysis.figures.words import counted, engine_of_workloads, listed, number, sentence, with_interval

if TYPE_CHECKING:
    from analysis.scaling import PhaseRow, Phases

COLUMNS = ("series", "num_env_runners", "train_batch_size", "phase", "seconds", "low", "high", "n")
WORDS = {
    "runners": "runners sample (mean)",
    "imbalance": "wait for the slowest",
    "transfer": "samples arrive",
    "learning": "update",
    "sync": "weights to runners",
    "rest": "rest",
}
"""Phase -> what the legend calls it."""
TOTAL = "iteration"
MAX_BARS = 12


def phases(result: "Phases") -> Figure:
    """Return stacked bars of the mean seconds per iteration of each phase, one bar per cell, measured rows alone.

    Args:
        result: Phases of every cell; the largest workload is drawn, up to 12 cells.
    """
    key, title = "phases", "Where the time of one iteration goes"
    if not result.rows:
        return absent(key, title, NO_MEASURED_ROWS)
    by_label: dict[str, list[PhaseRow]] = {}
    for row in result.rows:
        by_label.setdefault(row.label, []).append(row)
    order = sorted(by_label.values(), key=lambda cells: -len(cells))
    chosen = order[0] if len(order[0]) > 1 else [cells[0] for cells in order]
    chosen = sorted(chosen, key=lambda row: (row.num_env_runners, row.train_batch_size or 0))
    spread = np.unique(np.linspace(0, len(chosen) - 1, min(len(chosen), MAX_BARS)).round().astype(int))
    chosen = [chosen[index] for index in spread]
    rows: list[tuple[object, ...]] = []
    for cell in chosen:
        for phase, estimate in cell.seconds.items():
            value = (cell.label, cell.num_env_runners, cell.train_batch_size, phase, estimate.value)
            rows.append((*value, *ends(estimate), estimate.n))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    rest = len(result.rows) - len(chosen)
    one = len({cell.label for cell in chosen}) == 1
    caption = [
        "Mean seconds per training iteration after warm-up, measured rows alone; whiskers: 95 % interval of the whole "
        "iteration over runs. The update holds the connectors, which the records do not time apart.",
        f"Workload: {chosen[0].label}." if one and chosen[0].label else "",
        f"{counted(rest, 'more cell')} in the table." if rest > 0 else "",
        engine_of_workloads(cell.fingerprint for cell in chosen),
    ]
    return Figure(
        key=key,
        title=title,
        alt=" ".join(_finding(cell) for cell in ([chosen[0], chosen[-1]] if len(chosen) > 1 else chosen)),
        caption=" ".join(part for part in caption if part),
        frame=frame,
        painter=_paint,
    )


def _finding(cell: "PhaseRow") -> str:
    total = cell.seconds.get(TOTAL)
    names = [name for name in cell.seconds if name != TOTAL]
    largest = sorted(names, key=lambda name: -cell.seconds[name].value)[:2]
    shares = [
        f"{number(100 * cell.shares[name].value, 2)} % {WORDS.get(name, name)}"
        for name in largest
        if name in cell.shares
    ]
    head = counted(cell.num_env_runners, "runner")
    if total is not None:
        head += f": one iteration takes {with_interval(total.value, total.low, total.high, total.n, unit='s')}"
    return sentence(f"{head}, of which {listed(shares)}" if shares else head)


def _paint(ax: Axes, frame: pd.DataFrame) -> None:
    cells = list(dict.fromkeys(zip(frame["num_env_runners"], frame["train_batch_size"], strict=True)))
    places = np.arange(len(cells))
    bottoms = np.zeros(len(cells))
    batches = frame["train_batch_size"].nunique() > 1
    index = 0
    for phase, here in frame.groupby("phase", sort=False):
        if phase == TOTAL:
            continue
        heights = here["seconds"].to_numpy(float)
        ax.bar(
            places,
            heights,
            bottom=bottoms,
            width=0.72,
            color=style.PHASES[index % len(style.PHASES)],
            edgecolor="white",
            linewidth=0.6,
            label=WORDS.get(str(phase), str(phase)),
        )
        bottoms += heights
        index += 1
    total = frame[frame["phase"] == TOTAL]
    if len(total) == len(cells):
        ax.errorbar(places, total["seconds"], yerr=whiskers(total, "seconds"), color=style.INK, linestyle="none")
    names = [f"{runners}\n{batch / 1000:g}k" if batches else f"{runners}" for runners, batch in cells]
    ax.set_xticks(places, names)
    ax.grid(visible=False, axis="x")
    style.plain_numbers(ax.yaxis)
    what = "environment runners [count] and batch [thousand env steps]" if batches else "environment runners [count]"
    ax.set_xlabel(what)
    ax.set_ylabel("time of one iteration [s]")
