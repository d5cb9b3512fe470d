"""What each record becomes in TensorBoard: events, as bytes. Pure; the metrics and their steps are those of MLflow.

Everything here depends on the record alone, so that the same records always make the same files.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from study.mirrors import mirror_content as content
from study.mirrors.mirror_content import Point
from study.mirrors.tensorboard_x import api, event, hparams, summary, tensor, tensor_shape, text
from study.records.records import TrialBuilt, TrialEnded, TrialStarted
from study.space.parameters import SCALE
from study.space.spec import StudySpec

_VERSION = "brain.Event:2"
"""First event of every file; other versions have other laws for repeated steps."""
_RESULTS = ("final_return", "score", "env_steps_per_s")
"""Metrics that the HPARAMS tab shows beside the settings."""
_END = {"finished": "STATUS_SUCCESS", "failed": "STATUS_FAILURE"}


def run_name(record: TrialStarted) -> str:
    """Return the trial's folder, TensorBoard's run: in the order of trials, with runners and seed."""
    return f"trial_{record.trial:05d}_r{record.scale or record.setting.get(SCALE, 0)}_s{record.seed}"


def file_name(attempt: int) -> str:
    """Return the name of an attempt's file in the trial's folder; later attempts sort behind."""
    return f"events.out.tfevents.{attempt:05d}.study"


def opening_events(record: TrialStarted, spec: StudySpec, time: float) -> list[bytes]:
    """Return the beginning of an attempt's file: what the HPARAMS tab shows of it."""
    restart = event.SessionLog(status=event.SessionLog.START)  # a TensorBoard at work drops the attempt before
    values = content.trial_values(record, spec)
    return [
        _event(time, file_version=_VERSION),
        *([_event(time, session_log=restart)] if record.attempt > 1 else []),
        _event(time, summary=summary.Summary(value=[_experiment(values), _session_start(values, time)])),
    ]


def points_event(points: Sequence[Point], time: float) -> list[bytes]:
    """Return the event of a record's points, which share their step; none where there is no point."""
    values = [summary.Summary.Value(tag=point.key, simple_value=point.value) for point in points]
    return [_event(time, points[0].step, summary=summary.Summary(value=values))] if points else []


def built_event(record: TrialBuilt, time: float) -> bytes:
    """Return how far the trial's timings can be trusted, and where it runs, as text."""
    tags = {name: text for name, text in content.built_tags(record).items() if name != content.EFFECTIVE}
    return _event(time, summary=summary.Summary(value=[_table("built", tags)]))


def ended_event(record: TrialEnded, time: float, step: int) -> bytes:
    """Return the outcome, as text and for the HPARAMS tab; an interrupted attempt is not at its end there."""
    values = [_table("outcome", content.ended_tags(record))]
    if record.status in _END:
        end = hparams.SessionEndInfo(status=api.Status.Value(_END[record.status]), end_time_secs=time)
        values.append(_hparams_value("session_end_info", session_end_info=end))
    return _event(time, step, summary=summary.Summary(value=values))


def _event(time: float, step: int = 0, **what: Any) -> bytes:
    raw: bytes = event.Event(wall_time=time, step=step, **what).SerializeToString(deterministic=True)
    return raw


def _experiment(values: Mapping[str, Any]) -> Any:
    """Return which columns there are; TensorBoard takes them from the first run that it finds."""
    kinds = {name: "STRING" if isinstance(value, str) else "FLOAT64" for name, value in values.items()}
    columns = [api.HParamInfo(name=name, type=api.DataType.Value(f"DATA_TYPE_{kind}")) for name, kind in kinds.items()]
    results = [api.MetricInfo(name=api.MetricName(tag=name)) for name in _RESULTS]
    return _hparams_value("experiment", experiment=api.Experiment(hparam_infos=columns, metric_infos=results))


def _session_start(values: Mapping[str, Any], time: float) -> Any:
    start = hparams.SessionStartInfo(start_time_secs=time)
    for name, value in values.items():
        if isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value
    return _hparams_value("session_start_info", session_start_info=start)


def _hparams_value(tag: str, **data: Any) -> Any:
    raw = hparams.HParamsPluginData(version=0, **data).SerializeToString(deterministic=True)
    return summary.Summary.Value(tag=f"_hparams_/{tag}", metadata=_metadata("hparams", raw))


def _table(tag: str, values: Mapping[str, str]) -> Any:
    """Return a text that TensorBoard shows as a table."""
    rows = [f"| {name} | {' '.join(value.split()).replace('|', chr(92) + '|')} |" for name, value in values.items()]
    markdown = "\n".join(["| | |", "|---|---|", *rows])
    shape = tensor_shape.TensorShapeProto(dim=[tensor_shape.TensorShapeProto.Dim(size=1)])
    return summary.Summary.Value(
        tag=f"{tag}/text_summary",
        metadata=_metadata("text", text.TextPluginData(version=0).SerializeToString()),
        tensor=tensor.TensorProto(dtype="DT_STRING", string_val=[markdown.encode()], tensor_shape=shape),
    )


def _metadata(plugin: str, raw: bytes) -> Any:
    data = summary.SummaryMetadata.PluginData(plugin_name=plugin, content=raw)
    return summary.SummaryMetadata(plugin_data=data)
