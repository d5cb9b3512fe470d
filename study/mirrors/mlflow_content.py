"""What the records of a study become in MLflow: runs with parameters, tags and points. TensorBoard gets the same.

Everything here follows from the records alone, never from the moment of sending: what is sent again is the same.
"""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from study.engine import UNKNOWN, engine_of, engine_of_space
from study.harmless import mask_arguments, mask_credentials
from study.metrics import CUSTOM, METRICS
from study.mirrors.mlflow_view import STUDY_COLOUR, colour_of, milliseconds
from study.records.folder import StudyIdentity
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    Metrics,
    SettingsFrozen,
    StudyClosed,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
)
from study.space.parameters import SCALE
from study.space.spec import StudySpec
from study.text import spans

STUDY_ID, ROLE, TRIAL, ATTEMPT = "study.id", "study.role", "study.trial", "study.attempt"
"""Tags by which a run is found again."""
SUPERSEDED, DUPLICATE = "superseded", "duplicate"
"""Tags on deleted runs: why they were deleted."""
STUDY = (-1, 0)
"""Key of the study's own run among those of trials and attempts."""
NUM_RECORDS = "study.records"
"""Tag of the study's run: how many records its artifact `records.jsonl.xz` holds."""
FROZEN = "frozen.winner"
"""Tag of the study's run: the setting that was chosen before the first test seed."""
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
"""Tag with the text above a run's page: of the study's run the answer, of a trial's run its result, once known."""
BEST = "best_run_return/runners_{}"
"""Metric of the study's run: the largest `final_return` of one trial at a scale, as far as trials have ended."""
COLOUR = "mlflow.runColor"
_FIRST = ("final_return", "training_return", "env_steps_per_s")
"""Metrics in the order in which a batch begins: MLflow's page for comparing runs opens with the first that all have."""
_URIS = ("tracking_uri", "optuna_storage")
_IN_ARTIFACT_ALONE = ("constraints", "environment")
"""Parts of the provenance with dozens of entries, which would bury the other tags."""
_NONE = "none"
"""Stands for an empty text where a tag must replace an earlier one."""
_LONGEST_TAG = 5000
"""Characters; MLflow before 2.18 refuses longer tags, newer ones take 8000."""
_MOST_DIGITS = 9
"""Of a trial's number in a tag."""

RUN_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
"""MLflow's status of a trial that ended so."""
STUDY_STATUS = {
    "complete": "FINISHED",
    "until": "FINISHED",
    "stopped": "KILLED",
    "time budget": "KILLED",
    "error": "FAILED",
}
"""MLflow's status of a study that was closed for this reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric."""

    key: str
    value: float
    time_ms: int
    """Milliseconds since the epoch, from the record."""
    step: int
    """Environment steps trained on."""


@dataclass(slots=True, kw_only=True)
class Shown:
    """A run as MLflow shows it: what of it waits to be sent, and its state."""

    key: tuple[int, int]
    """Trial and attempt; `STUDY` of the study's own run."""
    name: str
    start_ms: int
    params: dict[str, Any]
    tags: dict[str, str]
    points: list[Point] = field(default_factory=list)
    status: str = "RUNNING"
    end_ms: int | None = None
    replaced: bool = False
    """Whether a later attempt runs in its place."""
    ended: bool = False
    """Whether the records say how the attempt ended."""
    runners: int = 0
    """The scale that the trial stands for."""
    startup: list[Point] = field(default_factory=list)
    """Waits for the first results: MLflow shows metrics in the order in which they came, results first."""
    env_steps: int = 0
    """Environment steps of the last points."""
    time_ms: int = 0
    """Milliseconds since the epoch of the last points."""
    num_cut: int = 0
    """Evaluation episodes that did not end and were cut."""
    num_episodes: int = 0
    """Evaluation episodes."""

    def sent(self) -> None:
        """Take note that nothing waits any more."""
        self.params, self.tags, self.points = {}, {}, []


