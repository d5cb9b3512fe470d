"""The numbers of a policy from an RLModule checkpoint, read without running what the file says. NumPy alone.

RLlib keeps the state of a module as a pickle, and a pickle is a program: `RLModule.from_checkpoint` runs it, and one
more that names the class. Here the network comes from the space, and a reader of our own makes dictionaries and arrays
of plain numbers of the state. Whatever else the file asks for is refused by its name before it is looked up.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from study.errors import RecordError

STATE_FILE = "module_state.pkl"
"""Name of the state in an RLModule checkpoint."""
MAX_BYTES = 2 * 10**9
"""Of the file: more than any policy for an environment that this project trains on."""
Weights = dict[str, npt.NDArray[Any]]
"""Name of a parameter -> its values."""

_KINDS = "fiub"
"""Kinds of numbers in NumPy's letters: floats, integers of both kinds, booleans."""
_FIX = "Name a checkpoint that a study or RLlib's `RLModule.save_to_path` wrote."
_DAMAGED = (
    *(pickle.UnpicklingError, AttributeError, EOFError, LookupError, MemoryError, OverflowError, RecursionError),
    *(TypeError, ValueError),
)
"""What a damaged pickle raises."""


class _Dtype:
    """Stands for `numpy.dtype`: of a state it says the kind, the size and the order of the bytes."""

    def __init__(self, code: str, align: bool = False, copy: bool = False) -> None:
        self.dtype = np.dtype(str(code))
        if self.dtype.kind not in _KINDS:
            raise ValueError(f"no plain numbers: {self.dtype}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


def _array(
    content: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str, axes: tuple[int, ...] | None = None
) -> npt.NDArray[Any]:
    """Do what NumPy's `_frombuffer` does, with plain numbers only."""
    flat = np.frombuffer(content, dtype=dtype.dtype)
    if order == "K" and axes is not None:
        return flat.reshape(shape, order="C").transpose(axes)
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _scalar(dtype: _Dtype, content: bytes) -> Any:
    """Return one number of NumPy's."""
    return np.frombuffer(content, dtype=dtype.dtype)[0]


_KNOWN: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "dtype"): _Dtype,
    ("numpy._core.numeric", "_frombuffer"): _array,
    ("numpy.core.numeric", "_frombuffer"): _array,  # written by NumPy 1
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.multiarray", "scalar"): _scalar,
}
"""All that a state needs, each in a version that can do nothing but make values."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return one of the four known names; nothing is imported."""
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_weights(checkpoint: Path) -> Weights:
    """Return the parameters in an RLModule checkpoint; none of a module without any, such as a heuristic.

    Raises:
        RecordError: There is no state, it cannot be read, or it holds more than arrays of numbers.
    """
    file = checkpoint / STATE_FILE
    state = read_values(file)
    if not isinstance(state, dict):
        where, rule = str(file), "must map parameters to arrays"
        raise RecordError(where=where, rule=rule, got=f"{type(state).__name__}", fix=_FIX)
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray):
            rule, got = "must map parameters to arrays", f"{type(value).__name__} for {name!r}"
            raise RecordError(where=str(file), rule=rule, got=got, fix=_FIX)
    return dict(state)


def read_values(file: Path) -> Any:
    """Return what a pickle of plain values holds: numbers, texts, arrays, lists and dictionaries of them.

    Raises:
        RecordError: There is no such file, it cannot be read, or it holds more than that.
    """
    try:
        if (size := file.stat().st_size) > MAX_BYTES:
            raise RecordError(where=str(file), rule=f"must have at most {MAX_BYTES:,} bytes", got=f"{size:,}", fix=_FIX)
        with file.open("rb") as stream:
            return _Reader(stream).load()
    except OSError as error:
        rule = f"must be a file that you can read ({error.strerror})"
        raise RecordError(where=str(file), rule=rule, fix=_FIX) from error
    except _DAMAGED as error:
        why = " ".join(str(error).split())[:200]
        rule, got = "must hold arrays of numbers and nothing else", f"another file ({why})"
        raise RecordError(where=str(file), rule=rule, got=got, fix=_FIX) from error
