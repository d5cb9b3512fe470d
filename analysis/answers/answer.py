"""What a study says, as one value: facts, the setting to copy, a table; as text, Markdown and HTML. Pure.

The same words stand at the end of the terminal, at the top of the report, in MLflow's note and in a notebook.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from analysis.fingerprint import IN_WORDS, value_in_words
from analysis.fingerprint import in_words as called
from analysis.load import StudyData
from analysis.tables.table import Table, html_table, number, pipes, prose, text_table, wrapped
from study.statistics import Estimate
from study.text import count, listed, markdown, one_line

Role = Literal["answer", "support", "unknown", "limit"]
"""The first sentence; what supports it; what is not known; what numbers do not mean."""
CLOCKS: Mapping[str, str] = {
    "emulated": "a few processes did the work of all runners",
    "oversubscribed": "more processes than cores",
    "tainted": "a failure, a lost runner, or other programs on the CPUs",
}
"""Label of a clock that is not measured -> what it means."""
MOST_NAMED = 3
"""Values that a sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that a study says, or that it does not say.

    `quantity` is as in `analysis.estimates.QUANTITIES`, empty where it is about none; `command` is what to type to know
    more.
    """

    role: Role
    text: str
    quantity: str = ""
    command: str = ""


# --- words --------------------------------------------------------------------------------------------------------


def runners(scale: int) -> str:
    """Return `1 runner`, `46 runners`."""
    return count(scale, "runner")


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def values_in_words(setting: Mapping[str, Any], *, most: int = MOST_NAMED) -> str:
    """Return `batch 1,376 and learning rate 0.00242` of the most important values."""
    names = list(dict.fromkeys([*(name for name in IN_WORDS if name in setting), *setting]))
    parts = [f"{called(name)} {value_in_words(setting[name])}" for name in names[:most]]
    parts += [f"{count(len(names) - most, 'value')} more below"] if len(names) > most else []
    return listed(parts) if parts else ""


def to_copy(setting: Mapping[str, Any]) -> str:
    """Return `num_env_runners: 4  lr: 2.418e-3`, as a space file takes it: up to four digits."""
    return "  ".join(f"{name}: {_typed(float(value))}" for name, value in setting.items())


def _typed(value: float) -> str:
    if value.is_integer() and abs(value) < 1e9:
        return str(int(value))
    if abs(value) >= 0.01:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


# --- how far a study is, and what to type ---------------------------------------------------------------------------


def complete(data: StudyData) -> bool:
    """Return whether the study ended so, which may have cancelled trials, or every planned trial ended."""
    ended = data.runs["status"].isin(["finished", "failed"]).sum()
    return data.sheet.get("end") == "complete" or bool(ended >= (data.sheet.get("num_trials") or 0))


def progress(data: StudyData) -> str:
    """Return `12 of 40 trials have ended`, with the failed ones."""
    status = data.runs["status"]
    ended, failed = int(status.isin(["finished", "failed"]).sum()), int((status == "failed").sum())
    planned = int(ended if complete(data) else data.sheet.get("num_trials") or 0)
    of, lost = f" of {planned:,}" if planned else "", f" ({failed:,} failed)" if failed else ""
    return f"{ended:,}{of} trial{'' if (planned or ended) == 1 else 's'} {'has' if ended == 1 else 'have'} ended{lost}"


def go_on(data: StudyData) -> str:
    """Return the command that goes on with a study, or watches one that runs; empty where there is none."""
    if complete(data):
        return ""
    if data.is_running:
        return shlex.join(["python", "-m", "study", "status", data.source])
    if data.space_file is None:
        return ""
    place = ["--name", data.name]
    if "://" not in data.source:
        folder = Path(data.source)
        place += ["--out", str(folder.parent if folder.name not in ("", "..") else folder.absolute().parent)]
    return shlex.join(["python", "run_study.py", "--space", str(data.space_file), *place, "--resume"])


def run_again(data: StudyData, suffix: str, changes: Sequence[str]) -> str:
    """Return the command that runs a study's space with changes, as `--set` takes them; empty without a space."""
    if data.space_file is None:
        return ""
    words = ["python", "run_study.py", "--space", str(data.space_file), "--name", f"{data.name}_{suffix}"]
    return shlex.join([*words, *(word for each in changes for word in ("--set", each))])


