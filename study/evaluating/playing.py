"""`python -m study evaluate`: plays a policy, films it, tells MLflow. Imports RLlib and torch last."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from study.errors import Fault, SpaceError, StudyError
from study.evaluating.film import EPISODES, Film, best_suffix, check_target, show
from study.evaluating.policies import ChosenPolicy, find_policy, random_policy
from study.evaluating.scripts import load_script, script_scene
from study.evaluating.summary import Summary, summarise
from study.harmless import mask_credentials
from study.mirrors.mlflow_report import NOT_ASKED, asked_place, attach
from study.options import wrong_option
from study.records.clip import BEST, FilmFacts
from study.records.folder import StudyFolder
from study.records.trust import check_modules
from study.space.spec import StudySpec
from study.text import count

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Mode, Scene
    from study.trial.evaluation import EvaluationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What a person asked for: the options of the command `evaluate` under their names, whose help describes them."""

    path: Path
    trial: int | None = None
    space: str | None = None
    episodes: int | None = None
    stochastic: bool | None = None
    random: bool = False
    seed: int | None = None
    video: str | None = None
    best_and_worst: bool = False
    render: bool = False
    attach: bool = False
    tracking_uri: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What came of it.

    Attributes:
        policy: The policy.
        spec: Its space, with the evaluation that was played.
        summary: The episodes.
        as_recorded: Whether they are those of the trial's final evaluation, return by return; None where another
            question was asked, or nothing is recorded.
        film: What was filmed, if anything.
        attached: Where MLflow has the film, or why not; empty where it is no film of the study's own.
    """

    policy: ChosenPolicy
    spec: StudySpec
    summary: Summary
    as_recorded: bool | None
    film: Film | None = None
    attached: str = ""

    @property
    def stochastic(self) -> bool:
        """Whether actions were drawn."""
        return self.policy.random or self.spec.evaluation.stochastic


def evaluate_policy(
    request: EvaluationRequest, *, on_numbers: Callable[[Evaluated], None] = lambda _: None
) -> Evaluated:
    """Play a policy and return what it got.

    Args:
        request: What to play, and how.
        on_numbers: Called with the numbers, before anything is filmed or shown.

    Raises:
        StudyError: There is no such policy, it is not to be trusted, or its environment does not work.
    """
    policy = _policy_of(request)
    policy.check_owner()
    _check_own_code(policy, request.path)
    if policy.study is not None:
        asked_place(policy.study, request.tracking_uri, attach=request.attach)  # refuse before anything is played
    spec = _as_requested(policy.spec, request)
    if request.best_and_worst and request.video is None:
        fix = "Add --video."
        raise wrong_option("--best-and-worst", "belongs to a film", got="no --video", fix=fix, code="no-film")
    film = None if request.video is None else _target(policy, request.video)
    if film is not None:
        check_target(film)
    player = _Player(policy) if spec.script is None else _ScriptPlayer(policy)
    with ExitStack() as scenes:

        def scene(mode: "Mode", *, wanted: bool) -> "Scene | None":
            return scenes.enter_context(player.scene(spec, mode)) if wanted else None

        player.prepare(spec)
        window = scene("human", wanted=request.render)
        stage = scene("rgb_array", wanted=film is not None)
        second = scene("rgb_array", wanted=film is not None and request.best_and_worst)
        seen = spec.evaluation.episodes if second else EPISODES if window or stage else 0
        result = player.play(spec, keep_actions=seen)
        evaluated = Evaluated(
            policy=policy,
            spec=spec,
            summary=summarise(result.returns, num_cut=result.num_cut, target=spec.environment.target),
            as_recorded=_as_recorded(policy, spec, result.returns),
        )
        on_numbers(evaluated)
        if window is not None:
            show(window, result)
        if stage is None or film is None:
            return evaluated
        shown = show(stage, result, film=film, title=_short_title(policy), second=second)
    return replace(evaluated, film=shown, attached=_keep(policy, spec, request, shown, film))


def _policy_of(request: EvaluationRequest) -> ChosenPolicy:
    if not request.random:
        return find_policy(request.path, trial=request.trial, space=request.space)
    others = {
        "--trial": request.trial is not None,
        "--space": request.space is not None,
        "--stochastic/--deterministic": request.stochastic is not None,
    }
    faults = [
        Fault(where=option, rule="belongs to a recorded policy", got="--random too", fix="Drop one.", code="random")
        for option, given in others.items()
        if given
    ]
    if faults:
        raise SpaceError("command line", faults)
    return random_policy(request.path)


def _check_own_code(policy: ChosenPolicy, path: Path) -> None:
    """Refuse to import a module because a folder from elsewhere names it.

    Raises:
        RecordError: The study's environment is in a module, and the study was not started here.
    """
    study = policy.study or (StudyFolder(path) if policy.random and StudyFolder(path).exists() else None)
    if study is not None:
        folder = shlex.quote(str(policy.checkpoint or f"{study.checkpoints}/trial_…"))
        way_out = f"name the policy and a space of your own: python -m study evaluate {folder} --space SPACE"
        check_modules(study.identity_file, policy.spec.own_code, way_out)


class _Player:
    """Plays a policy of a space with an environment of its own."""

    def __init__(self, policy: ChosenPolicy) -> None:
        self._policy = policy

    def prepare(self, spec: StudySpec) -> None:
        """Try the environment."""
        from study.trial.engine.envs.probing import probe, probe_study

        title = self._policy.title
        # A random policy has no network that must suit.
        self._spaces = probe(spec.evaluated_environment, title) if self._policy.random else probe_study(spec, title)

    def scene(self, spec: StudySpec, mode: "Mode") -> "AbstractContextManager[Scene]":
        """Return the environment, ready to draw."""
        return _scene(spec, mode)

    def play(self, spec: StudySpec, *, keep_actions: int) -> "EvaluationResult":
        """Play the episodes."""
        from study.trial.evaluation import evaluate, evaluate_random

        policy = self._policy
        if policy.checkpoint is None:
            return evaluate_random(spec, keep_actions=keep_actions)
        from study.trial.policy import load_policy

        loaded = load_policy(policy.checkpoint, spec, setting=policy.setting, seed=policy.seed, spaces=self._spaces)
        return evaluate(
            loaded.module,
            spec,
            normalize_actions=loaded.normalize_actions,
            clip_actions=loaded.clip_actions,
            keep_actions=keep_actions,
            first_episode=policy.first_episode,
        )


@contextmanager
def _scene(spec: StudySpec, mode: "Mode") -> "Iterator[Scene]":
    from study.trial.engine.envs.frames import open_scene

    scene = open_scene(spec.evaluated_environment, mode)
    try:
        yield scene
    finally:
        scene.env.close()


class _ScriptPlayer(_Player):
    """Plays a policy of a person's own script."""

    def prepare(self, spec: StudySpec) -> None:
        """Run the script."""
        self._config = load_script(self._policy)

    def scene(self, spec: StudySpec, mode: "Mode") -> "AbstractContextManager[Scene]":
        """Return the environment, ready to draw."""
        return script_scene(self._config, spec, mode)

    def play(self, spec: StudySpec, *, keep_actions: int) -> "EvaluationResult":
        """Play the episodes."""
        from study.trial.script_policy import play_checkpoint

        number = self._policy.first_episode
        return play_checkpoint(
            self._config, self._policy.checkpoint, spec, keep_actions=keep_actions, first_episode=number
        )


