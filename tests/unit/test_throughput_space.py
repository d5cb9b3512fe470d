"""Spaces of throughput studies: which cells they name, what they are refused for; other studies stay as they were."""

import pytest

from study.errors import SpaceError
from study.space.settings import BASE_CELL, cells_of
from study.space.spec import StudySpec
from tests.spaces import read_again, throughput_spec


def test_cells_are_the_cross_products_around_the_base_each_once():
    cells = {cell.name: cell for cell in cells_of(throughput_spec())}
    assert {name: ", ".join(cell.grids) for name, cell in cells.items()} == {
        BASE_CELL: "strong, weak",  # 2 runners, batch 400: as both grids name it
        "n=1 k=1 B=400 m=100 E=4": "strong",
        "n=4 k=1 B=400 m=100 E=4": "strong",
        "n=1 k=1 B=200 m=100 E=4": "weak",
        "n=4 k=1 B=800 m=100 E=4": "weak",
        "n=1 k=1 B=400 m=100 E=1": "epochs",
        "n=1 k=1 B=400 m=100 E=8": "epochs",
        "n=4 k=1 B=400 m=100 E=1": "epochs",
        "n=4 k=1 B=400 m=100 E=8": "epochs",
    }
    assert cells["n=4 k=1 B=800 m=100 E=4"].setting["train_batch_size"] == 800
    assert "steps_per_env_runner" not in cells["n=4 k=1 B=800 m=100 E=4"].setting


def test_a_range_in_a_grid_stands_for_a_list():
    grids = {
        "strong": {"num_env_runners": {"low": 1, "high": 6}},
        "many": {"num_epochs": {"low": 2, "high": 8}},
        "learners": {"num_learners": {"low": 0, "high": 4}},
    }
    axes = throughput_spec(throughput__grids=grids).throughput.axes()
    assert axes == {
        "strong": {"num_env_runners": [1, 2, 4, 6]},
        "many": {"num_epochs": [2, 4, 8]},
        "learners": {"num_learners": [0, 1, 2, 4]},
    }


def test_a_grid_is_one_fault_and_no_minibatch_is_clipped_in_silence():
    with pytest.raises(SpaceError) as caught:
        throughput_spec(throughput__grids__bad={"num_env_runners": [500, 600, 700]})
    assert [fault.where for fault in caught.value.faults] == ["throughput.grids.bad"]
    accepted = throughput_spec(throughput__grids__few={"train_batch_size": 50, "minibatch_size": 50})
    cell = next(cell for cell in cells_of(accepted) if cell.grids == ("few",))
    assert (cell.setting["train_batch_size"], cell.setting["minibatch_size"]) == (50, 50)


def test_a_throughput_space_reads_back_what_it_writes():
    written = throughput_spec(throughput__grids__more={"train_batch_size": 700})
    assert read_again(written) == written
    assert StudySpec.model_validate(written.to_json()) == written  # as a trial's process does
    assert throughput_spec(throughput__blocks=4).digest() != throughput_spec().digest()
