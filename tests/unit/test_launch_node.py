"""What a launched node of Ray finds in its temporary folder: its own, that of the living, that of the dead."""

import contextlib
import os

import pytest

from study.errors import LaunchError
from study.launch import node
from study.launch.ports import take_block


@pytest.fixture
def block():
    with contextlib.ExitStack() as stack:

        def take(job):
            block = take_block(job, num_cpus=1)
            stack.callback(block.release)
            return block

        yield take


def folder_of(root, base):
    folder = root / f"rl-{os.getuid()}-{base}"
    folder.mkdir()
    (folder / "start.log").write_text("left by a node that was killed")
    return folder


def test_what_killed_nodes_left_is_removed_and_nothing_of_those_that_live(tmp_path, block):
    mine, other, dead = block("mine"), block("other"), block("dead")
    folders = [folder_of(tmp_path, each.base) for each in (mine, other, dead)]
    dead.release()
    foreign = [tmp_path / "rl-99999-20000", tmp_path / f"rl-{os.getuid()}-env", tmp_path / f"rl-{os.getuid()}-99999999"]
    for folder in foreign:
        folder.mkdir()
    made = node._folder(str(tmp_path), mine.base)
    assert made == folders[0]
    assert not list(made.iterdir())
    assert folders[1].exists()
    assert not folders[2].exists()
    assert all(folder.exists() for folder in foreign)


def test_somebody_elses_folder_is_refused(tmp_path, block):
    mine = block("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"rl-{os.getuid()}-{mine.base}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="must be yours"):
        node._folder(str(tmp_path), mine.base)
    assert (tmp_path / "elsewhere").exists()
