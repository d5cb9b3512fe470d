"""`python -m study evaluate`: plays a policy, films it. Imports RLlib and torch last."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.adopted.loading import adopted_by
from study.adopted.reading import Adopted
from study.errors import Fault, RecordError, SpaceError
from study.evaluating.film import EPISODES, Film, best_suffix, check_target, show
from study.evaluating.policies import ChosenPolicy, find_policy, random_policy
from study.evaluating.summary import Summary, summarise
from study.options import say_that_it_runs, wrong_option
from study.records.clip import BEST, FilmFacts
from study.records.folder import StudyFolder
from study.space.script import what_changed
from study.space.spec import StudySpec
from study.text import count

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Scene
    from study.trial.engine.envs.probing import Spaces
    from study.trial.evaluation import EvaluationResult
    from study.trial.experiment import Experiment


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
    """

    policy: ChosenPolicy
    spec: StudySpec
    summary: Summary
    as_recorded: bool | None
    film: Film | None = None

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
    spec = _as_requested(policy.spec, request)
    film = None if request.video is None else _target(policy, request.video)
    if film is not None:
        check_target(film)
    player = _Player(policy, spec)
    with nullcontext() if film is None else player.scene() as scene:
        result = player.play(keep_actions=0 if film is None else EPISODES)
        evaluated = Evaluated(
            policy=policy,
            spec=spec,
            summary=summarise(result.returns, num_cut=result.num_cut, target=spec.environment.target),
            as_recorded=_as_recorded(policy, spec, result.returns),
        )
        on_numbers(evaluated)
        if scene is None or film is None:
            return evaluated
        shown = show(scene, result, film=film, title=_short_title(policy))
    _write_facts(policy, spec, shown)
    return replace(evaluated, film=shown)


def _policy_of(request: EvaluationRequest) -> ChosenPolicy:
    if not request.random:
        return find_policy(request.path, trial=request.trial, space=request.space)
    others = {
        "--trial": request.trial is not None,
        "--space": request.space is not None,
        "--stochastic/--deterministic": request.stochastic is not None,
    }
    faults = [
        Fault(where=option, rule="belongs to a recorded policy", got="--random too", fix="Drop one.")
        for option, given in others.items()
        if given
    ]
    if faults:
        raise SpaceError("command line", faults)
    return random_policy(request.path)


def _check_own_code(policy: ChosenPolicy, path: Path) -> None:
    """Refuse to run a module or a script because somebody else's study names it, or one that lies in the study.

    Raises:
        RecordError: The study is another user's, or others may write to it, or the code lies in its folder.
    """
    study = policy.study or (StudyFolder(path) if policy.random and StudyFolder(path).exists() else None)
    if study is not None and policy.spec.own_code:
        study.check_owner()
        study.check_code(policy.spec.own_code)


class _Player:
    """Plays a policy with an environment of its own, outside of a trial; a script is run for it.

    Whether to trust the policy and the script is the caller's to ask.
    """

    def __init__(self, policy: ChosenPolicy, spec: StudySpec) -> None:
        """Try the environment, or run the script up to where it would train."""
        self._policy, self._spec = policy, spec
        self._script: Adopted | None = None
        self._spaces: Spaces | None = None
        if spec.config is not None:
            way_out = "or name the checkpoint and a space of the script as it is now, with --space"
            self._script = script_as_recorded(policy.spec, way_out=way_out)
            self._script.enter()
            return
        from study.trial.engine.envs.probing import in_own_processes, probe, probe_study, sharing_of

        if spec.environment.process == "auto" and sharing_of(spec.environment) == "wrong":
            self._spec = spec = in_own_processes(spec)
        # A random policy has no network that must suit.
        tried = probe(spec.evaluated_environment, policy.title) if policy.random else probe_study(spec, policy.title)
        self._spaces = tried

    @functools.cached_property
    def _experiment(self) -> "Experiment":
        from study.trial.experiment import experiment_of

        script = None if self._script is None else self._script.pickled
        return experiment_of(self._spec, script=script, spaces=self._spaces)

    @contextmanager
    def scene(self) -> "Iterator[Scene]":
        """Yield the environment, ready to draw; one of a script is made with `render_mode` in its `env_config`.

        Raises:
            SpaceError: It does not draw so.
        """
        from study.trial.engine.envs.frames import DRAWS, hide_display, open_scene, scene_of

        if self._experiment.judged is not None:
            scene = open_scene(self._experiment.judged)
            with closing(scene.env):
                yield scene
            return
        from study.trial.evaluation import drawing_environment

        hide_display()
        name = self._spec.environment.id
        with ExitStack() as stack:
            try:
                drawing = drawing_environment(self._experiment.config, DRAWS, agent=self._spec.evaluation.agent)
                env: Any = stack.enter_context(drawing)
            except Exception as error:
                rule = f"'{name}' must take render_mode={DRAWS!r} in its env_config"
                got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                fix = "Leave the option out, or give the environment that render mode."
                raise wrong_option("--video", rule=rule, got=got, fix=fix) from error
            yield scene_of(env, name)

    def play(self, *, keep_actions: int) -> "EvaluationResult":
        """Play the episodes.

        Raises:
            RecordError: The checkpoint cannot be read, or its network is another one.
            TrialError: As of `study.trial.evaluation.evaluate`; the policy may not fit the script.
        """
        from study.trial.evaluation import evaluate_checkpoint

        return evaluate_checkpoint(
            self._experiment,
            self._policy.checkpoint,
            self._spec,
            keep_actions=keep_actions,
            first_episode=self._policy.first_episode,
        )


def script_as_recorded(spec: StudySpec, *, way_out: str) -> Adopted:
    """Return the script of a study, which is run for it and must be the one that the study was started with.

    Args:
        spec: Of the study; it names a script.
        way_out: What a person can do beside restoring the script.

    Raises:
        SpaceError: The script cannot be read.
        RecordError: It is another one.
    """
    say_that_it_runs(str(spec.config))
    adopted = adopted_by(spec)
    assert adopted is not None
    assert spec.script is not None
    if adopted.facts != spec.script:
        got, fix = what_changed(spec.script.model_dump(mode="json"), adopted.facts.model_dump(mode="json"))
        where, rule = adopted.facts.source.file, "must be the script that the study was started with"
        raise RecordError(where=where, rule=rule, got=got, fix=f"{fix}, {way_out}.")
    return adopted


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
        raise wrong_option("--video", rule=rule, got="none", fix="Write --video film.mp4.")
    name = BEST if policy.chosen_among else f"trial_{policy.trial:05d}"
    return policy.study.clips / f"{name}{best_suffix()}"


def _write_facts(policy: ChosenPolicy, spec: StudySpec, film: Film) -> None:
    """Write what a film shows beside it, for the report and MLflow, if it is one of the study's own."""
    study = policy.study
    if study is None or film.file.parent.resolve() != study.clips.resolve():
        return
    facts = FilmFacts(
        file=film.file.name,
        study_id=study.identity().study_id,
        trial=policy.trial,
        environment=spec.environment.id,
        deterministic=not spec.evaluation.stochastic,
        evaluation_seed=spec.evaluation.seed,
        fps=film.fps,
        shots=film.shots,
    )
    facts.write(film.file)