class Contents:
    """The runs of a study, as the records that were taken make them.

    Attributes:
        study: The study's own run.
        trials: The run of each trial's latest attempt.
        changed: Runs that have changed since `sent`, by their keys, in that order.
        spec: The study's space.
    """

    def __init__(self, identity: StudyIdentity) -> None:
        self.spec = identity.parse()
        self.study = Shown(
            key=STUDY,
            name=identity.name,
            start_ms=milliseconds(identity.created),
            params=study_params(self.spec),
            tags={**study_tags(identity, self.spec), COLOUR: STUDY_COLOUR},
        )
        self.trials: dict[int, Shown] = {}
        self.changed: dict[tuple[int, int], Shown] = {STUDY: self.study}
        self._best: dict[int, float] = {}
        self._time_ms = self.study.start_ms

    def sent(self) -> None:
        """Take note that everything has been sent."""
        for run in self.changed.values():
            run.sent()
        self.changed = {}

    def take(self, line: Line) -> Shown | None:
        """Take a record; return the run that it changes: none where a later attempt has taken its trial's place."""
        record, self._time_ms = line.record, milliseconds(line.time)
        match record:
            case StudyOpened():
                self.study.tags |= opened_tags(record)
                self.study.status = "RUNNING"
            case SettingsFrozen():
                self.study.tags[FROZEN] = record.winner
            case StudyClosed():
                self.study.tags |= {"status": record.reason, "reason": cut(record.detail) or _NONE}
                self.close(STUDY_STATUS[record.reason])
            case TrialStarted():
                return self._start(record)
            case TrialBuilt() | Iteration() | Evaluation() | TrialEnded():
                run = self.trials.get(record.trial)
                if run is None or run.ended or run.key[1] != record.attempt:
                    return None
                self._add(run, record)
                return self._change(run)
            case _:
                return None
        return self._change(self.study)

    def close(self, status: str) -> None:
        """End the study, with MLflow's status, and what still runs in it; a resume may yet end or replace that."""
        for run in self.trials.values():
            if not run.ended:
                self._change(run).points += run.startup
                run.startup, run.status, run.end_ms = [], "KILLED", self._time_ms
                run.tags["status"] = "interrupted"
        self.study.status, self.study.end_ms = status, self._time_ms
        self._change(self.study)

    def _change(self, run: Shown) -> Shown:
        self.changed[run.key] = run
        return run

    def _start(self, record: TrialStarted) -> Shown:
        if (before := self.trials.get(record.trial)) is not None:
            self._change(before).replaced = True
            before.end_ms = before.end_ms or self._time_ms
        runners = runners_of(record)
        run = self.trials[record.trial] = Shown(
            key=(record.trial, record.attempt),
            name=trial_name(record),
            start_ms=self._time_ms,
            params=trial_values(record, self.spec),
            tags={"status": "running", COLOUR: colour_of(runners, self.spec)},
            runners=runners,
        )
        return self._change(run)

    def _add(self, run: Shown, record: TrialBuilt | Iteration | Evaluation | TrialEnded) -> None:
        now = self._time_ms
        if isinstance(record, TrialBuilt):
            run.startup = built_points(record, now)
            run.tags |= built_tags(record)
            return
        startup, run.startup = run.startup, []
        if isinstance(record, TrialEnded):
            # MLflow's latest value has the largest (step, time): that of the summary must be after the last one's.
            run.points = [*ended_points(record, max(now, run.time_ms + 1), run.env_steps), *run.points, *startup]
            run.tags |= ended_tags(record, num_cut=run.num_cut, num_episodes=run.num_episodes)
            run.status, run.end_ms, run.ended = RUN_STATUS[record.status], now, True
            self._compare(run, record)
            return
        if isinstance(record, Iteration):
            run.points += [*iteration_points(record, now), *startup]
        else:
            run.points += [*evaluation_points(record, now), *startup]
            run.num_cut += record.num_cut
            run.num_episodes += len(record.returns)
        run.env_steps, run.time_ms = record.env_steps, now

    def _compare(self, run: Shown, record: TrialEnded) -> None:
        """Show the return of a trial with the study's run, if it is the best one of its scale so far."""
        value = record.summary.get("final_return")
        if record.status == "finished" and value is not None and value > self._best.get(run.runners, -math.inf):
            self._best[run.runners] = value
            point = Point(key=BEST.format(run.runners), value=value, time_ms=self._time_ms, step=0)
            self._change(self.study).points.append(point)


def key_tags(study_id: str, key: tuple[int, int]) -> dict[str, str]:
    """Return the tags that name a run."""
    if key == STUDY:
        return {STUDY_ID: study_id, ROLE: "study"}
    return {STUDY_ID: study_id, ROLE: "trial", TRIAL: str(key[0]), ATTEMPT: str(key[1])}


def search_text(tags: Mapping[str, str]) -> str:
    """Return the search for runs that carry these tags."""
    return " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())


