"""`python -m study evaluate`: plays a policy, films it. Imports RLlib and torch last."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from study.adopted.loading import adopted_by
from study.errors import RecordError
from study.evaluating.facts import BEST, FilmFacts
from study.evaluating.film import EPISODES, Film, best_suffix, check_target, show
from study.evaluating.policies import ChosenPolicy, find_policy, random_policy
from study.harmless import one_line
from study.options import say_that_it_runs, wrong_option
from study.records.files import check_own
from study.space.script import what_changed
from study.space.spec import StudySpec
from study.statistics import Estimate, mean_interval, rate_interval

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Scene
    from study.trial.experiment import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What a person asked for: the options of the command `evaluate` under their names, whose help describes them."""

    path: Path
    trial: int | None = None
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
        returns: Undiscounted return of each episode, in the order of the seeds; at least one, finite.
        num_cut: Episodes that did not end and were cut.
        film: What was filmed, if anything.
    """

    policy: ChosenPolicy
    spec: StudySpec
    returns: tuple[float, ...]
    num_cut: int
    film: Film | None = None

    @property
    def mean(self) -> Estimate:
        """Mean return, with Student's 95 % interval over episodes: about this one policy, not another training."""
        return mean_interval(self.returns)

    @property
    def num_solved(self) -> int | None:
        """Episodes at or above the target; None where the space has none."""
        target = self.spec.environment.target
        return None if target is None else sum(value >= target for value in self.returns)

    @property
    def solved(self) -> Estimate | None:
        """Share of solved episodes, with its interval."""
        return None if self.num_solved is None else rate_interval(self.num_solved, len(self.returns))

    @property
    def stochastic(self) -> bool:
        """Whether actions were drawn."""
        return self.policy.row is None or self.spec.evaluation.stochastic

    @property
    def as_recorded(self) -> bool | None:
        """Whether the episodes are those of the trial's final evaluation, return by return.

        None where another question was asked, or nothing is recorded.
        """
        if self.policy.recorded is None or self.spec.evaluation != self.policy.spec.evaluation:
            return None
        return self.returns == self.policy.recorded

    def to_json(self) -> dict[str, Any]:
        """Return everything that is known, as JSON values; an end of an interval that nobody knows is null."""
        policy, is_random = self.policy, self.policy.row is None
        return {
            "study": None if policy.study is None else str(policy.study.path),
            "trial": None if policy.row is None else policy.row.trial,
            "chosen_among": policy.chosen_among or None,
            "checkpoint": None if policy.checkpoint is None else str(policy.checkpoint),
            "random": is_random,
            "environment": self.spec.environment.id,
            "deterministic": not self.stochastic,
            "seed": self.spec.evaluation.seed,
            "first_episode": policy.first_episode,
            "as_recorded": self.as_recorded,
            "n": len(self.returns),
            "mean": _json_of(self.mean),
            "median": median(self.returns),
            "min": min(self.returns),
            "max": max(self.returns),
            "target": self.spec.environment.target,
            "num_solved": self.num_solved,
            "solved": None if self.solved is None else _json_of(self.solved),
            "num_cut": self.num_cut,
            "returns": list(self.returns),
            "suggested_floor": self.mean.rounded if is_random else None,
            "film": None if self.film is None else str(self.film.file),
        }


def _json_of(estimate: Estimate) -> dict[str, Any]:
    return {name: None if value in (-inf, inf) else value for name, value in asdict(estimate).items()}


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
    if request.random and (request.trial is not None or request.stochastic is not None):
        option = "--trial" if request.trial is not None else "--stochastic/--deterministic"
        raise wrong_option(option, rule="belongs to a recorded policy", got="--random too", fix="Drop one.")
    policy = random_policy(request.path) if request.random else find_policy(request.path, request.trial)
    policy.check_owner()
    if policy.study is not None and policy.spec.own_code:  # never run code because somebody else's study names it
        check_own(policy.study.path)
        policy.study.check_code(policy.spec.own_code)
    asked = {"episodes": request.episodes, "seed": request.seed, "stochastic": request.stochastic}
    changes = {name: value for name, value in asked.items() if value is not None}
    spec = policy.spec.model_copy(update={"evaluation": policy.spec.evaluation.model_copy(update=changes)})
    film = None if request.video is None else _film_file(policy, request.video)
    if film is not None:
        check_target(film)
    from study.trial.evaluation import evaluate
    from study.trial.weights import read_state

    experiment, spec = _experiment_of(policy, spec)
    if film is not None and spec.environment.process == "own":
        rule, fix = "a film needs a second environment in one process", "Leave the option out."
        raise wrong_option("--video", rule=rule, got="environment.process: own", fix=fix)
    state = None if policy.checkpoint is None else read_state(policy.checkpoint)
    with nullcontext() if film is None else _scene(experiment, spec) as scene:
        keep = 0 if film is None else EPISODES
        result = evaluate(experiment, state, spec, keep_actions=keep, first_episode=policy.first_episode)
        evaluated = Evaluated(policy=policy, spec=spec, returns=result.returns, num_cut=result.num_cut)
        on_numbers(evaluated)
        if scene is None or film is None:
            return evaluated
        evaluated = replace(evaluated, film=show(scene, result, film=film))
    _write_facts(evaluated)
    return evaluated


