"""A complete table of trials, which a replay draws from: every setting with every seed at two scales. Reads files only.

The rows of a search are survivors: a strategy that is replayed on them looks better than it is. So an incomplete table
is refused. A failed trial is a cell with score 0, unsolved, that cost what it cost.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from study.designs.holdup.arms import score_of
from study.designs.search.design import grid_values
from study.errors import AnalysisError
from study.records.folder import StudyFolder
from study.records.ledger import TrialRow
from study.records.state import ledger_of
from study.space.parameters import SCALE, Value
from study.space.spec import StudySpec
from study.statistics import BoolArray, FloatArray

TARGET, SMALL = 0, 1
"""Index of the scales in the arrays of a table."""
LAST_EPISODES = 5
"""Episodes of a last evaluation that are looked at: RL Zoo's `--n-eval-episodes` when it optimises."""
NAMED = 5
"""Missing cells that a message names."""
Cell = tuple[int, str, int]
"""Runners, name of the setting, seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """What every setting did with every seed, at the target scale and at the small one.

    All arrays have shape (2, settings, seeds); index 0 of the first axis is the target scale, index 1 the small one.
    """

    settings: tuple[str, ...]
    """Tuned parameters of each setting, rules included: its identity across scales. Sorted."""
    seeds: tuple[int, ...]
    """Ascending; a resampled table repeats some."""
    target: int
    """Runners at the target scale."""
    small: int
    """Runners at the small scale."""
    score: FloatArray
    """`score` of each trial; 0 where it failed, or where its return is not a number."""
    last_score: FloatArray
    """Score of the first `LAST_EPISODES` episodes of the last evaluation alone; 0 as in `score`."""
    solved: BoolArray
    """Whether `final_return` is at least the environment's target."""
    cost: FloatArray
    """Measured CPU-seconds of training; 0 for a trial that failed before its first iteration."""
    num_failed: int = 0
    """Trials that failed."""
    left_out: tuple[int, ...] = ()
    """Seeds that are in the records and not in the table, since not all of their trials have ended."""

    def resampled(self, columns: npt.NDArray[np.int64]) -> "ScoreTable":
        """Return the table with the given columns of seeds, the same for every setting and scale.

        Args:
            columns: Indices into `seeds`, repeats allowed, shape (any number,).
        """
        arrays = {name: getattr(self, name)[..., columns] for name in ("score", "last_score", "solved", "cost")}
        return replace(self, seeds=tuple(self.seeds[column] for column in columns), **arrays)


def score_table(*studies: str | Path, target: int, small: int, complete_seeds_only: bool = False) -> ScoreTable:
    """Return the complete table that a study recorded, or several that asked the same with other seeds.

    Args:
        studies: Folders, such as those of `search_spaces/acrobot_table.yaml`; at least one.
        target: Runners at the target scale.
        small: Runners at the small scale.
        complete_seeds_only: Leave out seeds with a trial that has not ended, instead of refusing the table.

    Raises:
        AnalysisError: There is no study, it has no scores, the table is not complete, a cell was recorded twice, or the
            studies differ in more than their seeds.
        RecordError: The records cannot be trusted.
    """
    folders = [StudyFolder(Path(study)) for study in studies]
    specs = [_spec_of(folder) for folder in folders]
    spec = specs[0]
    for folder, other in zip(folders, specs, strict=True):
        if _without_seeds(other) != _without_seeds(spec):
            raise AnalysisError(
                where=str(folder.path),
                rule="the parts of a table ask the same with other seeds",
                got=f"another space than that of {folders[0].path}",
                fix="Replay them one by one.",
                code="replay-of-different-spaces",
            )
    if target == small or not {target, small} <= set(spec.scales):
        rule = f"must be two different scales of the study ({', '.join(map(str, spec.scales))})"
        raise AnalysisError(
            where="target, small", rule=rule, got=f"{target} and {small}", fix="Name two of them.", code="replay-scales"
        )
    rows = [row for folder in folders for row in ledger_of(folder.records).rows.values()]
    where = ", ".join(map(str, studies))
    cells = _cells(where, [row for row in rows if row.variant == "study" and row.num_env_runners in (target, small)])
    names = _grid(spec) or sorted({name for _, name, _ in cells})
    seeds = sorted({*(seed for each in specs for seed in each.search.seeds), *(seed for _, _, seed in cells)})
    missing = [
        cell
        for cell in ((scale, name, seed) for seed in seeds for scale in (target, small) for name in names)
        if cell not in cells
    ]
    gone = {seed for _, _, seed in missing}
    kept = [seed for seed in seeds if seed not in gone]
    if missing and not (complete_seeds_only and kept):
        raise _incomplete(where, missing, len(seeds) * len(names) * 2, kept)
    return _table(spec, cells, names, kept, (target, small), tuple(sorted(gone)))


