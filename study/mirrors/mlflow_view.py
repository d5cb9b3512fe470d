"""How MLflow opens: a saved view of a study's trials, the link to it, and colours by scale. Pure; imports no MLflow.

MLflow's page keeps a saved view as a tag of the experiment: `mlflow.sharedViewState.KEY`, JSON with a name, two times
and the compressed state of the page. The names in the state are those of MLflow 3.17; a page ignores those that it does
not know, and one without saved views opens its plain table of runs.
"""

import json
import zlib
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from study.records.folder import StudyIdentity
from study.space.parameters import SCALE
from study.space.spec import StudySpec

_TAG = "mlflow.sharedViewState."
_PARALLEL_PARAMS = 3
"""Parameters of the parallel coordinates: more of them cannot be read."""
_COLOURS = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#c9b500", "#e08a00")
"""From the smallest scale to the largest; tells scales apart for the colour-blind, and on white."""
STUDY_COLOUR = "#8c8c8c"
"""Of the run of the study itself."""
_PARAMETERS, _RESULTS, _BEST, _REST = "Parameters and result", "Results", "best_run_return", "Model metrics"
"""Sections of the charts. MLflow itself makes the third of metrics that begin so, and the fourth of all others."""
_WIDTHS = {"lr": 90, "final_return": 105, "score": 80, "wall_time_s": 100, "timing": 110}
_WIDTH = 130
"""Pixels of a column."""


def milliseconds(time_s: float) -> int:
    """Return seconds since the epoch as MLflow's whole milliseconds."""
    return round(time_s * 1000)


def page_of(experiment_id: str, study_id: str) -> str:
    """Return what follows the address of an MLflow server to open the comparison of a study's trials."""
    return f"/#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={study_id}"


def view_tag(identity: StudyIdentity, spec: StudySpec) -> tuple[str, str]:
    """Return the experiment's tag, key and value, that holds the saved view of a study."""
    state = json.dumps(view_state(identity.study_id, spec), separators=(",", ":"))
    created = milliseconds(identity.created)
    view = {
        "name": f"Compare the trials of {identity.name}",
        "createdAt": created,
        "updatedAt": created,
        "state": "deflate;" + b64encode(zlib.compress(state.encode())).decode(),
    }
    return f"{_TAG}{identity.study_id}", json.dumps(view)


def view_state(study_id: str, spec: StudySpec) -> dict[str, Any]:
    """Return the state of MLflow's page: which runs, in which order, with which columns and charts."""
    best = "final_return" if spec.learns else "env_steps_per_s"
    tuned = [name for name in spec.tuned if name in spec.parameter_names]
    varied = list(dict.fromkeys([SCALE, "train_batch_size", *(["lr"] if spec.learns else []), *tuned]))
    measured = [*(["final_return", "score"] if spec.learns else []), "env_steps_per_s", "wall_time_s"]
    more = [*varied[_PARALLEL_PARAMS:], *([] if spec.design == "search" else ["stage"])]
    columns = {
        _key(kind, name): _WIDTHS.get(name, _WIDTH)
        for kind, names in (
            ("params", varied[:_PARALLEL_PARAMS]),
            ("metrics", measured),
            ("tags", ["timing"]),
            ("params", more),
        )
        for name in names
    }
    return {
        "searchFilter": f"tags.`study.id` = '{study_id}'",
        "orderByKey": _key("metrics", best),
        "orderByAsc": False,  # an order by a metric unfolds the trials, too
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns),
        "columnOrder": list(columns),
        "columnWidths": columns,
        "runsHiddenMode": "FIRST_20_RUNS",
        "compareRunCharts": _charts(varied[:_PARALLEL_PARAMS], best, spec),
        "compareRunSections": [
            {"uuid": name, "name": name, "display": wide > 0, "columns": wide or 3, "isReordered": True}
            for name, wide in ((_PARAMETERS, 1), (_RESULTS, 2), (_BEST, 0), (_REST, 0))
        ],
        "isAccordionReordered": True,  # the page keeps the order of the sections
        "hideEmptyCharts": True,
    }


def _charts(params: Sequence[str], best: str, spec: StudySpec) -> list[Mapping[str, Any]]:
    """Return the charts of the first section: parameters against the result, the result, the speed."""
    curve = [_chart("LINE", metricKey="eval_return", selectedMetricKeys=["eval_return"])] if spec.learns else []
    results = ["final_return", "env_steps_per_s"] if spec.learns else ["env_steps_per_s"]
    return [
        _chart("PARALLEL", _PARAMETERS, selectedParams=list(params), selectedMetrics=[best], showAllRuns=True),
        *curve,
        *(_chart("BAR", metricKey=name, dataAccessKey=name) for name in results),
    ]


def _chart(kind: str, section: str = _RESULTS, **content: Any) -> dict[str, Any]:
    name = content.get("metricKey", "")
    return {
        "uuid": f"{kind}-{name}",
        "type": kind,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 20,
        **({"displayName": name} if name else {}),
        **content,
    }


def _key(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def colour_of(runners: int, spec: StudySpec) -> str:
    """Return the colour of a scale: by its place among those that the study names."""
    named = {*spec.scales, *(spec.holdup.unseen_scales if spec.holdup is not None else ())}
    for axes in spec.throughput.axes().values() if spec.throughput is not None else ():
        named.update(axes.get(SCALE, ()))
    place = max(bisect_right(scales := sorted(named), runners) - 1, 0)
    return _COLOURS[place * (len(_COLOURS) - 1) // max(len(scales) - 1, 1)]
