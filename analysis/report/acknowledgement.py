"""What a testbed asks every publication to say, where a study ran on it. Pure."""

import re
from collections.abc import Iterator
from typing import Any

from analysis.load.study_data import StudyData

GRID5000 = (
    "Experiments presented in this paper were carried out using the Grid'5000 testbed, supported by a scientific "
    "interest group hosted by Inria and including CNRS, RENATER and several Universities as well as other "
    "organizations (see https://www.grid5000.fr)."
)
"""Source: Grid'5000's usage policy."""
_NODE = re.compile(r"(?:^|[^A-Za-z0-9.-])(?:[A-Za-z0-9-]+\.)+grid5000\.fr(?![A-Za-z0-9.-]*[A-Za-z0-9])", re.IGNORECASE)
"""A host name of the testbed, such as gros-12.nancy.grid5000.fr, and not of a name that merely begins so."""
_PLACES = ("hardware", "cluster", "sessions", "hostname", "nodes")
"""Entries of the sheet that name machines; a description may name any."""


def acknowledgement(data: StudyData) -> str:
    """Return the testbed's sentence if a driver or a node of the study was there, else an empty text."""
    return GRID5000 if any(_NODE.search(text) for text in _machines(data)) else ""


def _machines(data: StudyData) -> Iterator[str]:
    for place in _PLACES:
        yield from _texts(data.sheet.get(place))
    if "nodes" in data.runs:
        yield from (str(nodes) for nodes in data.runs["nodes"].dropna().unique())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            if key != "command":
                yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
