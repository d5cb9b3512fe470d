"""`python -m study evaluate`: plays a policy, films it, tells MLflow. Imports RLlib and torch last."""

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from study.errors import Fault, SpaceError, StudyError
from study.evaluating.film import BEST, EPISODES, Facts, best_suffix, check_target
from study.evaluating.showing import Shown, show
from study.evaluating.subject import Subject, find_subject, random_subject
from study.evaluating.summary import Summary, summarise
from study.harmless import mask_credentials
from study.mirrors.mlflow_report import NOT_ASKED, asked_place, attach
from study.records.folder import StudyFolder
from study.records.trust import check_modules
from study.space.spec import StudySpec

if TYPE_CHECKING:
    from study.trial.engine.envs.probing import Spaces
    from study.trial.evaluation import EvaluationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asked for.

    Attributes:
        path: Folder of a study or of a checkpoint; of a random policy a space, or the folder of a study.
        trial: Of the study; None is its best.
        space: Of a checkpoint outside of a study.
        episodes: To play; None is the space's number.
        stochastic: Whether actions are drawn instead of the most probable ones; None is what the space says.
        random: Whether they are drawn from the action space, and there is no policy.
        seed: First seed of the episodes; None is the space's.
        video: Where the film goes; an empty text is the study's own place for it, None is no film.
        render: Whether to open a window.
        attach: Whether the MLflow that the study was started with gets the film.
        tracking_uri: MLflow that gets it instead.
    """

    path: Path
    trial: int | None = None
    space: str | None = None
    episodes: int | None = None
    stochastic: bool | None = None
    random: bool = False
    seed: int | None = None
    video: str | None = None
    render: bool = False
    attach: bool = False
    tracking_uri: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What came of it.

    Attributes:
        subject: The policy.
        spec: Its space, with the evaluation that was played.
        summary: The episodes.
        as_recorded: Whether they are those of the trial's final evaluation, return by return; None where another
            question was asked, or nothing is recorded.
        film: What was filmed, if anything.
        attached: Where MLflow has the film, or why not; empty where it is no film of the study's own.
    """

    subject: Subject
    spec: StudySpec
    summary: Summary
    as_recorded: bool | None
    film: Shown | None = None
    attached: str = ""

    @property
    def stochastic(self) -> bool:
        """Whether actions were drawn."""
        return self.subject.random or self.spec.evaluation.stochastic


def evaluate_policy(asked: Asked, *, told: Callable[[Evaluated], None] = lambda _: None) -> Evaluated:
    """Play a policy and return what it got.

    Args:
        asked: What to play, and how.
        told: Called with the numbers, before anything is filmed or shown.

    Raises:
        StudyError: There is no such policy, it is not to be trusted, or its environment does not work.
    """
    subject = _subject(asked)
    subject.check_owner()
    _check_own_code(subject, asked.path)
    if subject.study is not None:
        asked_place(subject.study, asked.tracking_uri, attach=asked.attach)  # refuse before anything is played
    spec = _as_asked(subject.spec, asked)
    film = None if asked.video is None else _target(subject, asked.video)
    if film is not None:
        check_target(film)
    from study.trial.engine.envs.frames import open_scene
    from study.trial.engine.envs.probing import probe, probe_study

    with ExitStack() as scenes:
        # A random policy has no network that must suit.
        random = subject.random
        spaces = probe(spec.evaluated_environment, subject.title) if random else probe_study(spec, subject.title)
        window = open_scene(spec.evaluated_environment, "human") if asked.render else None
        stage = open_scene(spec.evaluated_environment, "rgb_array") if film is not None else None
        for scene in (window, stage):
            if scene is not None:
                scenes.callback(scene.env.close)

        result = _play(subject, spec, spaces, keep_actions=EPISODES if window or stage else 0)
        evaluated = Evaluated(
            subject=subject,
            spec=spec,
            summary=summarise(result.returns, num_cut=result.num_cut, target=spec.environment.target),
            as_recorded=_as_recorded(subject, spec, result.returns),
        )
        told(evaluated)
        if window is not None:
            show(window, result)
        if stage is None or film is None:
            return evaluated
        shown = show(stage, result, film=film)
    return Evaluated(
        subject=subject,
        spec=spec,
        summary=evaluated.summary,
        as_recorded=evaluated.as_recorded,
        film=shown,
        attached=_keep(subject, spec, asked, shown, film),
    )


