"""The policy of a trial: what a runner must know to act as it does, as a file and back. Imports no engine.

The folder is RLlib's checkpoint of the module, or of the modules of several agents: a pickle, which is a program, for
whoever opens it with RLlib. Beside it lies a file that can hold nothing but values. It alone is read back, which runs
nothing: the networks and the connectors come from the study.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from study.errors import RecordError
from study.text import one_line

STATE_FILE = "policy.msgpack"
"""Name of the state in a policy's folder."""
MODULES = "rl_module"
"""RLlib's name of the networks in the state of a runner."""
State = dict[str, Any]
"""What `EnvRunner.set_state` takes: the numbers of the modules, and the states of both connector pipelines."""
_ARRAY, _OTHER = 1, 2
"""Codes of an array in NumPy's own format, and of the name of what is neither a number, a text nor an array."""


def packed_state(state: Mapping[str, Any]) -> bytes:
    """Return a state as bytes; of what is no plain value, as a connector of one's own may have, only its name."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic) and isinstance(number := value.item(), (bool, int, float, str)):
            return number
        if isinstance(value, np.ndarray) and value.dtype != object:
            stream = io.BytesIO()
            np.save(stream, value, allow_pickle=False)
            return msgspec.msgpack.Ext(_ARRAY, stream.getvalue())
        if isinstance(value, Mapping):
            return dict(value)
        return msgspec.msgpack.Ext(_OTHER, type(value).__name__.encode())

    return msgspec.msgpack.encode(state, enc_hook=plain)


def read_state(checkpoint: Path) -> State:
    """Return what a runner must know to act as a policy does; a `RecordError` says why the folder holds no such."""

    def value_of(code: int, content: memoryview) -> Any:
        if code != _ARRAY:
            name = bytes(content[:100]).decode(errors="replace")
            raise ValueError(f"a connector's state has a {name}, which is no value")
        return np.load(io.BytesIO(content), allow_pickle=False)

    file = checkpoint / STATE_FILE
    try:
        state: State = msgspec.msgpack.decode(file.read_bytes(), ext_hook=value_of)
        numbers = (each for module in state[MODULES].values() for each in module.values())
        if not all(isinstance(each, np.ndarray) and each.dtype.kind in "fiub" for each in numbers):
            raise ValueError("no arrays of numbers")
    except Exception as error:  # whatever a damaged file raises
        rule, got = "must hold the numbers of a policy", f"another file ({one_line(str(error), 200)})"
        if isinstance(error, OSError):
            rule, got = "must be a file that you can read", str(error.strerror)
        fix = "Restore the folder from a backup, or train the setting again."
        raise RecordError(where=str(file), rule=rule, got=got, fix=fix) from error
    return state
