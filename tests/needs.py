"""What a test needs that `pip install` does not bring: where it is not there, the test says so and skips."""

import ctypes

import pytest


def _is_found(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


needs_qt = pytest.mark.skipif(
    not _is_found("libQt5Gui.so.5"), reason="Procgen needs a library of the system: Debian's libqt5gui5"
)
