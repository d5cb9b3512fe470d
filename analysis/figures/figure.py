"""The one value every figure is: what is drawn as a frame, the finding in words, and its pictures. No pyplot.

A figure is made by an info function (`throughput(...)` and its siblings), which computes and writes the words, and
drawn by a painter, which only draws the frame.
"""

import io
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.figures import style
from analysis.tables.table import with_command
from study.errors import AnalysisError

Form = Literal["inline", "svg", "png", "pdf"]
"""`inline`: SVG without its title, for a page that prints that beside it."""
Painter = Callable[[Sequence[Axes], pd.DataFrame], None]
"""Draws a frame on as many axes as the figure has panels."""
DPI = 200
"""Of the PNG: 920 pixels across, enough for a slide or a wiki."""
NOTEBOOK_WIDTH = "34rem"
"""A picture for the width of a phone, stretched to that of a screen, has letters larger than the text."""
TITLE_POINTS, TITLE_LINE_IN, TITLE_PAD_IN = 10, 0.2, 0.06
COLUMNS = 2
"""Panels side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture, with all that a reader who cannot see it needs.

    Attributes:
        key: Name of its files and anchor; lower case letters, digits and `_`.
        title: What it says: the finding, with its numbers; of a figure that is missing, its subject.
        alt: The finding in words, with the numbers of all that is drawn.
        caption: How to read it: marks, intervals, n, what is left out and why.
        frame: Every point that is drawn, one row each, and those for which there was no room.
        painter: Draws the frame; None where there is nothing to draw.
        missing: Why it cannot be drawn, as a sentence; empty where it can.
        command: What to run for a picture; empty where it is drawn, or where no command helps.
        panels: Small pictures that it consists of, >= 1.
        height_in: Height without the title, in inches.
    """

    key: str
    title: str
    alt: str
    caption: str
    frame: pd.DataFrame
    painter: Painter | None = None
    missing: str = ""
    command: str = ""
    panels: int = 1
    height_in: float = field(default=style.HEIGHT_IN)

    @property
    def drawn(self) -> bool:
        """Whether there is a picture."""
        return self.painter is not None

    def draw(self, ax: Axes, *, titled: bool = True) -> None:
        """Draw on axes of one's own, for a notebook or a page of several figures.

        Args:
            ax: Axes; a figure of several panels divides them.
            titled: Whether the title is written above.

        Raises:
            AnalysisError: There is nothing to draw.
        """
        if self.painter is None:
            raise AnalysisError(
                where=f"figure {self.key}",
                rule="must have something to draw",
                got=f"none: {with_command(self.missing, self.command)}",
                fix="Ask `drawn` before.",
            )
        if titled:
            ax.set_title(style.wrapped(self.title, style.LONGEST_TITLE), loc="left")
        # seaborn computes with NumPy's types, not with pandas' nullable ones.
        numbers = self.frame.select_dtypes(["Float64", "Int64", "boolean"])
        self.painter(_panels(ax, self.panels), self.frame.astype(dict.fromkeys(numbers, "float64")))

    def to_svg(self, *, titled: bool = True) -> str:
        """Return a picture as SVG text: the same bytes for the same frame, letters as letters, title and alt inside.

        Args:
            titled: Whether the title is seen too, for a place that does not print it beside the picture.

        Raises:
            AnalysisError: There is nothing to draw.
        """
        form: Form = "svg" if titled else "inline"
        return self.pictures([form])[form].decode()

    def to_png(self) -> bytes:
        """Return a picture as PNG, 920 pixels across.

        Raises:
            AnalysisError: There is nothing to draw.
        """
        return self.pictures(["png"])["png"]

    def to_pdf(self) -> bytes:
        """Return a picture as PDF, for LaTeX.

        Raises:
            AnalysisError: There is nothing to draw.
        """
        return self.pictures(["pdf"])["pdf"]

    def pictures(self, forms: Collection[Form]) -> dict[Form, bytes]:
        """Return the picture in several forms, drawn and laid out once.

        Raises:
            AnalysisError: There is nothing to draw.
        """
        about: dict[Form, dict[str, Any]] = {
            "png": {"Software": None, "Title": self.title, "Description": self.alt},
            "pdf": {"CreationDate": None, "Title": self.title, "Subject": self.alt},
        }
        found: dict[Form, bytes] = {}
        with rc_context(style.RC | {"svg.hashsalt": self.key}):
            canvas = Canvas(figsize=(style.WIDTH_IN, self.height_in), layout="constrained")
            self.draw(canvas.add_subplot(), titled=False)
            canvas.draw_without_rendering()
            canvas.set_layout_engine("none")  # every form has the places that were found here
            if {"inline", "svg"} & {*forms}:
                svg = self._svg(_saved(canvas, "svg", {"Date": None, "Creator": None}).decode())
                words: dict[Form, str] = {"inline": svg, "svg": _with_title(svg, self._title_lines)}
                found |= {form: words[form].encode() for form in words if form in forms}
            if {"png", "pdf"} & {*forms}:
                self._add_title(canvas)
                found |= {form: _saved(canvas, form, about[form]) for form in about if form in forms}
        return found

    def _svg(self, text: str) -> str:
        """Return what Matplotlib wrote with ids of its own, and with words for a screen reader."""
        return _accessible(_own_ids(text[text.index("<svg") :], self.key), self.key, self.title, self.alt)

    @property
    def _title_lines(self) -> list[str]:
        return style.wrapped(self.title, style.LONGEST_TITLE).split("\n")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Show the picture in a notebook with its finding as text, or the reason why there is none."""
        if not self.drawn:
            return {"text/plain": f"{self.title}: {with_command(self.missing, self.command)}"}
        picture = self.to_svg().replace("<svg ", f'<svg style="max-width: {NOTEBOOK_WIDTH}" ', 1)
        return {"image/svg+xml": picture, "text/plain": f"{self.title}. {self.alt} {self.caption}"}

    def _add_title(self, canvas: Canvas) -> None:
        """Write the title above a drawn picture: the canvas grows by its lines, and what is drawn keeps its size."""
        title = "\n".join(self._title_lines)
        height = self.height_in + _room(self._title_lines)
        canvas.set_figheight(height)
        for ax in canvas.axes:
            place = ax.get_position(original=True)
            share = self.height_in / height
            ax.set_position((place.x0, place.y0 * share, place.width, place.height * share))
        canvas.text(
            0.01, 1 - TITLE_PAD_IN / height, title, ha="left", va="top", fontsize=TITLE_POINTS, fontweight="bold"
        )


def _saved(canvas: Canvas, form: str, about: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format=form, dpi=DPI, metadata=about)
    return file.getvalue()


def _room(lines: Sequence[str]) -> float:
    """Return the height of a title, in inches."""
    return len(lines) * TITLE_LINE_IN + TITLE_PAD_IN


def _with_title(svg: str, lines: Sequence[str]) -> str:
    """Return an SVG of Matplotlib's with a title above it; its unit is a point."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found, "Matplotlib writes a viewBox"
    width, height, room = float(found[1]), float(found[2]), 72 * _room(lines)
    font = f"bold {TITLE_POINTS}px {', '.join(repr(each) for each in style.RC['font.sans-serif'])}"
    texts = "".join(
        f'<text x="{0.01 * width:g}" y="{TITLE_POINTS + 72 * (TITLE_PAD_IN + TITLE_LINE_IN * place) - room:g}" '
        f'style="font: {escape(font)}; fill: {style.INK}">{escape(line)}</text>\n'
        for place, line in enumerate(lines)
    )
    above = f'<rect y="{-room:g}" width="{width:g}" height="{room:g}" fill="white"/>\n{texts}'
    svg = svg.replace(found[0], f'viewBox="0 {-room:g} {width:g} {height + room:g}"', 1)
    return svg.replace("</svg>", f"{above}</svg>")


