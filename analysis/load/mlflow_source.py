"""Finds a study of this project in an MLflow store and reads it.

Imported only when a study is read from MLflow: this import brings MLflow with it.
"""

import difflib
from collections.abc import Sequence

from analysis.load.mlflow_client import Experiment, Store, StoredRun
from analysis.load.mlflow_ours import our_study
from analysis.load.sheet import date
from analysis.load.study_data import StudyData
from study.errors import AnalysisError
from study.mirrors.mlflow_content import DUPLICATE, ROLE, STUDY_ID, SUPERSEDED

_SHOWN = 12
"""Most names in a message."""


def from_mlflow(tracking_uri: str, *, study: str | None, histories: bool | None) -> StudyData:
    """Read a study; arguments as of `open_study`.

    Raises:
        AnalysisError: There is no such experiment or study, several and none was named, or it is not of this project.
        TrackingError: The tracking URI does not answer.
    """
    store = Store(tracking_uri)
    found = _experiment(store, study)
    parents = [
        run
        for run in store.runs(found, f"tags.`{ROLE}` = 'study'")
        if not {SUPERSEDED, DUPLICATE} & run.tags.keys() and STUDY_ID in run.tags
    ]
    if not parents:
        raise AnalysisError(
            where=f"{store.shown}: experiment {found.name!r}",
            rule="must hold a study of this project (since version 0.13.0 other experiments are not read)",
            got="one without",
            fix="Name a study that `python run_study.py` has sent there.",
        )
    return our_study(store, found, _parent(store, found, parents, study), histories=histories)


def _experiment(store: Store, name: str | None) -> Experiment:
    """Return the experiment of that name, the one of a study's id, or the only one.

    Raises:
        AnalysisError: There is none, or there are several and none was named.
    """
    known = store.experiments()
    active = [each for each in known if each.lifecycle_stage == "active"]
    if name is None:
        used = [each for each in active if store.has_runs(each)]
        if len(used) == 1:
            return used[0]
        if not used:
            raise AnalysisError(
                where=store.shown, rule="a study needs a run", got="a store without any", fix="Check the URI."
            )
        raise AnalysisError(
            where=store.shown,
            rule="one study must be named",
            got=f"{len(used)} experiments: {_names(used)}",
            fix="Give one of these names.",
        )
    if (match := next((each for each in active if each.name == name), None)) is not None:
        return match
    if any(each.name == name for each in known):
        raise AnalysisError(
            where=store.shown,
            rule=f"experiment {name!r} must not be deleted",
            got="a deleted one",
            fix="Restore it with `mlflow experiments restore`.",
        )
    if (match := _by_study_id(store, active, name)) is not None:
        return match
    near = difflib.get_close_matches(name, [each.name for each in active], n=1)
    fix = f"Did you mean {near[0]!r}?" if near else f"Give one of {_names(active)}."
    raise AnalysisError(where=store.shown, rule=f"there must be an experiment or study {name!r}", got="none", fix=fix)


def _by_study_id(store: Store, experiments: Sequence[Experiment], study_id: str) -> Experiment | None:
    """Return the experiment that holds the study of this id."""
    if "'" in study_id:
        return None
    text = f"tags.`{ROLE}` = 'study' and tags.`{STUDY_ID}` = '{study_id}'"
    return next((each for each in experiments if next(store.runs(each, text), None) is not None), None)


def _parent(store: Store, experiment: Experiment, parents: Sequence[StoredRun], study: str | None) -> StoredRun:
    """Return the parent run of the study.

    Raises:
        AnalysisError: Several studies share the experiment, and none was named by its id.
    """
    by_name = study in (None, experiment.name)
    chosen = [run for run in parents if by_name or run.tags[STUDY_ID] == study]
    if len(chosen) == 1:
        return chosen[0]
    ids = ", ".join(
        f"{run.tags[STUDY_ID]} ({date(run.start_time_s or 0)}, {run.tags.get('status', '?')})"
        for run in parents[-_SHOWN:]
    )
    raise AnalysisError(
        where=f"{store.shown}: experiment {experiment.name!r}",
        rule="one study must be named by its id",
        got=f"{len(chosen)} of this name",
        fix=f"Name one of {ids}.",
    )


def _names(experiments: Sequence[Experiment]) -> str:
    names = [repr(each.name) for each in experiments[:_SHOWN]]
    more = f" and {len(experiments) - _SHOWN} more" if len(experiments) > _SHOWN else ""
    return f"{', '.join(names)}{more}" if names else "the experiments that do not exist yet"
