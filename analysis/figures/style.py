"""How every figure looks: colours, marks, axes, words of its legend. Imports Matplotlib's objects, never pyplot.

Colours are Okabe and Ito's without yellow, which white paper swallows, in an order whose neighbours also differ in
lightness; every series has a mark of its own besides, so that a grey print still tells them apart.
"""

import textwrap
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figures.words import number

INK = "#1a1a1a"
"""Text and axes."""
GREY = "#6b6b6b"
"""What is not the finding: ideal lines, limits, single runs. Contrast 5.3:1 on white."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#E69F00", "#56B4E9")
"""Source: Okabe and Ito, "Color universal design" (2008); purple is Tol's darker one, for contrast on white."""
MARKS = ("o", "s", "D", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
PHASES = ("#0072B2", "#56B4E9", "#B9DDF3", "#E69F00", "#009E73", "#6b6b6b", "#CC79A7", "#D55E00")
"""Of stacked bars, in the order of an iteration: sampling is blue; neighbours differ in lightness."""
MAX_SERIES = len(COLOURS)
"""Series that one picture can hold; the others are named in its caption and kept in its frame."""

NOT_MEASURED = MappingProxyType({"emulated": "#D55E00", "oversubscribed": "#AA4499", "tainted": "#6b6b6b"})
"""Colour of rows whose clock says nothing about scaling."""
NOT_MEASURED_MARKS = MappingProxyType({"emulated": "o", "oversubscribed": "s", "tainted": "X"})

WIDTH_IN = 4.3
"""Small on purpose: at the width of a phone the letters are still as large as they are here."""
HEIGHT_IN = 3.0
LONGEST_LABEL = 52
"""Characters of one line of a legend."""
_WRAPPED_LABEL = 24
"""Characters of one line of a category's label beside its axis."""
_TICK_GAP = 0.07
"""Share of an axis between two tick labels of two or three digits."""

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "errorbar.capsize": 2.5,
    "hatch.linewidth": 0.6,
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a dollar in a name is a dollar
    # Letters stay letters: they can be searched, read aloud and restyled; paths would be neither.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def label_axes(ax: Axes, x: tuple[str, str], y: tuple[str, str]) -> None:
    """Name both axes, each with its unit in brackets."""
    ax.set_xlabel(f"{x[0]} [{x[1]}]")
    ax.set_ylabel(f"{y[0]} [{y[1]}]")


def runner_axis(ax: Axes, scales: Iterable[float]) -> bool:
    """Give `ax` an axis of numbers of runners, with ticks at those that were run.

    Args:
        ax: Its x axis is set up; limits leave room for the outermost marks.
        scales: Numbers of runners, > 0.

    Returns:
        Whether the axis is logarithmic: it is where scales differ fourfold or more.
    """
    known = sorted({float(scale) for scale in scales})
    low, high = known[0], known[-1]
    logarithmic = high >= 4 * low
    if logarithmic:
        ax.set_xscale("log")
        margin = (high / low) ** 0.06
        limits = (low / margin, high * margin)
    else:
        margin = max(0.08 * (high - low), 0.5)
        limits = (low - margin, high + margin)
    ax.set_xlim(*limits)
    ax.xaxis.set_major_locator(FixedLocator(thinned(known, limits, logarithmic=logarithmic)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("environment runners [count]")
    return logarithmic


def thinned(values: Sequence[float], limits: tuple[float, float], *, logarithmic: bool) -> list[float]:
    """Return the values whose tick labels fit, the largest first: it is the one that a study is about."""

    def place(value: float) -> float:
        low, high, here = (np.log(each) if logarithmic else each for each in (*limits, value))
        return float((here - low) / (high - low))

    kept: list[float] = []
    for value in sorted(values, reverse=True):
        if not kept or place(kept[-1]) - place(value) >= _TICK_GAP:
            kept.append(value)
    return sorted(kept)


def logarithmic_y(ax: Axes, low: float, high: float) -> None:
    """Give `ax` a logarithmic y axis from below `low` to above `high` with plain numbers at round values."""
    ax.set_yscale("log")
    margin = (high / low) ** 0.07 if high > low else 1.3
    bottom, top = low / margin, high * margin
    ax.set_ylim(bottom, top)
    _round_ticks(ax.yaxis, bottom, top)


def logarithmic_x(ax: Axes, low: float, high: float) -> None:
    """Give `ax` a logarithmic x axis from below `low` to above `high` with plain numbers at round values."""
    ax.set_xscale("log")
    margin = (high / low) ** 0.05 if high > low else 1.3
    left, right = low / margin, high * margin
    ax.set_xlim(left, right)
    _round_ticks(ax.xaxis, left, right, most=6)


def _round_ticks(axis: Any, low: float, high: float, most: int = 8) -> None:
    """Set ticks at round numbers of the coarsest series that gives at least three, else of the finest."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), tuple(np.arange(10, 100) / 10)):
        series = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in series if low <= tick <= high]
        if len(ticks) >= 3:
            break
    stride = max(int(np.ceil(len(ticks) / most)), 1)
    axis.set_major_locator(FixedLocator(ticks[::stride]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def plain_numbers(axis: Any) -> None:
    """Write tick labels as tables write numbers: 20,000 and not 2e4."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, digits=5)))


def wrapped(label: str, width: int = LONGEST_LABEL) -> str:
    """Return a label in lines that fit; a word longer than a line is broken."""
    return "\n".join(textwrap.wrap(label, width)) or label


def category(label: str) -> str:
    """Return the label of a category beside its axis."""
    return wrapped(label, _WRAPPED_LABEL)


def legend_below(canvas: Canvas, ax: Axes) -> float:
    """Put the legend of `ax` below it, outside of the data, in as many columns as fit.

    Args:
        canvas: The figure; its width is kept.
        ax: Its axes; without labelled artists there is no legend.

    Returns:
        The height that the legend takes, in inches.
    """
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return 0.0
    labels = [wrapped(label) for label in labels]
    renderer = FigureCanvasAgg(canvas).get_renderer()  # type: ignore[no-untyped-call]
    width = canvas.get_figwidth() * canvas.dpi
    for columns in range(min(3, len(labels)), 0, -1):
        legend = canvas.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            handlelength=2.4,
            columnspacing=1.2,
            borderaxespad=0.2,
            labelspacing=0.35,
        )
        size = legend.get_window_extent(renderer)
        if size.width <= 0.98 * width or columns == 1:
            break
        legend.remove()
    return float(size.height / canvas.dpi)


def dodged(values: npt.ArrayLike, shift: float, logarithmic: bool) -> npt.NDArray[np.float64]:
    """Return places beside `values`, so that marks of several series at one scale are all seen.

    Args:
        values: Numbers of runners, shape (points,).
        shift: How far to the side: a share of the value on a logarithmic axis, of one runner on a linear one.
        logarithmic: What `runner_axis` returned.
    """
    places = np.asarray(values, dtype=np.float64)
    moved: npt.NDArray[np.float64] = places * np.exp2(1.5 * shift) if logarithmic else places + shift
    return moved
