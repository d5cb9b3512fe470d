"""Scaling studies of RLlib: `load_space` reads a space file, `run_study` runs it. Importing this imports no engine."""

from typing import TYPE_CHECKING, Any

from study.errors import (
    AnalysisError,
    ClusterError,
    RecordError,
    SpaceError,
    StudyError,
    TrackingError,
    TrialError,
)
from study.spec import StudySpec, load_space

if TYPE_CHECKING:
    from study.run import RunOptions, StudyResult, run_study

__all__ = [
    "AnalysisError",
    "ClusterError",
    "RecordError",
    "RunOptions",
    "SpaceError",
    "StudyError",
    "StudyResult",
    "StudySpec",
    "TrackingError",
    "TrialError",
    "load_space",
    "run_study",
]


def __getattr__(name: str) -> Any:
    """Import `study.run` on first use."""
    if name in ("RunOptions", "StudyResult", "run_study"):
        import importlib

        return getattr(importlib.import_module("study.run"), name)
    raise AttributeError(f"module 'study' has no attribute {name!r}")
