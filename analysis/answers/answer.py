"""What a study says, as one value: facts, the setting to copy, a table; as text, Markdown and HTML. Pure.

The same words stand at the end of the terminal, at the top of the report, in MLflow's note and in a notebook.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from analysis.answers.facts import Fact, Role, capital
from analysis.tables.table import Table
from analysis.tables.writers import html_table, pipes, prose, text_table, wrapped
from study.harmless import markdown, one_line

MOST_BESIDE = 5
"""Columns of a table that has room beside a figure."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """What a study says, for somebody who reads nothing else; the same shape for every kind of study.

    Attributes:
        kind: Of the study: `search`, `throughput` or `holdup`.
        findings: Every fact, in the order in which it is said.
        setting: The setting to copy, `num_env_runners: 4  train_batch_size: 1376`; empty where there is none.
        setting_is: What this setting is, `the best setting`.
        rows: The table under the sentence: the best of each scale, the price list, the arms; None where nothing ended.
        prices: The price list: what each number of runners costs; None where no clock was measured.
        figure: Key of the figure to show beside it; empty where none helps.
    """

    kind: str
    findings: tuple[Fact, ...]
    setting: str = ""
    setting_is: str = "the best setting"
    rows: Table | None = None
    prices: Table | None = None
    figure: str = ""

    @property
    def sentence(self) -> str:
        """The answer, such that it could be said aloud; at most one interval."""
        return " ".join(each.text for each in self._of("answer"))

    @property
    def facts(self) -> tuple[str, ...]:
        """The sentences that support it."""
        return tuple(each.text for each in self._of("support"))

    @property
    def unknown(self) -> tuple[Fact, ...]:
        """What the study does not say, with the commands that would find out."""
        return self._of("unknown")

    @property
    def limits(self) -> tuple[str, ...]:
        """What its numbers do not mean."""
        return tuple(each.text for each in self._of("limit"))

    @property
    def tables(self) -> tuple[Table, ...]:
        """The table under the sentence, and the price list where that is another one."""
        several = (self.rows, None if self.prices is self.rows else self.prices)
        return tuple(each for each in several if each is not None and not each.empty)

    def _of(self, role: Role) -> tuple[Fact, ...]:
        return tuple(each for each in self.findings if each.role == role)

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
        """Return the answer as Markdown: a note in MLflow, a cell of a notebook."""
        parts = [f"**{markdown(one_line(self.sentence))}**"]
        parts += [f"`{self.setting}`"] if self.setting else []
        parts += [markdown(one_line(" ".join(self.facts)))] if self.facts else []
        for table in self.tables:
            parts += [markdown(f"{table.title}. {table.shown().above}".strip()), markdown(pipes(table))]
        for each in self.unknown:
            command = f" Find out: `{each.command}`" if each.command else ""
            parts.append(f"**Not known:** {markdown(one_line(each.text))}{command}")
        return "\n\n".join(parts) + "\n"

    def to_html(self, figure: str = "") -> str:
        """Return the answer as a `section` of class `answer`.

        Args:
            figure: HTML of the figure to stand beside the sentence.
        """
        return "\n".join(self._html(figure)) + "\n"

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return self.to_text()

    def _html(self, figure: str) -> Iterator[str]:
        yield f'<section class="answer" id="answer">\n<p class="sentence">{prose(self.sentence)}</p>'
        yield '<div class="beside">\n<div class="said">'
        if self.setting:
            pairs = "  ".join(f"<span>{escape(pair)}</span>" for pair in self.setting.split("  "))
            yield f'<p class="setting-is">{prose(capital(self.setting_is))}</p>'
            yield f'<pre class="setting"><code>{pairs}</code></pre>'
        if self.facts:
            yield f'<ul class="facts">{"".join(f"<li>{prose(each)}</li>" for each in self.facts)}</ul>'
        beside = [len(table.shown().columns) <= MOST_BESIDE for table in self.tables]
        tables = ["\n".join(html_table(table, stacked=True)) for table in self.tables]
        yield from (html for html, has_room in zip(tables, beside, strict=True) if has_room)
        yield f"</div>\n{figure}\n</div>"
        yield from (html for html, has_room in zip(tables, beside, strict=True) if not has_room)
        if self.unknown:
            yield '<div class="unknown">\n<h2>What is not known, and what to run next</h2>\n<ul>'
            for each in self.unknown:
                command = escape(each.command).replace(" --", "</span> <span>--")
                line = f' Find out:<pre class="command"><code><span>{command}</span></code></pre>'
                yield f"<li>{prose(capital(each.text))}{line if each.command else ''}</li>"
            yield "</ul>\n</div>"
        yield "</section>"