def _as_requested(spec: StudySpec, request: EvaluationRequest) -> StudySpec:
    """Return the space with the evaluation that a person wants."""
    changes = {"episodes": request.episodes, "seed": request.seed, "stochastic": request.stochastic}
    evaluation = spec.evaluation.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )
    return spec.model_copy(update={"evaluation": evaluation})


def _as_recorded(policy: ChosenPolicy, spec: StudySpec, returns: tuple[float, ...]) -> bool | None:
    if policy.recorded is None or spec.evaluation != policy.spec.evaluation:
        return None
    return returns == policy.recorded


def _short_title(policy: ChosenPolicy) -> str:
    """Return whose policy it is, in the few words that a picture has room for."""
    if policy.trial is None:
        return "random policy" if policy.random else "checkpoint"
    return f"trial {policy.trial} · {count(policy.num_env_runners, 'runner')}"


def _target(policy: ChosenPolicy, video: str) -> Path:
    if video:
        return Path(video)
    if policy.study is None or policy.trial is None:
        what = "a random policy" if policy.random else "a checkpoint outside of a study"
        rule = f"needs the name of a file for {what}"
        raise wrong_option("--video", rule, got="none", fix="Write --video film.mp4.", code="no-film-name")
    name = BEST if policy.chosen_among else f"trial_{policy.trial:05d}"
    return policy.study.clips / f"{name}{best_suffix()}"


def _keep(policy: ChosenPolicy, spec: StudySpec, request: EvaluationRequest, shown: Film, film: Path) -> str:
    """Write the facts of a film beside it and give it to MLflow, if it is one of the study's own."""
    study = policy.study
    if study is None or film.parent.resolve() != study.clips.resolve():
        return ""
    identity, uri = study.identity(), asked_place(study, request.tracking_uri, attach=request.attach)
    facts = FilmFacts(
        file=film.name,
        study_id=identity.study_id,
        trial=policy.trial,
        environment=spec.environment.id,
        deterministic=not spec.evaluation.stochastic,
        evaluation_seed=spec.evaluation.seed,
        fps=shown.fps,
        shots=shown.shots,
        beside=shown.beside,
    )
    files = [film, *([shown.poster] if shown.poster else []), facts.write(film)]
    if uri is None:
        return NOT_ASKED
    folder = study.clips.name
    try:
        run_id = attach(files, film.parent, tracking_uri=uri, name=identity.name, study_id=identity.study_id, to=folder)
    except StudyError as error:
        return f"Not attached to MLflow: {error}"
    return f"Attached to MLflow: {folder}/ of run {run_id} at {mask_credentials(uri)}"
