"""The numbers of a policy in a file that can hold nothing but values: to read it runs nothing. NumPy and msgspec.

RLlib keeps the state of a module as a pickle, and a pickle is a program. A policy has that for whoever opens it with
RLlib, and beside it this file, which alone is read back: the networks and the connectors come from the experiment.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from study.errors import RecordError
from study.harmless import one_line

STATE_FILE = "policy.msgpack"
"""Name of the state in a policy's folder."""
MAX_BYTES = 2 * 10**9
"""Of the file: more than any policy for an environment that this project trains on."""
MODULES = "rl_module"
"""RLlib's name of the networks in the state of a runner."""
State = dict[str, Any]
"""What `EnvRunner.set_state` takes: the numbers of the modules, and the states of both connector pipelines."""
_DAMAGED = (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What a damaged file raises."""
_ARRAY, _OTHER = 1, 2
"""Codes of an array in NumPy's own format, and of the name of what is neither a number, a text nor an array."""


def packed_state(state: Mapping[str, Any]) -> bytes:
    """Return a state as bytes; of what is no plain value, as a connector of one's own may have, only its name."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
            return value if isinstance(value, (bool, int, float, str)) else plain(value)
        if isinstance(value, np.ndarray) and value.dtype != object:
            stream = io.BytesIO()
            np.save(stream, value, allow_pickle=False)
            return msgspec.msgpack.Ext(_ARRAY, stream.getvalue())
        if isinstance(value, Mapping):
            return dict(value)
        return msgspec.msgpack.Ext(_OTHER, type(value).__name__.encode())

    return msgspec.msgpack.encode(state, enc_hook=plain)


def read_state(checkpoint: Path) -> State:
    """Return what a runner must know to act as a policy does.

    Whether to trust the folder is the caller's to ask.

    Raises:
        RecordError: There is no such file, it cannot be read, or it is no state of a policy.
    """
    file, fix = checkpoint / STATE_FILE, "Restore the folder from a backup, or train the setting again."
    try:
        if (size := file.stat().st_size) > MAX_BYTES:
            raise RecordError(where=str(file), rule=f"must have at most {MAX_BYTES:,} bytes", got=f"{size:,}", fix=fix)
        state = msgspec.msgpack.decode(file.read_bytes(), ext_hook=_value)
        modules = state[MODULES]
        if not all(map(_is_numbers, (each for module in modules.values() for each in module.values()))):
            raise ValueError("no arrays of numbers")
    except OSError as error:
        rule = f"must be a file that you can read ({error.strerror})"
        raise RecordError(where=str(file), rule=rule, fix=fix) from error
    except _DAMAGED as error:
        rule, got = "must hold the numbers of a policy", f"another file ({one_line(str(error), 200)})"
        raise RecordError(where=str(file), rule=rule, got=got, fix=fix) from error
    return dict(state)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.dtype.isnative


def _value(code: int, content: memoryview) -> Any:
    if code != _ARRAY:
        name = bytes(content[:100]).decode(errors="replace")
        raise ValueError(f"a connector's state has a {name}, which is no value")
    return np.load(io.BytesIO(content), allow_pickle=False)
