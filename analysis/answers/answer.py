"""What a study says, as one value: a sentence, what to copy, what is not known; as text, Markdown and HTML. Pure.

The same words stand at the end of the terminal, at the top of the report, in MLflow's note and in a notebook.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from analysis.answers.words import capital
from analysis.tables.table import Table
from analysis.tables.writers import html_table, pipes, text_table, wrapped
from study.harmless import markdown, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One of the numbers that stand large beside the sentence."""

    label: str
    """What it is: "return"."""
    text: str
    """The number as people read it, with its unit."""
    note: str = ""
    """What must be known with it: "20 runs", "95 % interval -73 to -70"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Something that the study does not say, and the one command that would find out."""

    text: str
    command: str = ""
    """What to type; empty where no command of this project helps."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """What a study says, for somebody who reads nothing else.

    Attributes:
        kind: Of the study: `search`, `throughput` or `holdup`.
        sentence: The answer, such that it could be said aloud; at most one interval.
        setting: The setting to copy, `num_env_runners: 4  train_batch_size: 1376`; empty where there is none.
        setting_is: What this setting is, `the best setting`.
        facts: At most four sentences that support it.
        numbers: At most three numbers, formatted.
        rows: The table under the sentence: the best of each scale, the price list, the arms; None where nothing ended.
        prices: The price list: what each number of runners costs; None where no clock was measured.
        unknown: What the study does not say.
        figure: Key of the figure to show beside it; empty where none helps.
    """

    kind: str
    sentence: str
    setting: str = ""
    setting_is: str = "the best setting"
    facts: tuple[str, ...] = ()
    numbers: tuple[Number, ...] = ()
    rows: Table | None = None
    prices: Table | None = None
    unknown: tuple[Unknown, ...] = ()
    figure: str = ""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The table under the sentence, and the price list where that is another one."""
        several = (self.rows, None if self.prices is self.rows else self.prices)
        return tuple(each for each in several if each is not None and not each.empty)

    def to_text(self, width: int = 80) -> str:
        """Return the answer for a terminal, every line at most `width` letters long except commands and settings."""
        parts = [wrapped(self.sentence, width)]
        parts += [f"  {self.setting}"] if self.setting else []
        parts += [wrapped(" ".join(self.facts), width)] if self.facts else []
        parts += [f"{wrapped(each.title, width)}\n{text_table(each, width)}" for each in self.tables]
        for each in self.unknown:
            text = wrapped(f"Not known: {each.text}", width)
            parts.append(f"{text}\n  Find out: {each.command}" if each.command else text)
        return "\n\n".join(parts) + "\n"

    def to_markdown(self) -> str:
        """Return the answer as Markdown: a note in MLflow, a cell of a notebook, the head of report.md."""
        return "\n\n".join(self._markdown()) + "\n"

    def to_html(self, figure: str = "") -> str:
        """Return the answer as a `section` of class `answer`.

        Args:
            figure: HTML of the figure to stand beside the sentence.
        """
        return "\n".join(self._html(figure)) + "\n"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def __repr__(self) -> str:
        return self.to_text()

    def _markdown(self) -> Iterator[str]:
        yield f"**{markdown(one_line(self.sentence))}**"
        if self.setting:
            yield f"`{self.setting}`"
        if self.facts:
            yield markdown(one_line(" ".join(self.facts)))
        for table in self.tables:
            body = table.body()
            yield markdown(f"{table.title}. {body.above}".strip())
            yield markdown(pipes(body))
        for each in self.unknown:
            command = f" Find out: `{each.command}`" if each.command else ""
            yield f"**Not known:** {markdown(one_line(each.text))}{command}"

    def _html(self, figure: str) -> Iterator[str]:
        yield '<section class="answer" id="answer">'
        yield f'<p class="sentence">{_text(self.sentence)}</p>'
        yield '<div class="beside">\n<div class="said">'
        if self.setting:
            pairs = "  ".join(f"<span>{escape(pair)}</span>" for pair in self.setting.split("  "))
            yield f'<p class="setting-is">{_text(capital(self.setting_is))}</p>'
            yield f'<pre class="setting"><code>{pairs}</code></pre>'
        if self.numbers:
            yield '<dl class="numbers">'
            for each in self.numbers:
                note = f'<span class="note">{_text(each.note)}</span>' if each.note else ""
                yield f"<div><dt>{_text(each.label)}</dt><dd><strong>{_text(each.text)}</strong> {note}</dd></div>"
            yield "</dl>"
        if self.facts:
            yield f'<ul class="facts">{"".join(f"<li>{_text(each)}</li>" for each in self.facts)}</ul>'
        prices_first = self.rows is self.prices  # what they are asked for: they stand on the first screen
        if not prices_first:
            yield from self._unknown_html()
        yield f"</div>\n{figure}\n</div>" if figure else "</div>\n</div>"
        yield from (html_table(table, table.title) for table in self.tables)
        if prices_first:
            yield from self._unknown_html()
        yield "</section>"

    def _unknown_html(self) -> Iterator[str]:
        if self.unknown:
            yield '<div class="unknown">\n<h2>What is not known, and what to run next</h2>\n<ul>'
            for each in self.unknown:
                command = escape(each.command).replace(" --", "</span> <span>--")
                line = f' Find out:<pre class="command"><code><span>{command}</span></code></pre>'
                yield f"<li>{_text(capital(each.text))}{line if each.command else ''}</li>"
            yield "</ul>\n</div>"


def _text(text: str) -> str:
    """Return a text for HTML, a number and its % on one line."""
    return escape(text).replace(" %", "&nbsp;%")
