"""A film of episodes: a picture for every step, a poster, and every refusal."""

from types import SimpleNamespace

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from study.errors import RecordError, SpaceError
from study.evaluating.film import best_suffix, check_target, show
from study.trial.engine.envs.frames import open_scene
from tests.spaces import spec


def environment(name, **kwargs):
    return spec(environment__id=f"tests.environments:{name}", environment__kwargs=kwargs).environment


def played(*lengths, reward=1.0):
    """Return an evaluation whose episodes had these lengths; the real one would load torch."""
    return SimpleNamespace(
        returns=tuple(reward * length for length in lengths),
        seeds=tuple(range(len(lengths))),
        actions=tuple((0,) * length for length in lengths),
    )


def frames_of(path):
    """Return (pictures per second, pictures) of an .mp4 as another reader sees it."""
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta["fps"], [np.frombuffer(each, np.uint8).reshape(height, width, 3) for each in reader]


def test_a_film_has_a_picture_for_every_step_and_a_poster(tmp_path):
    file = tmp_path / "new" / "film.mp4"
    scene = open_scene(environment("Draws", length=9))
    shown = show(scene, played(9, 9, 9, 9), film=file)
    fps, frames = frames_of(file)
    assert (fps, len(frames)) == (20, 3 * 10)  # three of the four episodes
    assert frames[0].shape == (34, 52, 3)  # H.264 takes no odd sizes
    red = [int((frame[:, :, 0] > 128).sum(axis=1).mean()) for frame in frames[:10]]
    assert red == pytest.approx([2 * step for step in range(10)], abs=1)
    assert [(shot.num_frames, shot.whole, shot.seed) for shot in shown.shots] == [(10, True, n) for n in range(3)]
    assert (shown.unlike, shown.seconds) == ((), 1.5)
    poster = np.asarray(Image.open(shown.poster))
    assert poster.shape == (33, 51, 3)
    assert (poster[0, :, 0] == 255).sum() == 8  # step 4 of 9
    assert sorted(each.name for each in file.parent.iterdir()) == ["film.mp4", "film.png"]


def pictures(*frames, fps):
    """Return a scene that shows these pictures."""

    def replay(seed, actions):
        for number, frame in enumerate(frames):
            if isinstance(frame, Exception):
                raise frame
            yield frame, float(number)

    return SimpleNamespace(fps=fps, replay=replay)


def test_a_gif_leaves_pictures_out_so_that_it_keeps_its_pace(tmp_path):
    frames = [np.full((8, 8, 3), 6 * step, np.uint8) for step in range(40)]
    film = show(pictures(*frames, fps=50.0), played(39), film=tmp_path / "film.gif")
    with Image.open(film.file) as image:
        assert (image.n_frames, image.info["duration"]) == (20, 40)
        image.seek(19)
        assert np.asarray(image.convert("RGB"))[0, 0, 0] == pytest.approx(6 * 38, abs=3)


def test_a_long_episode_is_cut_and_a_replay_that_is_not_what_was_counted_is_found(tmp_path):
    scene = open_scene(environment("Draws", length=10**6))
    shown = show(scene, played(1000, 5), film=tmp_path / "film.gif")
    assert [(shot.num_frames, shot.whole) for shot in shown.shots] == [(400, False)]  # 20 s of 20 a second
    scene = open_scene(environment("Forgets", length=5))
    assert show(scene, played(5), film=tmp_path / "film.gif").unlike == (0,)


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
def test_a_film_that_breaks_off_leaves_nothing(tmp_path, name):
    frame = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(ZeroDivisionError):
        show(pictures(frame, frame, ZeroDivisionError(), fps=20.0), played(9), film=tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="the film must be written"):
        show(pictures(frame, fps=20.0), played(0), film=tmp_path / "file" / name)


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("Plain", r"--video: 'tests\.environments:Plain' must take render_mode='rgb_array', got TypeError.*Fix:"),
        ("DrawsNothing", r"--video: a picture must have the shape \(height, width, 3\) of uint8, got shape \(\).*Fix:"),
    ],
)
def test_an_environment_that_draws_nothing_is_said(name, law):
    with pytest.raises(SpaceError, match=law):
        open_scene(environment(name))


def test_envpool_draws_nothing():
    pytest.importorskip("envpool")
    where = spec(environment__id="Acrobot-v1", environment__backend="envpool").environment
    with pytest.raises(SpaceError, match=r"--video: 'Acrobot-v1' must draw, and EnvPool draws nothing"):
        open_scene(where)


def test_a_name_that_no_film_can_have_is_refused_before_anything_is_played(tmp_path, monkeypatch):
    (tmp_path / "folder.gif").mkdir()
    check_target(tmp_path / "film.mp4")
    assert best_suffix() == ".mp4"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert best_suffix() == ".gif"
    check_target(tmp_path / "film.gif")
    for name, word in (("film.avi", "end in"), ("folder.gif", "a file"), ("film.mp4", "imageio-ffmpeg")):
        with pytest.raises(SpaceError, match=f"--video: .*{word}"):
            check_target(tmp_path / name)
