"""How every figure looks: colours, marks, axes, labels at the ends of lines. Imports Matplotlib's objects, no pyplot.

Colours are Okabe and Ito's without yellow, which white paper swallows, in an order whose neighbours also differ in
lightness; every series has a mark of its own besides, so that a grey print still tells them apart.
"""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
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
PHASES = ("#0072B2", "#56B4E9", "#B9DDF3", "#E69F00", "#009E73", "#6b6b6b")
"""Of stacked bars, in the order of an iteration: sampling is blue; neighbours differ in lightness."""
MAX_SERIES = len(COLOURS)
"""Series that one picture can hold; the others are named in its caption and kept in its frame."""

WIDTH_IN = 4.6
"""Small on purpose: at the width of a phone the letters are still as large as they are here."""
HEIGHT_IN = 3.0
LONGEST_TITLE = 50
"""Characters of one line of a title."""
_LABEL = 20
"""Characters of one line of a label at the end of a line, or beside an axis."""
SHRUNK = 0.85
"""What a layout leaves of the height that axes have before it."""
_TICK_GAP = 0.07
"""Share of an axis between two tick labels of two or three digits."""

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
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
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a dollar in a name is a dollar
    # Letters stay letters: they can be searched, read aloud and restyled; paths would be neither.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def runner_axis(ax: Axes, scales: Iterable[float]) -> None:
    """Give `ax` an axis of numbers of runners, logarithmic where they differ fourfold, with ticks at those that ran."""
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


def value_axis(
    ax: Axes, which: str, values: npt.ArrayLike, *, finest: float | None = None, factor: float = 5.0
) -> tuple[float, float]:
    """Fit the axis `which` ("x" or "y") to the data, with plain numbers; logarithmic where they differ by `factor`.

    Args:
        ax: The axes.
        which: The axis.
        values: All that must be seen; what is not finite is left out.
        finest: Smallest range, down from the largest value: small differences are not made to look large; None: a
            tenth of the largest value.
        factor: Ratio of the largest to the smallest value above which the axis is logarithmic.

    Returns:
        The limits of the axis.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    low, high = float(known.min()), float(known.max())
    axis, limit = (ax.xaxis, ax.set_xlim) if which == "x" else (ax.yaxis, ax.set_ylim)
    if low > 0 and high > factor * low:
        (ax.set_xscale if which == "x" else ax.set_yscale)("log")
        margin = (high / low) ** 0.06
        low, high = limit(low / margin, high * margin)
        _round_ticks(axis, low, high, most=4 if which == "x" else 6)
        return low, high
    span = max(high - low, 0.1 * abs(high) if finest is None else finest) or 1.0
    low, high = limit(high - 1.06 * span, high + 0.06 * span)
    plain_numbers(axis)
    ax.locator_params(axis=which, nbins=5 if which == "x" else 7)  # type: ignore[arg-type]
    return low, high


def _round_ticks(axis: Any, low: float, high: float, most: int) -> None:
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


def wrapped(text: str, width: int = _LABEL) -> str:
    """Return a text in lines that fit; a word longer than a line is broken, a number and its % are not."""
    kept = text.replace(" %", "\N{NO-BREAK SPACE}%")
    return "\n".join(textwrap.wrap(kept, width)).replace("\N{NO-BREAK SPACE}", " ") or text


def end_labels(ax: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Write the name of each line beside the axes, joined to the end of the line, so that no legend is needed.

    Args:
        ax: Its limits and scales are final.
        ends: (name, x, y, colour) of the last point of each line, in data coordinates.
    """
    height = SHRUNK * ax.get_position().height * float(ax.figure.get_figheight())  # type: ignore[union-attr]
    names = [wrapped(name) for name, *_ in ends]
    sizes = [(name.count("\n") + 1.3) * 8.5 * 1.2 / 72 / height for name in names]
    to_axes = ax.transData + ax.transAxes.inverted()
    wanted = [float(np.clip(to_axes.transform((x, y))[1], 0.0, 1.0)) for _, x, y, _ in ends]
    for place, centre in spread(wanted, sizes).items():
        _, x, y, colour = ends[place]
        ax.annotate(
            names[place],
            xy=(x, y),
            xytext=(1.05, centre),
            textcoords="axes fraction",
            fontsize=8.5,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 1.0,
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )


def spread(wanted: Sequence[float], sizes: Sequence[float]) -> dict[int, float]:
    """Return label -> place, as near to the wanted places as labels of these sizes allow, in the same order.

    Labels that would overlap become a block around the mean of their wanted places (as in isotonic regression).
    """
    blocks: list[tuple[list[int], float]] = []  # (labels from below, middle of the block)
    for label in sorted(range(len(wanted)), key=lambda each: wanted[each]):
        block, middle = [label], wanted[label]
        while blocks:
            below, centre = blocks[-1]
            tops = centre + sum(sizes[each] for each in below) / 2
            if tops <= middle - sum(sizes[each] for each in block) / 2:
                break
            blocks.pop()
            middle = (centre * len(below) + middle * len(block)) / (len(below) + len(block))
            block = below + block
        blocks.append((block, middle))
    places: dict[int, float] = {}
    for block, middle in blocks:
        at = middle - sum(sizes[each] for each in block) / 2
        for label in block:
            places[label] = at + sizes[label] / 2
            at += sizes[label]
    return places


def evenly(values: Sequence[Any], most: int = MAX_SERIES) -> list[Any]:
    """Return at most so many of the values: both ends and what lies evenly between."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(index * step)] for index in range(most)]
