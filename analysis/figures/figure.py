"""The one value that every figure is: its frame, its words, and what draws it; as SVG, PNG and PDF. No pyplot.

A page prints title and caption beside the picture.
"""

import io
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.transforms import ScaledTranslation

from analysis.tables.table import with_command
from study.errors import AnalysisError

Form = Literal["svg", "png", "pdf"]
INK, GREY = "#1a1a1a", "#6b6b6b"
"""Text and axes; what is not the finding. Contrast of the grey 5.3:1 on white."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#E69F00", "#56B4E9")
"""Source: Okabe and Ito, "Color universal design" (2008); purple is Tol's darker one, for contrast on white."""
MARKS = ("o", "s", "D", "P", "X", "^")
"""One for each colour, so that a grey print still tells series apart."""
MAX_SERIES = len(COLOURS)
WIDTH_IN, HEIGHT_IN = 4.6, 3.0
"""Small on purpose: at the width of a phone the letters are still as large as they are here."""
LONGEST_TITLE, LONGEST_LABEL = 44, 26
"""Characters of one line."""
BELOW_IN = -0.48
"""Where a legend begins, in inches above the axis."""
DPI = 200
RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.edgecolor": INK,
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
    "svg.fonttype": "none",  # letters stay letters: they can be searched and read aloud
    "pdf.fonttype": 42,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture, with all that a reader who cannot see it needs.

    Attributes:
        key: Name of its files and anchor; lower case letters, digits and `_`.
        title: The finding that it shows, as the answer says it; else its subject.
        alt: The numbers of all that is drawn, in words.
        caption: How to read it: marks, intervals, what is left out and why.
        frame: Every point that is drawn, one row each.
        paint: Draws the frame on axes; None where there is nothing to draw.
        missing, command: Why it cannot be drawn, and what to run for a picture; empty where it is drawn.
    """

    key: str
    title: str
    alt: str = ""
    caption: str = ""
    frame: pd.DataFrame
    paint: Callable[[Axes, pd.DataFrame], None] | None = None
    missing: str = ""
    command: str = ""
    height_in: float = HEIGHT_IN

    @property
    def drawn(self) -> bool:
        """Whether there is a picture."""
        return self.paint is not None

    def draw(self, ax: Axes, *, titled: bool = True) -> None:
        """Draw on axes of one's own; their figure gets a layout that makes room for all, unless it has one.

        Raises:
            AnalysisError: There is nothing to draw.
        """
        if self.paint is None:
            got = f"none: {with_command(self.missing, self.command)}"
            where, rule = f"figure {self.key}", "must have something to draw"
            raise AnalysisError(where=where, rule=rule, got=got, fix="Ask `drawn` before.")
        canvas: Any = ax.get_figure(root=True)
        if titled:
            ax.set_title(wrapped(self.title, LONGEST_TITLE), loc="left", fontsize=9.5, fontweight="bold")
        if canvas.get_layout_engine() is None:
            canvas.set_layout_engine("constrained")
        # Matplotlib draws NumPy's types, not pandas' nullable ones.
        numbers = self.frame.select_dtypes(["Float64", "Int64", "boolean"])
        self.paint(ax, self.frame.astype(dict.fromkeys(numbers, "float64")))

    def pictures(self, forms: Collection[Form]) -> dict[Form, bytes]:
        """Return the picture in several forms, drawn once: the same bytes for the same frame, a PNG 920 pixels across.

        Its title is in its metadata: a page prints it beside the picture.

        Raises:
            AnalysisError: There is nothing to draw.
        """
        titles = {"Title": self.title, "Description": self.alt}
        about: dict[Form, dict[str, Any]] = {
            "svg": {"Date": None, "Creator": None, **titles},
            "png": {"Software": None, **titles},
            "pdf": {"CreationDate": None, "Title": self.title, "Subject": self.alt},
        }
        found: dict[Form, bytes] = {}
        with rc_context(RC | {"svg.hashsalt": self.key}):
            canvas = Canvas(figsize=(WIDTH_IN, self.height_in), layout="constrained")
            self.draw(canvas.add_subplot(), titled=False)
            for form in forms:
                canvas.savefig(file := io.BytesIO(), format=form, dpi=DPI, metadata=about[form])
                found[form] = file.getvalue()
        return found

    def __repr__(self) -> str:
        said = f"{self.title} {self.alt} {self.caption}"
        return said if self.drawn else f"{self.title}: {with_command(self.missing, self.command)}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        shown = {"image/svg+xml": self.pictures(["svg"])["svg"].decode()} if self.drawn else {}
        return {"text/plain": repr(self), **shown}


def absent(key: str, title: str, why: str, command: str = "") -> Figure:
    """Return a figure that says why it cannot be drawn, and what to run for it."""
    return Figure(key=key, title=title, frame=pd.DataFrame(), missing=why, command=command)


def wrapped(text: str, width: int = LONGEST_LABEL) -> str:
    """Return a text in lines of at most so many characters; a number stays with its unit."""
    kept = text.replace(" %", "\N{NO-BREAK SPACE}%").replace(" runner", "\N{NO-BREAK SPACE}runner")
    return "\n".join(textwrap.wrap(kept, width)).replace("\N{NO-BREAK SPACE}", " ")


def sentences(texts: Iterable[str]) -> str:
    """Return texts in a line, each with a capital first letter and a full stop at its end; empty ones are left out."""
    said = (" ".join(text.split()) for text in texts)
    return " ".join(each[0].upper() + each[1:] + ("" if each[-1] in ".!?" else ".") for each in said if each)


def lines_of(ax: Axes, frame: pd.DataFrame, x: str, draw: Callable[[pd.DataFrame, Mapping[str, Any]], object]) -> None:
    """Draw the `value` of each `series` as a line with marks, over what `draw` adds; a legend below names several.

    A line is in the order of its rows. `draw` adds what belongs to it, such as its interval, given its rows and colour.
    """
    import seaborn  # with pyplot, which who reads a table alone does not need

    names = list(dict.fromkeys(frame["series"]))
    sequential = 1 < len(names) == frame["num_env_runners"].nunique()
    colours = seaborn.color_palette("viridis_r", len(names)) if sequential else COLOURS
    palette = {name: colours[place % len(colours)] for place, name in enumerate(names)}
    for name in names:
        draw(frame[frame["series"] == name], {"color": palette[name]})
    seaborn.lineplot(
        frame,
        x=x,
        y="value",
        hue="series",
        palette=palette,
        style="series",
        style_order=names,
        markers={name: MARKS[place % len(MARKS)] for place, name in enumerate(names)},
        dashes=False,
        markeredgewidth=0,
        estimator=None,
        sort=False,
        legend="full" if len(names) > 1 else False,
        zorder=3,
        ax=ax,
    )
    if len(names) > 1:
        legend(ax, names)


def legend(ax: Axes, names: Collection[str]) -> None:
    """Put a legend below the label of the x axis, in two columns unless names are long."""
    columns, labels = columns_of(names)
    canvas: Any = ax.get_figure(root=True)
    below = ax.transAxes + ScaledTranslation(0, BELOW_IN, canvas.dpi_scale_trans)
    handles: list[Any] = ax.get_legend_handles_labels()[0]
    if (drawn := ax.get_legend()) is not None:  # seaborn's own, inside the axes
        handles = list(drawn.legend_handles)
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.4, 0), "bbox_transform": below}
    ax.legend(handles, labels, frameon=False, ncols=columns, borderaxespad=0, **place)


def columns_of(names: Collection[str]) -> tuple[int, list[str]]:
    """Return the columns of a legend below the axes, and its labels: long names have the whole width."""
    several = max(map(len, names)) <= LONGEST_LABEL - 2
    return (2, [*names]) if several else (1, [wrapped(name, LONGEST_TITLE) for name in names])


def legend_lines(names: Collection[str]) -> int:
    """Return the lines of text of a legend below the axes."""
    columns, labels = columns_of(names)
    return 0 if len(names) < 2 else -(-sum(label.count("\n") + 1 for label in labels) // columns)