def _subject(asked: Asked) -> Subject:
    if not asked.random:
        return find_subject(asked.path, trial=asked.trial, space=asked.space)
    others = {
        "--trial": asked.trial is not None,
        "--space": asked.space is not None,
        "--stochastic/--deterministic": asked.stochastic is not None,
    }
    faults = [
        Fault(where=option, rule="belongs to a recorded policy, got it together with --random.", fix="Drop one.")
        for option, given in others.items()
        if given
    ]
    if faults:
        raise SpaceError("command line", faults)
    return random_subject(asked.path)


def _check_own_code(subject: Subject, path: Path) -> None:
    """Refuse to import a module because a folder from elsewhere names it.

    Raises:
        RecordError: The study's environment is in a module, and the study was not started here.
    """
    study = subject.study or (StudyFolder(path) if subject.random and StudyFolder(path).exists() else None)
    if study is not None:
        policy = subject.checkpoint or f"{study.checkpoints}/trial_…"
        way_out = (
            "name the policy and a space of your own: "
            f"python -m study evaluate {shlex.quote(str(policy))} --space SPACE"
        )
        check_modules(
            study.identity_file, (subject.spec.environment.id, subject.spec.evaluated_environment.id), way_out
        )


def _play(subject: Subject, spec: StudySpec, spaces: "Spaces", *, keep_actions: int) -> "EvaluationResult":
    from study.trial.evaluation import evaluate, evaluate_random

    if subject.checkpoint is None:
        return evaluate_random(spec, keep_actions=keep_actions)
    from study.trial.policy import load_policy

    policy = load_policy(subject.checkpoint, spec, setting=subject.setting, seed=subject.seed, spaces=spaces)
    return evaluate(
        policy.module,
        spec,
        normalize_actions=policy.normalize_actions,
        clip_actions=policy.clip_actions,
        keep_actions=keep_actions,
        first_episode=subject.first_episode,
    )


def _as_asked(spec: StudySpec, asked: Asked) -> StudySpec:
    """Return the space with the evaluation that a person wants."""
    changes = {"episodes": asked.episodes, "seed": asked.seed, "stochastic": asked.stochastic}
    evaluation = spec.evaluation.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )
    return spec.model_copy(update={"evaluation": evaluation})


def _as_recorded(subject: Subject, spec: StudySpec, returns: tuple[float, ...]) -> bool | None:
    if subject.recorded is None or spec.evaluation != subject.spec.evaluation:
        return None
    return returns == subject.recorded


def _target(subject: Subject, video: str) -> Path:
    if video:
        return Path(video)
    if subject.study is None or subject.trial is None:
        what = "a random policy" if subject.random else "a checkpoint outside of a study"
        law, fix = f"needs the name of a file for {what}, got none.", "Write --video film.mp4."
        raise SpaceError("command line", [Fault(where="--video", rule=law, fix=fix)])
    name = BEST if subject.chosen_among else f"trial_{subject.trial:05d}"
    return subject.study.clips / f"{name}{best_suffix()}"


def _keep(subject: Subject, spec: StudySpec, asked: Asked, shown: Shown, film: Path) -> str:
    """Write the facts of a film beside it and give it to MLflow, if it is one of the study's own."""
    study = subject.study
    if study is None or film.parent.resolve() != study.clips.resolve():
        return ""
    identity, uri = study.identity(), asked_place(study, asked.tracking_uri, attach=asked.attach)
    facts = Facts(
        file=film.name,
        study_id=identity.study_id,
        trial=subject.trial,
        environment=spec.environment.id,
        deterministic=not spec.evaluation.stochastic,
        evaluation_seed=spec.evaluation.seed,
        fps=shown.fps,
        shots=shown.shots,
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