def _spec_of(folder: StudyFolder) -> StudySpec:
    """Return what a study asks, which must have scores."""
    if not folder.exists():
        raise AnalysisError(
            where=str(folder.path),
            rule="must be the folder of a study",
            got="none",
            fix="Give one with a complete table.",
            code="replay-of-no-study",
        )
    spec = folder.identity().parse()
    if not spec.is_scored or spec.environment.target is None:
        raise AnalysisError(
            where=str(folder.path),
            rule="a replay compares scores, which need environment.floor, reference and target",
            got="a space without one of them",
            fix="Replay a study whose space has them.",
            code="replay-without-scores",
        )
    return spec


def _without_seeds(spec: StudySpec) -> StudySpec:
    """Return what a study asks but for what `--replicate` changes: the sampler's seed orders a table's trials alone."""
    search = spec.search.model_copy(update={"seeds": [0], "sampler_seed": 0})
    return spec.model_copy(update={"description": "", "search": search})


def _name(setting: Mapping[str, Value]) -> str:
    """Return the identity of a setting across scales: its tuned parameters, in the order of their names."""
    return " ".join(f"{name}={setting[name]:g}" for name in sorted(setting) if name != SCALE) or "the one setting"


def _grid(spec: StudySpec) -> list[str]:
    """Return the settings of a grid, sorted; none when the sampler is another, whose settings only the records know."""
    if spec.search.sampler != "grid":
        return []
    names = list(spec.tuned)
    values = itertools.product(*(grid_values(spec.tuned[name]) for name in names))
    return sorted(_name(dict(zip(names, each, strict=True))) for each in values)


def _cells(where: str, rows: Iterable[TrialRow]) -> dict[Cell, TrialRow]:
    """Return the trials that have ended, by cell."""
    cells: dict[Cell, TrialRow] = {}
    for row in rows:
        cell = (row.num_env_runners, _name(row.proposed), row.seed)
        if row.ended and cell in cells:
            raise AnalysisError(
                where=where,
                rule="a table holds every cell once",
                got=f"trials {sorted((row.trial, cells[cell].trial))} for {_said(cell)}",
                fix="Replay a study of sampler grid.",
                code="replay-with-repeated-cell",
            )
        if row.ended:
            cells[cell] = row
    return cells


def _said(cell: Cell) -> str:
    scale, name, seed = cell
    return f"seed {seed}, {scale} runners, {name}"


def _incomplete(where: str, missing: Sequence[Cell], count: int, kept: Sequence[int]) -> AnalysisError:
    listed = "; ".join(_said(cell) for cell in missing[:NAMED])
    more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    fix = "Let the study finish (--resume)"
    if kept:
        fix += f", or use the complete seeds ({', '.join(map(str, kept))}) with --complete-seeds-only"
    return AnalysisError(
        where=where,
        rule="every setting must have ended with every seed at both scales",
        got=f"{len(missing)} of {count} trials missing: {listed}{more}",
        fix=f"{fix}.",
        code="replay-of-incomplete-table",
    )


def _table(
    spec: StudySpec,
    cells: Mapping[Cell, TrialRow],
    names: Sequence[str],
    seeds: Sequence[int],
    scales: tuple[int, int],
    left_out: tuple[int, ...],
) -> ScoreTable:
    rows = [cells[scale, name, seed] for scale in scales for name in names for seed in seeds]
    shape = (2, len(names), len(seeds))

    def array(values: Iterable[float]) -> FloatArray:
        return np.array(list(values), dtype=np.float64).reshape(shape)

    return ScoreTable(
        settings=tuple(names),
        seeds=tuple(seeds),
        target=scales[TARGET],
        small=scales[SMALL],
        score=array(score_of(row) for row in rows),
        last_score=array(_last_score(spec, row) for row in rows),
        solved=array(_solved(spec, row) for row in rows).astype(np.bool_),
        cost=array(row.summary.get("cpu_s_spent") or 0.0 for row in rows),
        num_failed=sum(row.status == "failed" for row in rows),
        left_out=left_out,
    )


def _last_score(spec: StudySpec, row: TrialRow) -> float:
    if row.status != "finished" or row.last_evaluation is None:
        return 0.0
    returns = row.last_evaluation.returns[:LAST_EPISODES]
    score = spec.score(sum(returns) / len(returns))
    return score if math.isfinite(score) else 0.0


def _solved(spec: StudySpec, row: TrialRow) -> bool:
    final = row.summary.get("final_return")
    return row.status == "finished" and final is not None and final >= spec.target