def _experiment_of(policy: ChosenPolicy, spec: StudySpec) -> tuple["Experiment", StudySpec]:
    """Return what the policy was trained in, its script run again; and the space, as the environment must be played.

    Raises:
        SpaceError: The script cannot be read, or the environment does not work.
        RecordError: It is another script than that with which the study was started.
    """
    from study.trial.engine.envs.probing import in_own_processes, probe, probe_study, sharing_of
    from study.trial.experiment import experiment_of

    if spec.config is not None:
        say_that_it_runs(spec.config)
        adopted = adopted_by(policy.spec)
        assert adopted is not None and policy.spec.script is not None
        if adopted.facts != policy.spec.script:
            before, now = (each.model_dump(mode="json") for each in (policy.spec.script, adopted.facts))
            got, fix = what_changed(before, now)
            where, rule = adopted.facts.source.file, "must be the script that the study was started with"
            raise RecordError(where=where, rule=rule, got=got, fix=f"{fix}.")
        adopted.enter()
        return experiment_of(spec, script=adopted.pickled), spec
    if spec.environment.process == "auto" and sharing_of(spec.environment) == "wrong":
        spec = in_own_processes(spec)
    # A random policy has no network that must suit.
    spaces = probe(spec.evaluated_environment, policy.title) if policy.row is None else probe_study(spec, policy.title)
    return experiment_of(spec, spaces=spaces), spec


@contextmanager
def _scene(experiment: "Experiment", spec: StudySpec) -> "Iterator[Scene]":
    """Yield the environment, ready to draw; one of a script is made with `render_mode` in its `env_config`.

    Raises:
        SpaceError: It does not draw so.
    """
    from study.trial.engine.envs.frames import DRAWS, hide_display, open_scene, scene_of
    from study.trial.evaluation import drawing_environment

    if experiment.judged is not None:
        scene = open_scene(experiment.judged)
        with closing(scene.env):
            yield scene
        return
    hide_display()
    try:
        env = drawing_environment(experiment.config, DRAWS)
    except Exception as error:
        rule = f"'{spec.environment.id}' must take render_mode={DRAWS!r} in its env_config"
        got = f"{type(error).__name__}: {one_line(str(error), 200)}"
        fix = "Leave the option out, or give the environment that render mode."
        raise wrong_option("--video", rule=rule, got=got, fix=fix) from error
    with closing(env):
        yield scene_of(env, spec.environment.id)


def _film_file(policy: ChosenPolicy, video: str) -> Path:
    """Return the file that a film is meant for; without a name one of the study's own, for its report and MLflow."""
    if video:
        return Path(video)
    if policy.study is None or policy.row is None:
        rule, fix = "needs the name of a file for a random policy", "Write --video film.mp4."
        raise wrong_option("--video", rule=rule, got="none", fix=fix)
    name = BEST if policy.chosen_among else f"trial_{policy.row.trial:05d}"
    return policy.study.clips / f"{name}{best_suffix()}"


def _write_facts(evaluated: Evaluated) -> None:
    """Write what a film shows beside it, for the report and MLflow, if it is one of the study's own."""
    policy, spec, film = evaluated.policy, evaluated.spec, evaluated.film
    if policy.study is None or film is None or film.file.parent.resolve() != policy.study.clips.resolve():
        return
    facts = FilmFacts(
        file=film.file.name,
        study_id=policy.study.identity().study_id,
        trial=None if policy.row is None else policy.row.trial,
        environment=spec.environment.id,
        deterministic=not spec.evaluation.stochastic,
        evaluation_seed=spec.evaluation.seed,
        fps=film.fps,
        shots=film.shots,
    )
    facts.write(film.file)
