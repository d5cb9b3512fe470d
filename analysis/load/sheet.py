"""What a study is, apart from its trials: its space, its kind, and its sheet of JSON values. No engine."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from analysis.load.study_data import Kind
from study.errors import SpaceError
from study.records.folder import StudyIdentity
from study.records.records import StudyClosed, StudyOpened
from study.space.spec import StudySpec

_SPEC = (
    "description",
    "environment",
    "algorithm",
    "parameters",
    "model",
    "runner",
    "learner",
    "standardization",
    "execution",
    "budget",
    "search",
    "holdup",
    "throughput",
    "evaluation",
    "resources",
    "rllib",
)
_HARDWARE = ("hostname", "platform", "cpu_model", "physical_cpus", "logical_cpus", "usable_cpus", "memory_mb")


@dataclass(slots=True, kw_only=True)
class Session:
    """A driver's work on the study."""

    opened: StudyOpened
    started: float
    """Seconds since the epoch."""
    last: float | None
    """Time of its last record, seconds since the epoch; None where only the records know."""
    closed: StudyClosed | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it for the sheet."""
        provenance, git = self.opened.provenance, self.opened.provenance.get("git") or {}
        return {
            "session": self.opened.session,
            "started": date(self.started),
            "ended": date(self.last) if self.last is not None else None,
            "end": self.closed.reason if self.closed else None,
            "detail": self.closed.detail if self.closed else "",
            "commit": git.get("commit"),
            "dirty": git.get("dirty"),
            "versions": provenance.get("versions") or {},
            "hardware": hardware(provenance),
            "scheduler": provenance.get("scheduler"),
            "cluster": self.opened.cluster,
            "command": provenance.get("command") or [],
        }


def hardware(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the driver's machine; `smt` says whether a core runs more than one hardware thread."""
    values = {name: provenance.get(name) for name in _HARDWARE}
    physical, logical = values["physical_cpus"], values["logical_cpus"]
    return {**values, "smt": logical > physical if physical and logical else None}


def date(time_s: float) -> str:
    """Return seconds since the epoch as a date of UTC."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


def spec_of(identity: StudyIdentity) -> tuple[StudySpec | None, list[str]]:
    """Return the space, and what is wrong with it."""
    try:
        return identity.parse(), []
    except SpaceError as error:
        return None, [
            f"The space is not one of this version ({len(error.faults)} faults, the first: {error.faults[0]}): it is "
            "shown as it was written, and what needs it is left out."
        ]


def kind_of(identity: StudyIdentity, stages: Collection[str | None]) -> Kind:
    """Return the kind of a study by its space, and by the stages of its trials where a space says less."""
    spec = identity.spec
    if spec.get("kind") == "throughput" or spec.get("throughput") or "throughput" in stages:
        return "throughput"
    return "holdup" if spec.get("holdup") or any(stages) else "search"


def study_sheet(
    identity: StudyIdentity, sessions: Sequence[Session], *, counts: Mapping[str, int], num_trials: int
) -> dict[str, Any]:
    """Return the sheet of a study of ours.

    Returns:
        `name`, `study_id`, `digest`, `created`, `space`, what the space says, `versions`, `hardware`, `scheduler`,
        `commit`, `dirty`, `cluster`, `first_record`, `last_record`, `num_trials`, `counts` and `sessions`.
    """
    lines = [session.to_json() for session in sessions]
    last = lines[-1] if lines else {}
    return {
        "name": identity.name,
        "study_id": identity.study_id,
        "digest": identity.digest,
        "created": date(identity.created),
        "space": identity.space,
        **{name: identity.spec.get(name) for name in _SPEC},
        **{name: last.get(name) for name in ("versions", "hardware", "scheduler", "commit", "dirty", "cluster")},
        "first_record": date(sessions[0].started) if sessions else None,
        "last_record": lines[-1]["ended"] if lines else None,
        "num_trials": num_trials,
        "counts": dict(counts),
        "sessions": lines,
    }
