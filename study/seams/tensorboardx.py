"""Seams of tensorboardX, which Ray Tune brings."""

import sys
from importlib import import_module
from typing import Any

from study.seams.base import Seam

MESSAGES = Seam(
    name="tensorboardx-messages",
    distribution="tensorboardX",
    versions=">=2.6",
    does="write event files with the messages of tensorboardX alone",
    why="Its writer imports torch where that is installed: seconds and 200 MB in a process that only copies numbers.",
    needs=(lambda: _missing(),),
)


def _missing() -> str:
    (records,) = without_torch("record_writer")
    return "" if hasattr(records, "masked_crc32c") else "tensorboardX.record_writer:masked_crc32c is gone"


def without_torch(*modules: str) -> tuple[Any, ...]:
    """Import modules of tensorboardX as if torch were not installed; where it is imported already, nothing is saved."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment] # Python's import system then raises ImportError
    try:
        return tuple(import_module(f"tensorboardX.{module}") for module in modules)
    finally:
        if hidden:
            del sys.modules["torch"]
