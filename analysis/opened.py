"""A study for Python and notebooks: frames, estimates, answer, tables, figures, report. Imports no engine.

The file is not called `study.py`: in a notebook beside it that would hide the package `study`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from analysis.estimates import Results, select
from analysis.estimates.settings import Setting
from analysis.load import StudyData
from analysis.quantity import unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from analysis.answers import Answer, Fact
    from analysis.figures import Figure
    from analysis.tables.table import Table

T = TypeVar("T")


class Views(Mapping[str, T]):
    """The tables or the figures of a study by name, each made when it is first asked for and kept."""

    def __init__(self, what: str, names: Iterable[str], make: Callable[[str], T]) -> None:
        """Take what they are, such as `table`, their names, and what makes one by its name."""
        self._what, self._names, self._make = what, tuple(names), cache(make)

    def __getitem__(self, name: str) -> T:
        """Return one by its name.

        Raises:
            AnalysisError: There is none of that name.
        """
        if name not in self._names:
            raise unknown(self._what, name, self._names)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"{self._what}s: {', '.join(self._names)}"

    _ipython_key_completions_ = __iter__


class Study:
    """One study, wherever it was read. What is asked for is computed once and kept.

    Every frame that it returns is the caller's own copy.

    Attributes:
        data: What was read.
        results: The results that estimates and tables rest on.
    """

    def __init__(self, data: StudyData) -> None:
        """Take what was read; nothing is computed yet."""
        self.data = data
        self.results = Results(data)

    @property
    def name(self) -> str:
        """Of the study."""
        return self.data.name

    @property
    def kind(self) -> str:
        """The kind: search, holdup or throughput."""
        return self.data.kind

    @property
    def engine(self) -> str:
        """Runner and learner that ran, such as `batched+fused`."""
        return self.results.engine

    @property
    def problems(self) -> tuple[str, ...]:
        """Plain sentences: what is missing or unfinished."""
        return self.data.problems

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial; columns and units: `analysis.load.RUN_COLUMNS`."""
        return self.data.runs.copy()

    @property
    def curves(self) -> pd.DataFrame:
        """One row per training iteration; columns and units: `analysis.load.ITERATION_COLUMNS`."""
        return self.data.iterations()

    @property
    def evaluations(self) -> pd.DataFrame:
        """One row per greedy evaluation; columns and units: `analysis.load.EVALUATION_COLUMNS`."""
        return self.data.evaluations()

    def estimates(self, quantity: str | Iterable[str] | None = None, **selection: Any) -> pd.DataFrame:
        """Return estimates, one row each, with interval, n, method and basis.

        Args:
            quantity: Name of a quantity, or several (`analysis.estimates.QUANTITIES`); None: all.
            selection: Column -> value or values, such as `num_env_runners=46`.

        Raises:
            AnalysisError: There is no such quantity or column.
        """
        return select(self.results.frame, quantity, **selection)

    def predict(self, num_env_runners: int) -> pd.DataFrame:
        """Return throughput and prices of a number of runners that nobody ran, as estimates.

        The iteration-time model of the workload that ran at most scales; at most twice its largest measured scale.

        Raises:
            AnalysisError: The runs allow no prediction there.
        """
        return self.results.predict(num_env_runners)

    @property
    def settings(self) -> list[Setting]:
        """The settings that runs are judged by, with their runs (`analysis.estimates.settings`)."""
        return self.results.settings

    @property
    def certificate(self) -> dict[str, Any] | str:
        """The certificate of a hold-up study as JSON values; else why there is none."""
        return self.results.certificate

    @cached_property
    def findings(self) -> "tuple[Fact, ...]":
        """What the study says, fact by fact; `answer` and the titles of figures print them."""
        return self.answer().findings

    def answer(self, price_per_cpu_hour: float | None = None) -> "Answer":
        """Return what the study says: a sentence, the setting, the prices, and what is not known.

        Args:
            price_per_cpu_hour: What a CPU costs in an hour, in any currency; None: no costs.
        """
        from analysis.answers import answer_of

        return answer_of(self, price_per_cpu_hour=price_per_cpu_hour)

    def table(self, name: str) -> "Table":
        """Return a table of the report by name, such as `strong_scaling`; it prints, and knows Markdown, LaTeX, HTML.

        Raises:
            AnalysisError: There is no table of that name.
        """
        from analysis.tables.catalogue import table_of

        return table_of(name, self.results)

    def plot(self, name: str, ax: "Axes | None" = None) -> "Figure":
        """Return a figure of the report by name, such as `efficiency`, and draw it on `ax` where that is given.

        Raises:
            AnalysisError: There is no figure of that name, or nothing to draw.
        """
        from analysis.figures import figure_of

        figure = figure_of(self, name)
        if ax is not None:
            figure.draw(ax)
        return figure

    @cached_property
    def figures(self) -> "Views[Figure]":
        """The figures of the report by name; one that cannot be drawn says why."""
        from analysis.figures import FIGURES, OF_TIMES, figure_of

        names = OF_TIMES if self.kind == "throughput" else FIGURES
        return Views("figure", names, lambda name: figure_of(self, name))

    @cached_property
    def tables(self) -> "Views[Table]":
        """The tables of the report by name; one without rows says why."""
        from analysis.tables.catalogue import TABLES, table_of

        return Views("table", TABLES, lambda name: table_of(name, self.results))

    def report(self, out: str | Path) -> Path:
        """Write the report, with every table and figure as files, and return its page.

        Raises:
            AnalysisError: The folder cannot be written.
        """
        from analysis.report import make_report, write

        return write(make_report(self), Path(out))[0]

    def __repr__(self) -> str:
        counts = self.data.runs["status"].value_counts()
        trials = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        lines = [
            f"Study {self.name!r}: {self.kind}, engine {self.engine or 'not known'}; trials: {trials}",
            "frames: .trials .curves .evaluations .estimates(); .answer(); "
            '.table("strong_scaling"); .plot("efficiency"); .report("folder")',
        ]
        return "\n".join([*lines, *(f"! {problem}" for problem in self.problems)])

    def _repr_html_(self) -> str:
        """Show the answer in a notebook, and how to go on."""
        return f"{self.answer().to_html()}<pre>{escape(repr(self))}</pre>"