def key_of(tags: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the key of a run by its tags; None where somebody has changed them."""
    if tags.get(ROLE) == "study":
        return STUDY
    trial, attempt = (tags.get(name, "") for name in (TRIAL, ATTEMPT))
    is_known = all(text.isdecimal() and len(text) <= _MOST_DIGITS for text in (trial, attempt))
    return (int(trial), int(attempt)) if is_known else None


def study_params(spec: StudySpec) -> dict[str, str]:
    """Return the parameters of the parent run."""
    chosen_by = {"sampler": spec.search.sampler} if spec.learns else {"kind": spec.kind}
    return {"environment": spec.environment.id, "algorithm": spec.algorithm, **chosen_by}


def study_tags(identity: StudyIdentity, spec: StudySpec) -> dict[str, str]:
    """Return what describes the study for as long as it exists."""
    return without_empty(
        {
            NOTE: f"{spec.description}\n\nThe answer comes here at the end of the study, or with "
            "`python -m study report STUDY --attach`.",
            "description": spec.description,
            "space": identity.space,
            "study.digest": identity.digest,
            "engine": engine_of_space(spec),
        }
    )


def opened_tags(record: StudyOpened) -> dict[str, str]:
    """Return what describes the driver now at work and its cluster; a resume replaces them."""
    nodes = record.cluster.get("nodes", [])
    return without_empty(
        {
            "status": "running",
            "reason": _NONE,
            "session": str(record.session),
            "num_trials": str(record.num_trials),
            "cluster.num_cpus": str(record.cluster.get("num_cpus", "")),
            "cluster.num_nodes": str(len(nodes)),
            "cluster.nodes": _short(nodes),
            "mlflow.source.name": _source(record.provenance.get("command") or []),
            "mlflow.source.type": "LOCAL",
            **{
                f"provenance.{key}": value
                for key, value in _flat(record.provenance)
                if not key.startswith(_IN_ARTIFACT_ALONE)
            },
        }
    )


def _source(command: Sequence[str]) -> str:
    """Return a command line without folders: of a text with slashes MLflow shows what is behind the last one."""
    words = [word.rpartition("/")[2] for word in command]
    return shlex.join(words).replace("__main__.py", "python -m study", 1)


def identity_text(identity: StudyIdentity) -> str:
    """Return the study's identity with its complete spec, for people; without passwords in URIs and in arguments."""
    masked = {name: mask_credentials(value) for name, value in identity.to_json().items() if name in _URIS}
    spec = {**identity.spec, **mask_arguments(identity.spec)}
    return json.dumps({**identity.to_json(), **masked, "spec": spec}, indent=1)


def space_text(space: str, identity: StudyIdentity) -> str:
    """Return the text of the study's space without what `identity_text` masks.

    Empty where such a text is written in another way than it reads, as with escaped quotes: it cannot be found there.
    """
    masked = mask_arguments(identity.spec)
    masked.pop("script", None)  # is no part of the space
    texts = dict(pair for name in masked for pair in _masked(identity.spec[name], masked[name]))
    for given in sorted(texts, key=len, reverse=True):  # a short one may be a part of a longer one
        if given not in space:
            return ""
        space = space.replace(given, texts[given])
    return mask_credentials(space)


def _masked(given: Any, shown: Any) -> Iterator[tuple[str, str]]:
    """Yield each text that was masked, and what is shown of it."""
    if isinstance(given, (Mapping, list)):
        for key in given if isinstance(given, Mapping) else range(len(given)):
            yield from _masked(given[key], shown[key])
    elif given != shown:
        yield given, shown


def trial_name(record: TrialStarted) -> str:
    """Return the run's name, for people."""
    runners = runners_of(record)
    stage = f" · {record.stage}" if record.stage else ""
    return f"trial {record.trial}{stage} · {runners} runner{'s' if runners != 1 else ''}"


def runners_of(record: TrialStarted) -> int:
    """Return the scale that a trial stands for."""
    return int(record.scale or record.setting.get(SCALE, 0))


def trial_values(record: TrialStarted, spec: StudySpec) -> dict[str, float | int | str]:
    """Return short flat keys, the same for all trials of a study: MLflow's charts compare runs by them."""
    iterations = {} if record.iterations is None else {"iterations": record.iterations}
    staged: dict[str, Any] = {}
    if record.stage is not None:  # what a trial of a hold-up or throughput study is for
        staged = {"stage": record.stage, "variant": record.variant, "setting": record.digest}
        staged["stands_for_runners"] = runners_of(record)
    return {
        **record.setting,
        **iterations,
        "seed": record.seed,
        "baseline": record.anchor or _NONE,
        "execution": record.execution,
        **staged,
        **study_params(spec),
    }


def built_tags(record: TrialBuilt) -> dict[str, str]:
    """Return the engine, how far the timings can be trusted, and where the trial runs."""
    return without_empty(
        {
            "engine": engine_of(record.effective) or UNKNOWN,
            "timing": record.timing or "",
            "timing_reason": record.timing_reason,
            "nodes": ", ".join(sorted(record.processes_per_node)),
            "placement": _placement(record.placement),
        }
    )


def _placement(places: Sequence[Mapping[str, Any]]) -> str:
    """Return in words which processes each node has, such as `gros-12: main, runners 1-3; gros-13: runners 4-6`."""
    hosts = {place["node"]: place["host"] for place in places}
    shared = len(set(hosts.values())) < len(hosts)  # several nodes of Ray on one machine
    words = []
    for node, host in hosts.items():
        here = [place for place in places if place["node"] == node]
        kinds = ["main"] if any(place["process"] == "main" for place in here) else []
        for kind, numbers in (
            ("runner", sorted(number for place in here for number in place["runners"])),
            ("learner", sorted(place["number"] for place in here if place["process"] == "learner")),
        ):
            if numbers:
                kinds.append(f"{kind}{'s' if len(numbers) > 1 else ''} {spans(numbers)}")
        words.append(f"{f'{node} ({host})' if shared else host}: {', '.join(kinds)}")
    return "; ".join(words)


def ended_tags(record: TrialEnded, *, num_cut: int, num_episodes: int) -> dict[str, str]:
    """Return the outcome, the timing label that stays, and how many evaluation episodes were cut, if any were."""
    return without_empty(
        {
            NOTE: _result(record),
            "status": record.status,
            "reason": record.reason,
            "checkpoint": record.checkpoint or "",
            "timing": record.timing or "",
            "timing_reason": record.timing_reason,
            "episodes_cut": f"{num_cut} of {num_episodes}" if num_cut else "",
        }
    )


def _result(record: TrialEnded) -> str:
    """Return what came of a trial, in a sentence; empty where nothing did."""
    final, speed = record.summary.get("final_return"), record.summary.get("env_steps_per_s")
    if record.status == "failed":
        return f"**Failed:** {record.reason}"
    if final is None or not math.isfinite(final):
        return ""
    why = f": {record.timing_reason}" if record.timing_reason else ""
    pace = "" if speed is None else f" {speed:,.0f} env steps/s ({record.timing or UNKNOWN}{why})."
    return f"**Return {final:,.6g}.**{pace}"


def built_points(record: TrialBuilt, time_ms: int) -> list[Point]:
    """Return the start-up time, at step 0."""
    return _points({"startup_time_s": record.startup_time_s}, time_ms, 0)


def iteration_points(record: Iteration, time_ms: int) -> list[Point]:
    """Return the iteration's mirrored metrics and what follows from them; nothing for an absent quantity."""
    values = {
        name: value
        for name, value in record.metrics.items()
        if name.startswith(CUSTOM)
        or (name in METRICS and METRICS[name].grain == "iteration" and METRICS[name].mirrored)
    }
    values["training_return"] = _ratio(record.metrics, "episode_return_sum", "num_episodes")
    values["env_steps_per_s"] = record.metrics.get("env_steps_per_s")
    values["wall_time_s"] = record.wall_time_s
    values["env_steps"] = record.env_steps
    return _points(values, time_ms, record.env_steps)


def evaluation_points(record: Evaluation, time_ms: int) -> list[Point]:
    """Return the mean return of the evaluation."""
    mean = math.fsum(record.returns) / len(record.returns) if record.returns else None
    return _points({"eval_return": mean}, time_ms, record.env_steps)


def ended_points(record: TrialEnded, time_ms: int, env_steps: int) -> list[Point]:
    """Return the summary at the trial's last step: MLflow shows the latest value, now that of the trial."""
    return _points({name: value for name, value in record.summary.items() if name in METRICS}, time_ms, env_steps)


def _points(values: Metrics, time_ms: int, step: int) -> list[Point]:
    first = {name: values[name] for name in _FIRST if name in values}
    return [
        Point(key=key, value=float(value), time_ms=time_ms, step=step)
        for key, value in {**first, **values}.items()
        if value is not None and math.isfinite(value)
    ]


def _ratio(metrics: Metrics, numerator: str, denominator: str) -> float | None:
    above, below = metrics.get(numerator), metrics.get(denominator)
    return above / below if above is not None and below is not None and below > 0 else None


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and short texts; lists stay whole."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, str) else _short(value)


def _short(value: object) -> str:
    return json.dumps(value, default=str)


def without_empty(tags: Mapping[str, str]) -> dict[str, str]:
    """Drop empty tags and cut long ones."""
    return {key: cut(value) for key, value in tags.items() if value}


def cut(value: str) -> str:
    """Return the text of a tag, no longer than MLflow takes."""
    return value if len(value) <= _LONGEST_TAG else f"{value[: _LONGEST_TAG - 2]} …"
