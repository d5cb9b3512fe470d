"""The identity and the sessions of a study of ours as MLflow holds them: artifacts first, tags where those are away."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any, get_args

from analysis.load.mlflow_client import Store, StoredRun
from analysis.load.sheet import Session
from study.mirrors.mlflow_content import STUDY_ID, STUDY_STATUS
from study.records.folder import FORMAT, StudyIdentity
from study.records.records import StudyClosed, StudyOpened

_PREFIX = "provenance."
_TEXTS = ("time", "hostname", "platform", "cpu_model")
"""Entries of the provenance that are text; the others are JSON."""


def identity_of(parent: StoredRun, name: str, content: Mapping[str, Any] | None) -> StudyIdentity:
    """Return the study's identity, from its artifact if there is one, else as far as the tags tell."""
    known = {item.name for item in fields(StudyIdentity)}
    needed = {item.name for item in fields(StudyIdentity) if item.default is MISSING}
    if content is not None and needed <= content.keys():
        return StudyIdentity(**{key: content[key] for key in known & content.keys()})
    return StudyIdentity(
        format=FORMAT,
        study_id=parent.tags[STUDY_ID],
        name=name,
        created=parent.start_time_s or 0.0,
        tracking_uri="",
        space=parent.tags.get("space", ""),
        spec={
            "environment": {"id": parent.params.get("environment")},
            "algorithm": parent.params.get("algorithm"),
            "description": parent.tags.get("description", ""),
        },
        digest=parent.tags.get("study.digest", ""),
    )


def sessions_of(parent: StoredRun, store: Store) -> list[Session]:
    """Return the drivers that worked on the study; at least the last one."""
    last = int(parent.tags.get("session", 1))
    planned = int(parent.tags.get("num_trials", 0))
    found: list[Session] = []
    for number in range(1, last + 1):
        content = store.json_artifact(parent.id, f"provenance_session_{number}.json")
        if content is None and number == last:
            content = {"cluster": {}, "provenance": _provenance(parent.tags)}
        if content is not None:
            opened = StudyOpened(
                session=number,
                num_trials=planned,
                cluster=content.get("cluster") or {},
                provenance=content.get("provenance") or {},
            )
            found.append(Session(opened=opened, started=_begun(opened, parent), last=None))
    found[-1].last = parent.end_time_s
    found[-1].closed = _closed(parent, last)
    return found


def _begun(opened: StudyOpened, parent: StoredRun) -> float:
    try:
        return datetime.fromisoformat(opened.provenance["time"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return parent.start_time_s or 0.0


def _closed(parent: StoredRun, session: int) -> StudyClosed | None:
    status, detail = parent.tags.get("status", ""), parent.tags.get("reason", "")
    if status not in STUDY_STATUS or status not in get_args(StudyClosed.__annotations__["reason"]):
        return None
    return StudyClosed(session=session, reason=status, detail="" if detail == "none" else detail)  # type: ignore[arg-type]


def _provenance(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the nested provenance that the mirror flattened into tags."""
    result: dict[str, Any] = {}
    for key, text in tags.items():
        if not key.startswith(_PREFIX):
            continue
        *parents, name = key.removeprefix(_PREFIX).split(".")
        node = result
        for each in parents:
            node = node.setdefault(each, {})
        node[name] = (
            text if name in _TEXTS or parents[:1] in (["versions"], ["environment"], ["scheduler"]) else _value(text)
        )
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
