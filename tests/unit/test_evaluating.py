"""`python -m study evaluate` by value: which policy, what its episodes say, and every refusal."""

import json
import re

import imageio_ffmpeg
import numpy as np
import pytest
from typer.testing import CliRunner

from study.cli import commands as cli
from study.cli.display import evaluated_text
from study.errors import RecordError, SpaceError
from study.evaluating.playing import ChosenPolicy, Evaluated, best_policy, filming, random_policy
from study.records.ledger import Ledger
from study.records.records import SettingsFrozen
from study.space.parsing import read_text
from study.trial.engine.envs.environments import make_env
from tests import synthetic
from tests.holdup import holdup_spec
from tests.spaces import spec
from tests.values import replace

# --- numbers ---------------------------------------------------------------------------------------------------


def test_a_random_policy_is_called_one_and_gives_the_floor_for_the_space_by_the_textbook():
    space = spec(environment__floor=10, environment__target=22)
    subject = ChosenPolicy(title="my.yaml: random policy", spec=space)
    evaluated = Evaluated(policy=subject, spec=space, returns=(20.0, 21.0, 22.0, 25.0), num_cut=0)
    content = json.loads(json.dumps(evaluated.to_json(), allow_nan=False))
    assert (content["random"], content["deterministic"], content["checkpoint"]) == (True, False, None)
    assert (content["suggested_floor"], evaluated.num_solved, evaluated.solved.value) == (22, 2, 0.5)
    # Clopper and Pearson for 2 of 4; Student's t of 3 degrees: 3.1824; standard deviation of the sample: sqrt(14 / 3).
    assert (evaluated.solved.low, evaluated.solved.high) == pytest.approx((0.0676, 0.9324), abs=1e-4)
    last = evaluated_text(evaluated).splitlines()[-1]
    assert last == "floor: 22  # random policy: 22.0 [18.6, 25.4], 95 % interval over 4 episodes"
    assert read_text(last, name="line").content == {"floor": 22}


# --- which policy ----------------------------------------------------------------------------------------------


def ledger(*trials):
    """Return the state after (trial, runners, score, status, steps to the target) in this order."""
    made = Ledger()
    for number, runners, score, status, *steps in trials:
        made.apply(synthetic.started(number, runners=runners), 0.0)
        end = synthetic.ended(number, status)
        checkpoint = f"checkpoints/trial_{number:05d}" if status == "finished" else None
        summary = {**end.summary, "score": score, "env_steps_to_target": next(iter(steps), None)}
        made.apply(replace(end, summary=summary, checkpoint=checkpoint), 1.0)
    return made


def test_the_best_policy_is_that_of_the_answer():
    some = ledger((0, 1, 0.5, "finished", 100), (1, 2, 0.9, "finished", 300), (2, 4, 0.9, "finished", 200))
    best, among = best_policy(spec(), some)
    assert (best.trial, among) == (2, 3)  # with equal scores the one that reached the target first
    assert best_policy(spec(), ledger((0, 1, None, "failed"))) == (None, 0)


def test_the_best_policy_of_a_hold_up_study_is_one_of_the_winner_s_confirmations():
    holdup = holdup_spec()
    target = holdup.holdup.target_scale
    scores = [(target, 1.1), (target, 0.8), (target, 0.9), (1, 1.0)]
    some = ledger(*((number, *each, "finished") for number, each in enumerate(scores)))
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


# --- a random policy -------------------------------------------------------------------------------------------

UNSCORED = "environment: {id: CartPole-v1}\nparameters: {num_env_runners: [1, 2]}\nbudget: {env_steps: 2000}\n"


def test_a_random_policy_plays_in_a_space_that_needs_no_floor_or_in_a_study_s(folder, tmp_path):
    in_study = random_policy(folder.path)
    assert (in_study.title, in_study.row, in_study.spec) == ("demo: random policy", None, spec())
    (file := tmp_path / "new.yaml").write_text(f"{UNSCORED}search: {{num_trials: 2}}\nevaluation: {{episodes: 70}}\n")

    def told(*words):
        words = ("evaluate", str(file), "--random", "--json", *words)
        return json.loads(CliRunner().invoke(cli.app, words, catch_exceptions=False).stdout)

    found, few = told(), told("--episodes", "9")
    assert (found["n"], found["random"], found["checkpoint"], found["seed"]) == (70, True, None, 10_000)
    assert few["returns"] == found["returns"][:9]
    assert told("--episodes", "9", "--seed", "3")["returns"] != few["returns"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("{study} --random --trial 0", "--trial, --stochastic/--deterministic: belong to a recorded policy"),
        ("quickstart.yaml --random --stochastic", "--stochastic/--deterministic: belong to"),
        ("{folder} --random", "SPACE: no such file"),
        ("{folder}", "{folder}: must be the folder of a study"),
        ("{study} --trial 1", "--trial: must be a trial of"),
    ],
)
def test_what_does_not_go_together_is_refused(words, expected, folder, tmp_path):
    places = {"study": folder.path, "folder": tmp_path}
    with pytest.raises((RecordError, SpaceError), match=re.escape(expected.format(**places))):
        CliRunner().invoke(cli.app, ["evaluate", *words.format(**places).split()], catch_exceptions=False)


# --- a film ----------------------------------------------------------------------------------------------------


def film(path, *, steps=0, **kwargs):
    """Film an environment from one reset on, for so many steps, and return the frames and their rate."""
    env = make_env(spec(environment__id="tests.environments:Draws", environment__kwargs=kwargs).environment)
    with filming(path) as camera:
        filmed = camera(env)
        filmed.reset(seed=0)
        for _ in range(steps):
            filmed.step(0)
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    return [np.frombuffer(each, np.uint8).reshape(*meta["size"][::-1], 3) for each in reader], meta["fps"]


def test_a_film_has_a_picture_for_every_step_and_ends_after_twenty_seconds(tmp_path):
    frames, fps = film(tmp_path / "new" / "film.mp4", steps=9)
    assert (fps, len(frames), frames[0].shape) == (20, 10, (34, 52, 3))  # H.264 takes no odd sizes
    red = [int((frame[:, :, 0] > 128).sum(axis=1).mean()) for frame in frames]
    assert red == pytest.approx([2 * step for step in range(10)], abs=1)
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["film.mp4"]
    assert len(film(tmp_path / "long.mp4", steps=450, length=10**6)[0]) == 20 * 20


def test_a_film_that_cannot_be_made_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    picture = np.zeros((32, 48, 3), np.uint8)
    breaks, nothing = (lambda env: picture if env.steps < 3 else 1 / 0), (lambda env: None)
    for render, error in ((breaks, ZeroDivisionError), (nothing, SpaceError)):
        monkeypatch.setattr("tests.environments.Draws.render", render)
        with pytest.raises(error):
            film(tmp_path / "film.mp4", steps=9)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="the film must be written"):
        film(tmp_path / "file" / "film.mp4")
    with pytest.raises(SpaceError, match="--video: must be the name"):
        film(tmp_path / "film.gif")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpaceError, match="--video: needs imageio-ffmpeg"):
        film(tmp_path / "film.mp4")
