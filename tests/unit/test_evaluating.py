"""`python -m study evaluate` by value: which policy, what its episodes say, what a film is, and every refusal."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from analysis.report import build, find_clip, to_html, to_markdown, write
from analysis.report.clip import MAX_BYTES
from study.adopted import loading
from study.cli import commands as cli
from study.cli.evaluate import histogram_view, print_numbers, to_json
from study.errors import RecordError, SpaceError
from study.evaluating.film import best_suffix, check_target, show
from study.evaluating.playing import Evaluated
from study.evaluating.policies import ChosenPolicy, best_policy, find_policy, random_policy
from study.evaluating.summary import histogram, suggested_floor, summarise
from study.records.clip import FilmFacts, Shot
from study.records.ledger import Ledger
from study.records.records import SettingsFrozen
from study.space.algorithms import ALGORITHMS
from study.space.space_file import read_text
from study.statistics import Estimate
from study.trial.engine.envs.frames import SMALLEST, open_scene, picture_of
from study.trial.weights import STATE_FILE
from tests import synthetic
from tests.holdup import holdup_spec
from tests.spaces import spec
from tests.unit.test_report import Outline, data, table

# --- numbers ---------------------------------------------------------------------------------------------------


def test_the_summary_is_that_of_the_textbook():
    summary = summarise([1.0, 2.0, 3.0, 10.0], num_cut=1, target=3.0)
    # Student's t of 3 degrees at 97.5 %: 3.1824; standard deviation of the sample: sqrt(50 / 3).
    half = 3.182446 * np.sqrt(50 / 3) / 2
    assert (summary.mean.value, summary.median, summary.num_cut) == (4.0, 2.5, 1)
    assert (summary.mean.low, summary.mean.high) == pytest.approx((4 - half, 4 + half), rel=1e-5)
    assert (summary.num_solved, summary.solved.value) == (2, 0.5)
    # Clopper and Pearson for 2 of 4.
    assert (summary.solved.low, summary.solved.high) == pytest.approx((0.0676, 0.9324), abs=1e-4)


def test_one_episode_has_no_interval_and_json_says_so():
    content = summarise([5.0], num_cut=0, target=None).to_json()
    assert (content["mean"]["value"], content["mean"]["low"], content["mean"]["high"]) == (5.0, None, None)
    assert content["solved"] is None
    assert content["num_solved"] is None
    json.dumps(content, allow_nan=False)


@pytest.mark.parametrize(
    "returns", [[1.0], [2.0] * 7, [-500.0, -499.0], list(range(50)), [1e-300, 2e-300], [1e9, 1e9 + 1]]
)
def test_every_episode_is_in_one_bar(returns):
    bars = histogram(returns)
    assert sum(bar.count for bar in bars) == len(returns)
    assert (bars[0].low, bars[-1].high) == (min(returns), max(returns))
    assert all(first.high == second.low for first, second in itertools.pairwise(bars))


def test_the_histogram_is_counted_by_hand():
    bars = histogram([0, 0, 0, 1, 4, 4, 8, 8])  # 1 + log2(8) = 4 bars of width 2
    assert [(bar.low, bar.high, bar.count) for bar in bars] == [(0, 2, 4), (2, 4, 0), (4, 6, 2), (6, 8, 2)]


def test_a_bar_is_as_long_as_it_counts_and_one_is_seen():
    console = Console(width=80)
    with console.capture() as capture:
        console.print(histogram_view(summarise([0.0] * 99 + [100.0], num_cut=0, target=None)))
    lengths = [line.count("█") for line in capture.get().splitlines()]
    assert (lengths[0], lengths[-1], sum(lengths[1:-1])) == (40, 1, 0)


@pytest.mark.parametrize(
    ("value", "half", "floor"),
    [
        (22.2135, 1.62, 22),
        (-499.27, 0.81, -499.3),
        (-1234.5, 80, -1230),
        (0.01432, 0.0098, 0.014),
        (-0.2, 4, 0),
        (1234567.8, 3e4, 1230000),
        (-200, 0, -200),
        (7.25, 1.0, 7),
    ],
)
def test_a_floor_has_the_digits_that_its_interval_supports(value, half, floor):
    estimate = Estimate(value=value, low=value - half, high=value + half, n=9, level=0.95, method="Student t")
    found = suggested_floor(estimate)
    assert found == pytest.approx(floor, rel=1e-12, abs=0)
    assert estimate.low <= found <= estimate.high
    assert not str(found).startswith("-0.0")


def random_play(returns, **changes):
    """Return an evaluation of a random policy as the command has it."""
    space = spec(**changes)
    subject = ChosenPolicy(title="my.yaml: random policy", checkpoint=None, spec=space)
    summary = summarise(returns, num_cut=0, target=space.environment.target)
    return Evaluated(policy=subject, spec=space, summary=summary, as_recorded=None)


def said(evaluated):
    console = Console(width=100)
    with console.capture() as capture:
        print_numbers(console, evaluated)
    return capture.get().splitlines()


def test_a_random_policy_is_called_one_and_ends_with_the_floor_for_the_space():
    evaluated = random_play([20.0, 21.0, 22.0, 25.0], environment__floor=30)
    lines = said(evaluated)
    assert lines[:2] == ["my.yaml: random policy", "4 random episodes of CartPole-v1, seed 10000"]
    assert any("drawn from the action space, uniformly" in line for line in lines)
    # Student's t of 3 degrees: 3.1824; standard deviation of the sample: sqrt(14 / 3).
    assert "The space's own floor of 30 is outside of the interval." in lines
    assert lines[-1] == "floor: 22  # random policy: 22 [18.56, 25.44] (n=4)"
    assert read_text(lines[-1], name="line").content == {"floor": 22}
    content = to_json(evaluated)
    assert (content["random"], content["deterministic"], content["checkpoint"]) == (True, False, None)
    assert content["suggested_floor"] == 22
    assert "The space's own floor of 21 is within the interval." in said(
        random_play([20.0, 21.0, 22.0, 25.0], environment__floor=21)
    )


def test_one_random_episode_is_no_floor():
    evaluated = random_play([5.0])
    assert said(evaluated)[-1] == "One episode has no interval and is no floor. More: --episodes 200"
    assert to_json(evaluated)["suggested_floor"] is None


# --- the command line ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "video", "path"),
    [
        ([], None, "."),
        (["--video"], "", "."),
        (["--video", "--episodes", "2"], "", "."),
        (["--video", "film.mp4"], "film.mp4", "."),
        (["--video=film.mp4"], "film.mp4", "."),
    ],
)
def test_a_film_may_go_without_a_name(words, video, path, monkeypatch):
    asked = []

    def catch(each, *, on_numbers):
        asked.append(each)
        raise RecordError("enough")

    monkeypatch.setattr("study.evaluating.playing.evaluate_policy", catch)
    for line in ([".", *words], [*words, "."]):
        with pytest.raises(RecordError, match="enough"):
            CliRunner().invoke(cli.app, ["evaluate", *line], catch_exceptions=False)
    assert [(each.video, str(each.path)) for each in asked] == [(video, path)] * 2


# --- which policy ----------------------------------------------------------------------------------------------


def ledger(*trials):
    """Return the state after (trial, runners, score, status) in this order."""
    made = Ledger()
    for number, runners, score, status in trials:
        made.apply(synthetic.started(number, runners=runners), 0.0)
        end = synthetic.ended(number, status)
        checkpoint = f"checkpoints/trial_{number:05d}" if status == "finished" else None
        made.apply(replace(end, summary={**end.summary, "score": score}, checkpoint=checkpoint), 1.0)
    return made


def test_the_best_policy_is_the_best_of_all_scales_and_the_larger_on_a_tie():
    some = ledger((0, 1, 0.5, "finished"), (1, 2, 0.9, "finished"), (2, 4, 0.9, "finished"), (3, 4, None, "failed"))
    best, among = best_policy(spec(), some)
    assert (best.trial, among) == (2, 3)
    assert best_policy(spec(), ledger((0, 1, None, "failed"))) == (None, 0)


def test_without_scores_the_best_policy_has_the_highest_return():
    some = Ledger()
    for number, runners, final in ((0, 1, -90.0), (1, 4, -200.0)):
        some.apply(synthetic.started(number, runners=runners), 0.0)
        summary = {**synthetic.ended(number).summary, "score": None, "final_return": final}
        some.apply(replace(synthetic.ended(number), summary=summary, checkpoint="there"), 1.0)
    assert best_policy(spec(), some)[0].trial == 0


def test_the_best_policy_of_a_hold_up_study_is_one_of_the_winner_s_confirmations():
    holdup = holdup_spec()
    target = holdup.holdup.target_scale
    some = ledger(
        (0, target, 1.1, "finished"),
        (1, target, 0.8, "finished"),
        (2, target, 0.9, "finished"),
        (3, 1, 1.0, "finished"),
    )
    for row, stage, digest in zip(some.rows.values(), ("search", "confirm", "confirm", "confirm"), "aabb", strict=True):
        row.stage, row.digest = stage, digest
    assert best_policy(holdup, some)[0].trial == 0  # nothing is frozen yet
    some.apply(SettingsFrozen(winner="b", settings={"a": {}, "b": {}}), 2.0)
    best, among = best_policy(holdup, some)
    assert (best.trial, among) == (2, 1)


@pytest.fixture
def folder(tmp_path):
    made = synthetic.make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")
    synthetic.append(made, synthetic.opened(), *synthetic.whole_trial(0), *synthetic.whole_trial(1, "failed"))
    return made


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"trial": 1}, "no-policy"),
        ({"trial": 7}, "no-such-trial"),
        ({"space": "x"}, "own-space"),
    ],
)
def test_an_option_that_does_not_fit_the_study_is_refused(folder, options, code):
    with pytest.raises((RecordError, SpaceError)) as caught:
        find_policy(folder.path, **options)
    assert codes(caught.value) == [code]


@pytest.mark.parametrize("place", ["nowhere", "."])
def test_what_is_no_study_is_refused(tmp_path, place):
    with pytest.raises(RecordError) as caught:
        find_policy(tmp_path / place)
    assert (caught.value.where, caught.value.code) == (str(tmp_path / place), "not-evaluable")


def codes(error):
    """Return the codes of an error, of a space error those of its faults."""
    return [each.code for each in getattr(error, "faults", [error])]


def test_a_checkpoint_alone_needs_its_space(tmp_path):
    (tmp_path / "module_state.pkl").write_bytes(b"")
    for options, code in (({}, "no-space"), ({"trial": 3, "space": "quickstart.yaml"}, "trial-of-checkpoint")):
        with pytest.raises(SpaceError) as caught:
            find_policy(tmp_path, **options)
        assert codes(caught.value) == [code]
    policy = find_policy(tmp_path, space="quickstart.yaml")
    assert (policy.spec.environment.id, policy.setting["num_env_runners"]) == ("CartPole-v1", 1)


# --- a random policy -------------------------------------------------------------------------------------------

UNSCORED = """
environment: {id: CartPole-v1}
parameters: {num_env_runners: [1, 2]}
budget: {env_steps: 2000}
search: {num_trials: 2}
"""


def test_a_random_policy_plays_in_a_space_or_in_a_study_s(folder):
    in_study, in_space = random_policy(folder.path), random_policy(Path("quickstart.yaml"))
    assert (in_study.title, in_study.random, in_study.spec) == ("demo: random policy", True, spec())
    assert (in_space.title, in_space.spec.environment.id) == ("quickstart.yaml: random policy", "CartPole-v1")
    in_study.check_owner()  # nothing of a random policy can be another's


def test_a_floor_may_be_measured_before_a_space_has_one(tmp_path):
    file = tmp_path / "new.yaml"
    file.write_text(UNSCORED)
    assert random_policy(file).spec.environment.floor is None
    file.write_text(UNSCORED.replace("CartPole-v1", "CartPole-v1, floor: 9, reference: 3, target: 5"))
    assert random_policy(file).spec.environment.floor == 9
    file.write_text(
        UNSCORED.replace("CartPole-v1", "CartPole-v1, floor: much").replace("num_trials: 2", "num_trials: 0")
    )
    with pytest.raises(SpaceError) as caught:
        random_policy(file)
    assert {fault.where for fault in caught.value.faults} == {"environment.floor", "search.num_trials"}


def test_the_script_of_a_space_has_as_long_as_that_of_a_study(tmp_path, monkeypatch):
    limits = []

    def read(script, *, timeout_s, **_):
        limits.append(timeout_s)
        raise SpaceError.of(script, where="config", rule="is slow", fix="", code="slow")

    monkeypatch.setattr(loading, "read_script", read)
    file = tmp_path / "new.yaml"
    file.write_text(f"{UNSCORED}config: my_train.py\n")
    (tmp_path / STATE_FILE).touch()
    for choose in (lambda: random_policy(file), lambda: find_policy(tmp_path, space=str(file))):
        with pytest.raises(SpaceError):
            choose()
    assert limits == [loading.PATIENCE_S] * 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("{study} --random --trial 0", ["random"]),
        ("quickstart.yaml --random --stochastic --space quickstart.yaml", ["random", "random"]),
        ("quickstart.yaml --random --video", ["no-film-name"]),
        ("{checkpoint} --random", ["not-evaluable"]),
        ("{folder} --random", ["not-evaluable"]),
        ("quickstart.yaml", ["not-evaluable"]),
        ("", ["no-study"]),
    ],
)
def test_what_does_not_go_with_a_random_policy_is_refused(words, expected, folder, tmp_path):
    checkpoint = tmp_path / "mine"
    checkpoint.mkdir()
    (checkpoint / "module_state.pkl").write_bytes(b"")
    typed = words.format(study=folder.path, checkpoint=checkpoint, folder=tmp_path).split()
    with pytest.raises((RecordError, SpaceError)) as caught:
        CliRunner().invoke(cli.app, ["evaluate", *typed], catch_exceptions=False)
    assert codes(caught.value) == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_checkpoint_alone_has_a_setting_of_its_space_s_algorithm(algorithm, tmp_path):
    (tmp_path / "module_state.pkl").write_bytes(b"")
    (tmp_path / "space.yaml").write_text(
        f"environment: {{id: CartPole-v1, floor: 0, reference: 500, target: 450}}\nalgorithm: {algorithm}\n"
        "parameters: {num_env_runners: [2, 4], lr: {low: 1.0e-4, high: 1.0e-3}}\n"
        "budget: {env_steps: 10000}\nsearch: {num_trials: 2}\n"
    )
    subject = find_policy(tmp_path, space=str(tmp_path / "space.yaml"))
    assert tuple(subject.setting) == subject.spec.parameter_names


# --- pictures --------------------------------------------------------------------------------------------------


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
    scene = open_scene(environment("Draws", length=9), "rgb_array")
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


def test_a_film_says_whose_episode_it_is_and_marks_its_end(tmp_path):
    frames = [np.full((200, 300, 3), 200, np.uint8)] * 6
    shown = show(pictures(*frames, fps=10.0), played(5), film=tmp_path / "film.mp4", title="trial 3  4 runners")
    _, seen = frames_of(shown.file)
    assert len(seen) == shown.num_frames == 6 + 8  # the end stands still for 0.8 s
    assert shown.shots[0].num_frames == 14
    assert shown.shots[0].whole
    assert seen[0].shape == (200 + 34, 300, 3)  # a strip below the picture, which stays whole
    assert np.allclose(seen[0][:195], 200, atol=8)
    strips = [frame[201:] for frame in seen]
    assert all((strip > 180).any() for strip in strips), "words"
    assert [strip[-2, -2, 2] > 100 for strip in strips] == [False] * 5 + [True] * 9, "the end has another colour"
    assert any((strips[0] != strip).any() for strip in strips[1:5]), "the step counts"


def test_the_best_episode_stands_beside_the_worst(tmp_path):
    short, long = ([np.full((200, 300, 3), grey, np.uint8)] * n for grey, n in ((50, 3), (200, 6)))
    result = SimpleNamespace(returns=(1.0, 9.0, 4.0), seeds=(0, 1, 2), actions=((0,) * 2, (0,) * 5, (0,) * 9))
    best, worst = pictures(*long, fps=10.0), pictures(*short, fps=10.0)
    shown = show(best, result, film=tmp_path / "film.mp4", second=worst)
    _, seen = frames_of(shown.file)
    assert (shown.beside, [shot.episode for shot in shown.shots]) == (True, [1, 0])
    assert [shot.num_frames for shot in shown.shots] == [6 + 8, 3 + 8]
    assert len(seen) == 14  # the shorter one waits at its end
    assert seen[0].shape == (234, 600, 3)
    assert (int(seen[-1][100, 100, 0]) > 150, int(seen[-1][100, 500, 0]) > 150) == (True, False)


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


def test_a_long_episode_is_cut_and_said_to_be(tmp_path):
    scene = open_scene(environment("Draws", length=10**6), "rgb_array")
    shown = show(scene, played(1000, 5), film=tmp_path / "film.gif")
    assert [(shot.num_frames, shot.whole) for shot in shown.shots] == [(400, False)]  # 20 s of 20 a second


def test_a_replay_that_is_not_what_was_counted_is_found(tmp_path):
    scene = open_scene(environment("Forgets", length=5), "rgb_array")
    assert show(scene, played(5), film=tmp_path / "film.gif").unlike == (0,)


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
def test_a_film_that_breaks_off_leaves_nothing(tmp_path, name):
    frame = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(ZeroDivisionError):
        show(pictures(frame, frame, ZeroDivisionError(), fps=20.0), played(9), film=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError) as caught:
        show(pictures(np.zeros((8, 8, 3), np.uint8), fps=20.0), played(0), film=tmp_path / "file" / "film.gif")
    assert caught.value.code == "film"


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("Plain", r"--video: 'tests\.environments:Plain' must take render_mode='rgb_array', got TypeError.*Fix:"),
        ("DrawsNothing", r"--video: a picture must have the shape \(height, width, 3\) of uint8, got shape \(\).*Fix:"),
    ],
)
def test_an_environment_that_draws_nothing_is_said(name, law):
    with pytest.raises(SpaceError, match=law):
        open_scene(environment(name), "rgb_array")


def test_a_window_needs_a_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SpaceError, match=r"--render: a window needs a display, got none .*Fix: Use --video"):
        open_scene(spec().environment, "human")


def test_a_window_shows_the_same_episodes(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    scene = open_scene(spec().environment, "human")
    shown = show(scene, played(3))
    scene.env.close()
    assert (shown.file, shown.poster, [shot.num_frames for shot in shown.shots]) == (None, None, [4])
    assert shown.unlike == ()


def test_observations_that_are_images_are_seen_as_the_policy_sees_them():
    observation = np.zeros((84, 84, 4), np.float32)
    observation[0, 0, 3] = 1.0  # the newest of four grey pictures
    picture = picture_of(observation)
    assert picture.shape == (84 * 4, 84 * 4, 3)
    assert picture.shape[0] >= SMALLEST
    assert (picture[:4, :4] == 255).all()
    assert picture.sum() == 16 * 3 * 255
    assert picture_of(np.ones((64, 64, 3), np.float32))[0, 0].tolist() == [255, 255, 255]


def test_envpool_without_images_is_said():
    pytest.importorskip("envpool")
    where = spec(environment__id="Acrobot-v1", environment__backend="envpool").environment
    with pytest.raises(
        SpaceError, match=r"--video: EnvPool draws nothing, so observations must be images, got shape \(6,\)"
    ):
        open_scene(where, "rgb_array")


def test_a_name_that_no_film_can_have_is_refused_before_anything_is_played(tmp_path, monkeypatch):
    (tmp_path / "folder.gif").mkdir()
    check_target(tmp_path / "film.mp4")
    assert best_suffix() == ".mp4"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert best_suffix() == ".gif"
    check_target(tmp_path / "film.gif")
    for name, word in (("film.avi", "end in"), ("folder.gif", "a file"), ("film.mp4", "imageio-ffmpeg")):
        with pytest.raises(SpaceError) as caught:
            check_target(tmp_path / name)
        (fault,) = caught.value.faults
        assert (fault.where, fault.code, word in fault.rule) == ("--video", "film-name", True)


# --- the film in the report ------------------------------------------------------------------------------------

SHOT = Shot(episode=0, seed=5, episode_return=-74.0, num_steps=75, num_frames=76, whole=True)
FACTS = FilmFacts(
    file="best.gif",
    study_id="abc",
    trial=7,
    environment="Acrobot-v1",
    deterministic=True,
    evaluation_seed=10_000,
    fps=15.0,
    shots=(SHOT, replace(SHOT, episode=1, episode_return=-91.0, whole=False)),
)


def put_clip(folder, facts=FACTS, film=b"GIF89a..."):
    clips = folder / "clips"
    clips.mkdir()
    (clips / facts.file).write_bytes(film)
    facts.write(clips / facts.file)
    return folder


def test_the_page_holds_the_film_and_asks_for_nothing(tmp_path):
    clip = find_clip(put_clip(tmp_path), "abc")
    assert clip.caption == (
        "The first 2 greedy episodes of trial 7 in Acrobot-v1, evaluation seed 10000; returns -74 and -91. The last "
        "one is not shown to its end. Single episodes: an impression, no result."
    )
    report = build(data(), [table("T8")], [], clip=clip)
    outline = Outline(to_html(report))
    assert outline.faults == []
    assert [each[:22] for each in outline.asks if not each.startswith("#")] == ["data:image/gif;base64,"]
    assert f"![{clip.caption}](figures/clip.gif)" in to_markdown(report)
    assert {file.name for file in write(report, tmp_path / "out", ["md"])} >= {"clip.gif"}
    write(build(data(), [table("T8")], []), tmp_path / "out", ["md"])
    assert not (tmp_path / "out" / "figures" / "clip.gif").exists()


def test_a_film_with_a_button_has_its_poster(tmp_path):
    put_clip(tmp_path, replace(FACTS, file="best.mp4"), b"\0\0\0\x20ftypisom")
    (tmp_path / "clips" / "best.png").write_bytes(b"\x89PNG")
    page = to_html(build(data(), [table("T8")], [], clip=find_clip(tmp_path, "abc")))
    assert 'poster="data:image/png;base64,' in page
    assert 'src="data:video/mp4;base64,' in page
    assert "media-src data:" in page
    assert " autoplay" not in page


@pytest.mark.parametrize(
    ("facts", "film", "why"),
    [
        (FACTS, b"<svg onload=alert(1)>", "must be a .gif, got another content"),
        (FACTS, b"GIF8" + b"\0" * MAX_BYTES, "must have at most 2 MB"),
        (replace(FACTS, study_id="other"), b"GIF8", "must show this study, got other"),
    ],
)
def test_what_is_no_film_of_this_study_is_left_out_and_said(tmp_path, facts, film, why):
    clip = find_clip(put_clip(tmp_path, facts, film), "abc")
    assert why in clip.missing
    report = build(data(), [table("T8")], [], clip=clip)
    assert why in to_html(report)
    assert "data:image/gif" not in to_html(report)
    assert why in to_markdown(report)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"file": "../x.gif"}', "[" * 10**5, json.dumps({"shots": [{"episode": 1}], "file": "x.gif"})],
)
def test_damaged_facts_are_a_sentence(tmp_path, text):
    put_clip(tmp_path)
    (tmp_path / "clips" / "best.json").write_text(text)
    assert "must say what a film shows, got a damaged file" in find_clip(tmp_path, "abc").missing


def test_facts_lead_to_no_file_elsewhere(tmp_path):
    put_clip(tmp_path)
    file = tmp_path / "clips" / "best.json"
    file.write_text(file.read_text().replace('"best.gif"', '"../../secret.gif"'))
    assert "no film: '../../secret.gif'" in find_clip(tmp_path, "abc").missing


def test_a_study_without_a_film_has_none(tmp_path):
    assert find_clip(tmp_path, "abc") is None
