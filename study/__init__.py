"""Scaling studies of RLlib: `load_space` reads a space file, `run_study` runs it; `fast` makes a PPO faster alone."""

import importlib
from typing import TYPE_CHECKING, Any

from study.errors import AnalysisError, ClusterError, RecordError, SpaceError, StudyError, TrialError

if TYPE_CHECKING:
    from study.adopted.loading import load_space
    from study.driver.opening import RunOptions
    from study.driver.run import StudyResult
    from study.space.spec import StudySpec
    from study.trial.configuration import fast

__all__ = [
    "AnalysisError",
    "ClusterError",
    "RecordError",
    "RunOptions",
    "SpaceError",
    "StudyError",
    "StudyResult",
    "StudySpec",
    "TrialError",
    "fast",
    "load_space",
    "run_study",
]
_HOMES = {
    "RunOptions": "study.driver.opening",
    "StudyResult": "study.driver.run",
    "StudySpec": "study.space.spec",
    "fast": "study.trial.configuration",
    "load_space": "study.adopted.loading",
}


def run_study(spec: "StudySpec", options: "RunOptions") -> "StudyResult":
    """Run or resume a study; by default one line per trial is written to standard error."""
    from study.cli.display import Display
    from study.driver.run import run_study

    return run_study(spec, options, display=Display())


def __getattr__(name: str) -> Any:
    """Import what needs other packages on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'study' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