def unfinished(data: StudyData) -> Iterable[Fact]:
    """Yield that the rest of a study is missing, with the command that goes on; nothing where it is complete."""
    if not complete(data):
        text = f"what the rest of the study says: {progress(data)}. An answer may change until its end."
        text += " It is running: wait, or watch it." if data.is_running else ""
        yield Fact(role="unknown", text=text, command=go_on(data))


def nothing_yet(data: StudyData, missing: str) -> tuple[Fact, ...]:
    """Return the facts of a study from which nothing can be said."""
    runs, said = data.runs, [Fact(role="answer", text=f"No answer yet: {progress(data)}.")]
    if len(runs) and bool((runs["status"] == "failed").all()):
        lines = (line for reason in runs["reason"].dropna() for line in str(reason).splitlines())
        all_ = f"All {len(runs):,} trials" if len(runs) > 1 else "The only trial"
        said = [
            Fact(role="answer", text=f"{all_} failed, so that nothing was learnt from this study."),
            Fact(role="support", text=f"First reason: {next(lines, 'no reason was recorded')}"),
        ]
    return (*said, Fact(role="unknown", text=missing, command=go_on(data)))


# --- clocks and costs -----------------------------------------------------------------------------------------------


def clocks(runs: pd.DataFrame) -> str:
    """Return what the clocks of the runs are worth: `38 of 39 runs have a measured clock; 1 was oversubscribed (…)`."""
    counts = runs["timing"].dropna().value_counts()
    measured = int(counts.get("measured", 0))
    others = [
        f"{n:,} {'was' if n == 1 else 'were'} {name} ({CLOCKS.get(str(name), name)})"
        for name, n in counts.items()
        if name != "measured"
    ]
    if measured or not others:
        return "; ".join([f"{measured:,} of {count(len(runs), 'run')} have a measured clock", *others])
    return f"no run has a measured clock: {listed(others)}. Returns hold, times do not"


def overlap(one: Estimate, two: Estimate) -> bool:
    """Return whether both intervals are known and have a point in common: what a sentence may call equal."""
    return one.has_interval and two.has_interval and one.low <= two.high and two.low <= one.high


def cpu_hours(data: StudyData) -> float:
    """Return the CPU-hours that the trials of a study reserved, attempts that were repeated included."""
    spent = float(data.runs["cpu_s_reserved"].dropna().sum())
    if data.ledger is not None:
        spent += sum(row.cpu_s_reserved_lost for row in data.ledger.rows.values())
    return spent / 3600


def cost_and_clocks(data: StudyData, certified: float | None = None) -> Fact:
    """Return the CPU-hours that the study took, by its certificate where that says so, and what its clocks are worth.

    What is counted is what trials reserved: of a node that was told to have more CPUs than cores that is too much.
    """
    spent, shared = certified or cpu_hours(data), (data.runs["timing"] == "oversubscribed").any() and not certified
    hours = f"The study {'reserved' if shared else 'took'} {number(spent)} CPU-hours"
    hours += ", partly of CPUs that several processes shared" if shared else ""
    return Fact(role="support", text=f"{'; '.join([hours] * bool(spent) + [clocks(data.runs)])}.")


# --- the answer -------------------------------------------------------------------------------------------------------

MOST_BESIDE = 5
"""Columns of a table that has room beside a figure."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """What a study says, for somebody who reads nothing else; the same shape for every kind of study.

    Attributes:
        findings: Every fact, in the order in which it is said.
        setting: The setting to copy, `num_env_runners: 4  train_batch_size: 1376`; empty where there is none.
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
        parts += (
            ["\n".join(wrapped(f"- {each}", width - 2).replace("\n", "\n  ") for each in self.facts)]
            if self.facts
            else []
        )
        parts += [f"{wrapped(each.title, width)}\n{text_table(each, width)}" for each in self.tables]
        for each in self.unknown:
            text = wrapped(f"Not known: {each.text}", width)
            parts.append(f"{text}\n  Find out: {each.command}" if each.command else text)
        return "\n\n".join(parts) + "\n"

    def to_markdown(self) -> str:
        """Return the answer as Markdown: a note in MLflow, a cell of a notebook."""
        parts = [f"**{markdown(one_line(self.sentence))}**"]
        parts += [f"`{self.setting}`"] if self.setting else []
        parts += ["\n".join(f"- {markdown(one_line(each))}" for each in self.facts)] if self.facts else []
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