def _panels(ax: Axes, count: int) -> list[Axes]:
    """Return `ax`, or as many panels in its place, with a common y axis."""
    if count == 1:
        return [ax]
    spec, canvas = ax.get_subplotspec(), ax.get_figure()
    if spec is None or canvas is None:
        raise AnalysisError(
            where="draw",
            rule="a figure of several panels needs axes of a grid",
            got="axes at a place of their own",
            fix="Make them by `subplots` or `add_subplot`.",
        )
    ax.set_axis_off()
    grid = spec.subgridspec(-(-count // COLUMNS), COLUMNS)
    first = canvas.add_subplot(grid[0, 0])
    return [first, *(canvas.add_subplot(grid[place // COLUMNS, place % COLUMNS]) for place in range(1, count))]


def absent(key: str, title: str, why: str, command: str = "") -> Figure:
    """Return a figure that says why it cannot be drawn, and what to run for it."""
    return Figure(key=key, title=title, alt="", caption="", frame=pd.DataFrame(), missing=why, command=command)


def _own_ids(svg: str, key: str) -> str:
    """Return `svg` with ids that no other figure on the same page has."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{key}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", svg)


def _accessible(svg: str, key: str, title: str, alt: str) -> str:
    """Return `svg` with a title and a description that a screen reader speaks; it scales to the width it is given."""
    names = f'role="img" aria-labelledby="{key}-title {key}-desc"'
    words = f'<title id="{key}-title">{escape(title)}</title>\n <desc id="{key}-desc">{escape(alt)}</desc>'
    head, body = svg.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    # Matplotlib's style sheet says `*`, which inside a page would mean the page.
    body = body.replace('<style type="text/css">*{', f'<style type="text/css">#{key}-figure *{{', 1)
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    return f'{head} id="{key}-figure" {names}>\n {words}{body}'.rstrip() + "\n"
