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
from study.space.spec import StudySpec, load_space

if TYPE_CHECKING:
    from study.driver.opening import RunOptions
    from study.driver.run import StudyResult, run_study

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
    """Import the heavier modules on first use."""
    homes = {"RunOptions": "study.driver.opening", "StudyResult": "study.driver.run", "run_study": "study.driver.run"}
    if name in homes:
        import importlib

        return getattr(importlib.import_module(homes[name]), name)
    raise AttributeError(f"module 'study' has no attribute {name!r}")
