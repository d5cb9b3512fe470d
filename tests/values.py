"""Copies of values with changes, whichever way their class is declared."""

import dataclasses
from typing import Any

from msgspec import Struct, structs


def replace(value: Any, **changes: Any) -> Any:
    """Return a copy of a dataclass or a struct, with other values of some fields."""
    return (structs if isinstance(value, Struct) else dataclasses).replace(value, **changes)
