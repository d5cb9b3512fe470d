"""A film of episodes: a picture for every step, and every refusal."""

from types import SimpleNamespace

import imageio_ffmpeg
import numpy as np
import pytest

from study.errors import RecordError, SpaceError
from study.evaluating.film import DRAWS, check_target, drawing, show
from study.trial.engine.envs.environments import make_env
from tests.spaces import spec


def environment(name, **kwargs):
    """Return an environment that draws."""
    asked = spec(environment__id=f"tests.environments:{name}", environment__kwargs=kwargs).environment
    return drawing(lambda: make_env(asked, render_mode=DRAWS), name)


def played(*lengths):
    """Return an evaluation whose episodes had these lengths; the real one would load torch."""
    return SimpleNamespace(
        returns=tuple(map(float, lengths)),
        seeds=tuple(range(len(lengths))),
        actions=tuple((0,) * length for length in lengths),
    )


def test_a_film_has_a_picture_for_every_step(tmp_path):
    shown = show(environment("Draws", length=9), played(9, 9, 9, 9), film=tmp_path / "new" / "film.mp4")
    reader = imageio_ffmpeg.read_frames(str(shown.file))
    meta = next(reader)
    frames = [np.frombuffer(each, np.uint8).reshape(*meta["size"][::-1], 3) for each in reader]
    assert (meta["fps"], len(frames)) == (20, 3 * 10)  # three of the four episodes
    assert frames[0].shape == (34, 52, 3)  # H.264 takes no odd sizes
    red = [int((frame[:, :, 0] > 128).sum(axis=1).mean()) for frame in frames[:10]]
    assert red == pytest.approx([2 * step for step in range(10)], abs=1)
    assert (shown.whole, shown.unlike, shown.seconds) == ((True,) * 3, (), 1.5)
    assert [each.name for each in shown.file.parent.iterdir()] == ["film.mp4"]


def test_a_long_episode_is_cut_and_a_replay_that_is_not_what_was_counted_is_found(tmp_path):
    shown = show(environment("Draws", length=10**6), played(1000, 5), film=tmp_path / "film.mp4")
    assert (shown.whole, shown.seconds) == ((False,), 20)
    assert show(environment("Forgets", length=5), played(5), film=tmp_path / "film.mp4").unlike == (0,)


def test_a_film_that_breaks_off_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        show(environment("Breaks"), played(9), film=tmp_path / "film.mp4")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="the film must be written"):
        show(environment("Draws"), played(0), film=tmp_path / "file" / "film.mp4")


@pytest.mark.parametrize(
    ("name", "got"),
    [("Plain", "TypeError: .*Fix:"), ("DrawsNothing", r"ValueError: a picture must have the shape .* it has \(\)")],
)
def test_an_environment_that_draws_nothing_is_said(name, got):
    with pytest.raises(SpaceError, match=rf"--video: '{name}' must draw with render_mode='rgb_array', got {got}"):
        environment(name)


def test_a_name_that_no_film_can_have_is_refused_before_anything_is_played(tmp_path, monkeypatch):
    (tmp_path / "folder.mp4").mkdir()
    check_target(tmp_path / "film.mp4")
    for name in ("film.gif", "folder.mp4"):
        with pytest.raises(SpaceError, match="--video: must be the name"):
            check_target(tmp_path / name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpaceError, match="--video: needs imageio-ffmpeg"):
        check_target(tmp_path / "film.mp4")
