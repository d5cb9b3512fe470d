"""The strict reader of policies: the numbers that RLlib wrote, and nothing that a file could ask for besides."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest

from study.errors import RecordError
from study.trial.weights import STATE_FILE, read_weights
from tests.security.bombs import bomb

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "image": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    "count": np.array(7, dtype=np.int64),
    "mask": np.array([True, False]),
    "other order": np.arange(3, dtype=">f4"),
}


def put(folder, content):
    (folder / STATE_FILE).write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=5))
    return folder


def test_every_array_comes_back_as_it_was(tmp_path):
    found = read_weights(put(tmp_path, OrderedDict(ARRAYS)))
    assert list(found) == list(ARRAYS)
    for name, value in ARRAYS.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype


class Runs:
    """Unpickled, it calls something."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_bomb_is_named_and_does_not_go_off(tmp_path):
    mark = tmp_path / "mark"
    with pytest.raises(
        RecordError, match=r"numbers and nothing else, got another file \(it asks for _?io\.open\)\. Fix:"
    ):
        read_weights(put(tmp_path, bomb(mark)))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "law"),
    [
        ({"a": np.array([Runs(len, "never")], dtype=object)}, "asks for numpy._core.multiarray._reconstruct"),
        ({"a": Runs(np.dtype, "O")}, "no plain numbers: object"),
        ({"a": Runs(eval, "1")}, r"asks for builtins\.eval"),
        ({"a": Runs(getattr, OrderedDict, "fromkeys")}, r"asks for builtins\.getattr"),
        ({"a": "text"}, "must map parameters to arrays, got str for 'a'"),
        ({1: np.zeros(2)}, "must map parameters to arrays, got ndarray for 1"),
        ([1, 2], "must map parameters to arrays, got list"),
        (b"", "Ran out of input"),
        (b"no pickle", "got another file"),
        (pickle.dumps(OrderedDict(ARRAYS), protocol=5)[:200], "got another file"),
    ],
)
def test_whatever_is_no_array_of_numbers_is_refused(tmp_path, content, law):
    with pytest.raises(RecordError, match=law):
        read_weights(put(tmp_path, content))


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(RecordError, match=r"module_state\.pkl: must be a file that you can read \(No such file"):
        read_weights(tmp_path)
