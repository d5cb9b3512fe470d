"""A study for Python and notebooks: frames, estimates, answer, tables, figures, report.

The file is not called `study.py`: in a notebook beside it that would hide the package `study`.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.estimates import frame_of, select
from analysis.estimates.settings import Setting, certificate_of, settings_of
from analysis.estimates.targets import targets_of, watched
from analysis.load import StudyData
from analysis.models.iteration_time import model_rows
from analysis.quantity import Part, rows_of
from analysis.scaling.blocks import Selection
from analysis.scaling.blocks import select as selection_of
from analysis.scaling.clock import cells, phases, prices_of, scaling
from study.engine import engines_in_words
from study.errors import AnalysisError
from study.text import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from analysis.answers import Answer, Fact
    from analysis.figures import Figure
    from analysis.tables.table import Table


class Study:
    """One study, wherever it was read: `data`, with the name, the kind and the problems.

    What is asked for is computed once and kept; every frame that it returns is the caller's own copy.
    """

    def __init__(self, data: StudyData) -> None:
        """Take what was read; nothing is computed yet."""
        self.data, self.name, self.kind, self.problems = data, data.name, data.kind, data.problems

    # --- frames -------------------------------------------------------------------------------------------------

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
        return select(self.frame, quantity, **selection)

    # --- what it says -------------------------------------------------------------------------------------------

    @cached_property
    def findings(self) -> "tuple[Fact, ...]":
        """What the study says, fact by fact; `answer` and the titles of figures print them."""
        return self.answer().findings

    def answer(self, price_per_cpu_hour: float | None = None) -> "Answer":
        """Return what the study says: a sentence, the setting, the prices, and what is not known.

        With what a CPU costs in an hour, in any currency, there are costs too.
        """
        from analysis.answers import answer_of

        return answer_of(self, price_per_cpu_hour=price_per_cpu_hour)

    def table(self, name: str) -> "Table":
        """Return a table by name, of `tables`; it prints, and knows Markdown, LaTeX, HTML, CSV.

        Raises:
            AnalysisError: There is no table of that name.
        """
        from analysis.tables import table_of

        return table_of(name, self)

    def plot(self, name: str, ax: "Axes | None" = None) -> "Figure":
        """Return a figure by name, of `figures`, and draw it on axes of one's own where they are given.

        Raises:
            AnalysisError: There is no figure of that name, or nothing to draw.
        """
        from analysis.figures import figure_of

        figure = figure_of(self, name)
        if ax is not None:
            figure.draw(ax)
        return figure

    @cached_property
    def tables(self) -> "dict[str, Table]":
        """The tables of the report by name; one without rows says why."""
        from analysis.tables import TABLES

        return {name: self.table(name) for name in TABLES}

    @cached_property
    def figures(self) -> "dict[str, Figure]":
        """The figures of the report by name; one that cannot be drawn says why."""
        from analysis.figures import FIGURES, OF_TIMES

        return {name: self.plot(name) for name in (OF_TIMES if self.kind == "throughput" else FIGURES)}

    def report(self, out: str | Path) -> Path:
        """Write the report, with every table and figure as files, and return its page.

        Raises:
            AnalysisError: The folder cannot be written.
        """
        from analysis.report import make_report, write

        return write(make_report(self), Path(out))[0]

    def export(self, path: str | Path) -> Path:
        """Write the runs of every setting, seed by seed, as MARL-eval reads them (`exported`), and return the path.

        Raises:
            AnalysisError: There is nothing to export, or the file cannot be written.
        """
        environment = str((self.data.sheet.get("environment") or {}).get("id") or "unknown")
        settings, path = self.settings if self.kind != "throughput" else (), Path(path)
        content = exported(settings, self.evaluations, environment=environment)
        try:
            path.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
        except OSError as error:
            got, fix = error.strerror or error, "Choose another path."
            raise AnalysisError(where=str(path), rule="must be writable", got=got, fix=fix) from error
        return path

    # --- the parts of the frame of estimates --------------------------------------------------------------------

    @property
    def engine(self) -> str:
        """Runner and learner that ran, such as `batched+fused`, or several of them."""
        return engines_in_words(self.data.runs["engine"].dropna())

    @property
    def num_failed(self) -> int:
        """Failed trials of the study."""
        return int((self.data.runs["status"] == "failed").sum())

    @cached_property
    def selection(self) -> Selection:
        """The runs whose times may be used, and why the others may not."""
        return selection_of(self.data.runs)

    @property
    def measured(self) -> pd.DataFrame:
        """The runs whose times may be used."""
        return self.selection.runs

    @cached_property
    def strong(self) -> Part:
        """Strong scaling, batch fixed."""
        return scaling(self.selection, "strong")

    @cached_property
    def weak(self) -> Part:
        """Weak scaling, steps per runner fixed."""
        return scaling(self.selection, "weak")

    @cached_property
    def phases(self) -> Part:
        """Phases of an iteration."""
        return phases(self.selection)

    @cached_property
    def targets(self) -> Part:
        """Steps, time and cost to target, as well as the evaluations know them."""
        budget = self.data.spec.budget.env_steps if self.data.spec else None
        part = targets_of(self.settings, self.measured, num_trials=len(self.data.runs), budget=budget)
        return replace(part, n_failed=self.num_failed)

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings that runs are judged by, with their runs (`analysis.estimates.settings`)."""
        runs, spec = self.data.runs, self.data.spec
        if runs["env_steps_to_target"].notna().any():
            runs = watched(runs, self.evaluations, target=spec.environment.target if spec else None)
        return settings_of(runs, spec)

    @cached_property
    def certificate(self) -> dict[str, Any] | str:
        """The certificate of a hold-up study as JSON values; else why there is none."""
        return certificate_of(self.data)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The long frame: every estimate of the study. `estimates` returns copies of it."""
        rates = [*cells(self.selection), *model_rows(self.selection)]
        parts = (self.strong, self.weak, self.phases, self.targets)
        rows = [*rates, *prices_of(rates), *(row for part in parts for row in part.rows)]
        rows += [row for refusal in self.strong.refusals for row in refusal.rows()]
        if self.kind != "throughput":  # which claims no learning
            rows += [row for each in self.settings for row in rows_of("setting", each, each.row())]
        return frame_of(rows, kind=self.kind, engine=self.engine)

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
        return f"{self.answer().to_html()}<pre>{escape(repr(self))}</pre>"


def exported(settings: Iterable[Setting], evaluations: pd.DataFrame, *, environment: str) -> Any:
    """Return the runs of some settings as the JSON values of MARL-eval.

    Suite -> task -> algorithm -> `seed_1`, … -> `step_0`, … with `step_count` and the mean return of the evaluation,
    and `absolute_metrics` with the final return and the score. A setting at a number of runners is an algorithm, and
    the environment is the one task, `ALE/Pong-v5` of the suite ALE, `Acrobot-v1` of gymnasium. A failed run is one of
    the runs, with a score of 0, or the floor's return.

    Args:
        settings: With their runs.
        evaluations: One row per greedy evaluation: trial, env_steps, eval_return.
        environment: Its id.

    Raises:
        AnalysisError: No run has ended with its whole budget, or a failed run has no number.
    """
    algorithms = {f"{each.name}, {count(each.num_env_runners, 'runner')}": _runs(each) for each in settings}
    if not algorithms:
        rule, fix = "a run must have ended with its whole budget", "Export a search or a hold-up study that has ended."
        raise AnalysisError(where="export", rule=rule, got="none", fix=fix)
    suite, _, task = environment.replace(":", "/").rpartition("/")
    seen = evaluations.dropna(subset=["eval_return"]).sort_values("env_steps", kind="stable")

    def seeds(runs: pd.DataFrame) -> dict[str, Any]:
        found = dict[str, Any]()
        for trial, seed, *numbers in runs.itertuples(index=False):
            own = seen.loc[seen["trial"] == trial, ["env_steps", "eval_return"]].itertuples(index=False)
            steps = {f"step_{at}": {"step_count": int(n), "return": [float(x)]} for at, (n, x) in enumerate(own)}
            final = {name: [x] for name, x in zip(runs.columns[2:], numbers, strict=True) if np.isfinite(x)}
            found[f"seed_{seed}"] = steps | {"absolute_metrics": final}
        return found

    return {suite or "gymnasium": {task: {name: seeds(runs) for name, runs in algorithms.items()}}}


def _runs(setting: Setting) -> pd.DataFrame:
    """Return one row per run: trial, seed (a run without one: its trial), return, and score where runs are scored."""
    numbers = {"return": setting.finals} | ({"score": setting.scores} if setting.scored else {})
    if not np.isfinite([*numbers.values()][-1]).all():
        rule, got = "every run must have a number", f"{setting.name} has a run without one"
        fix = "Give `environment.floor`, the return of a run that failed, in the space."
        raise AnalysisError(where="export", rule=rule, got=got, fix=fix)
    trials = setting.runs["trial"].to_numpy(dtype=int)
    seeds = setting.runs["seed"].fillna(setting.runs["trial"]).to_numpy(dtype=int)
    return pd.DataFrame({"trial": trials, "seed": seeds, **numbers}).sort_values("seed")
