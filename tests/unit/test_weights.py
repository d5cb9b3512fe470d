"""The file of a policy: every value comes back as it was, and no file can ask for anything besides."""

from collections import OrderedDict

import msgspec
import numpy as np
import pytest

from study.errors import RecordError
from study.trial.policy import STATE_FILE, packed_state, read_state
from tests.security.bombs import bomb

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "image": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    "count": np.array(7, dtype=np.int64),
    "mask": np.array([True, False]),
}


def put(folder, content):
    (folder / STATE_FILE).write_bytes(content)
    return folder


def state(**modules):
    return packed_state({"rl_module": {"default_policy": modules}})


def test_every_value_comes_back_as_it_was(tmp_path):
    connectors = {"filter": {0: {"seen": np.int64(3), "mean": np.array([0.5]), "none": None, "name": "x"}}}
    read = read_state(put(tmp_path, packed_state({"rl_module": {"a": OrderedDict(ARRAYS)}, "connectors": connectors})))
    assert list(read["rl_module"]["a"]) == list(ARRAYS)
    for name, value in ARRAYS.items():
        np.testing.assert_array_equal(read["rl_module"]["a"][name], value)
        assert read["rl_module"]["a"][name].dtype == value.dtype
    assert read["connectors"] == connectors


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (packed_state({"rl_module": {}, "connector": {"own": object()}}), "state has a object, which is no value"),
        (state(a="text"), "must hold the numbers of a policy, got another file .no arrays of numbers"),
        (msgspec.msgpack.encode([1, 2]), "must hold the numbers"),
        (b"\x81\xa1a" * 100_000, "must hold the numbers"),
        (state(**ARRAYS)[:200], "must hold the numbers"),
    ],
)
def test_whatever_is_no_state_of_numbers_is_refused(tmp_path, content, rule):
    with pytest.raises(RecordError, match=rule):
        read_state(put(tmp_path, content))


def test_a_bomb_does_not_go_off(tmp_path):
    mark = tmp_path / "mark"
    inside = msgspec.msgpack.Ext(1, bomb(mark))
    for content in (bomb(mark), msgspec.msgpack.encode({"rl_module": {"a": {"b": inside}}})):
        with pytest.raises(RecordError, match="must hold the numbers of a policy"):
            read_state(put(tmp_path, content))
    assert not mark.exists()
