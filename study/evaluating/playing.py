"""`python -m study evaluate`: a recorded policy plays again, or a random one, and is filmed. RLlib is imported last."""

import contextlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from study.adopted.loading import adopted_by, with_script
from study.designs.registry import design_of
from study.errors import RecordError, wrong_option
from study.records.files import check_own, check_plain
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow, ledger_of, merit, result_of
from study.space.parsing import find_space, parse_space, read_space
from study.space.settings import spec_of
from study.space.spec import StudySpec
from study.statistics import Estimate, mean_interval, rate_interval
from study.text import count, one_line, spans
from study.trial.policy import STATE_FILE

# --- which policy ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPolicy:
    """A policy that a person chose to play; `title` says what it is."""

    title: str
    spec: StudySpec
    """The space that its trial ran under, or in whose environment a random policy plays."""
    study: StudyFolder | None = None
    row: TrialRow | None = None
    """None for a random policy, which needs no study."""
    chosen_among: int = 0
    """Finished trials that it is the best of; 0 where a person named it."""

    @property
    def checkpoint(self) -> Path | None:
        """Folder of its numbers; None for a random policy, which needs none."""
        return None if self.study is None or self.row is None else self.study.checkpoint(self.row.trial)

    @property
    def first_episode(self) -> int:
        """Number of the first evaluation episode that its trial played."""
        return 0 if self.row is None else self.row.first_episode

    def check_owner(self) -> None:
        """Raise a `RecordError` for a policy that is not there, or that somebody else could have put there."""
        if self.study is None or self.checkpoint is None:
            return
        if not (self.checkpoint / STATE_FILE).exists():
            rule, got = f"must hold the policy ({STATE_FILE})", "none, as in a packed study and one of before 0.16"
            fix = "Evaluate the study that it was packed from, or restore the folder from a backup."
            raise RecordError(where=str(self.checkpoint), rule=rule, got=got, fix=fix)
        check_plain(self.checkpoint)
        way_out = "Ask its owner to evaluate it, or train the setting again: `export --format yaml`."
        for folder in (self.study.path, self.checkpoint):
            check_own(folder, way_out=way_out)


def find_policy(path: Path, trial: int | None) -> ChosenPolicy:
    """Return the policy of a trial of a study, by default of its best; errors say why there is none."""
    study = StudyFolder(path)
    if not study.exists():
        fix = "Name one, such as studies/quickstart, or add --random for a random policy in a space."
        raise RecordError(where=str(path), rule="must be the folder of a study", got="another path", fix=fix)
    spec, ledger = study.identity().parse(), ledger_of(study.records)
    row, among = best_policy(spec, ledger) if trial is None else (ledger.rows.get(trial), 0)
    if trial is None and row is None:
        rule, got = "must hold a finished trial with its policy", "none yet" if spec.learns else "a throughput study"
        raise RecordError(where=str(path), rule=rule, got=got, fix="Name another one, or wait for a trial.")
    if row is None or row.checkpoint is None:
        have = spans(sorted(each.trial for each in ledger.rows.values() if each.checkpoint is not None))
        got = str(trial) if row is None else f"{trial}, {row.status}{f': {row.reason}' if row.reason else ''}"
        rule = f"must be a trial of {study.path} with a policy ({have})"
        raise wrong_option("--trial", rule, got=got, fix="Name one.")
    title = f"{study.identity().name}: trial {row.trial} ({count(row.num_env_runners, 'runner')}, seed {row.seed})"
    return ChosenPolicy(title=title, spec=spec_of(spec, row.variant), study=study, row=row, chosen_among=among)


def random_policy(path: Path) -> ChosenPolicy:
    """Return a random policy in the environment of a space: of a file, by its name, or of a study, by its folder."""
    study = StudyFolder(path)
    if study.exists():
        identity = study.identity()
        return ChosenPolicy(title=f"{identity.name}: random policy", spec=identity.parse(), study=study)
    # A space whose floor is measured needs none yet.
    spec = parse_space(with_script(read_space(find_space(path, place="SPACE"))), scored=False)
    return ChosenPolicy(title=f"{path}: random policy", spec=spec)


def best_policy(spec: StudySpec, ledger: Ledger) -> tuple[TrialRow | None, int]:
    """Return the trial whose policy is the study's best by `merit`, and among how many it was chosen.

    Of a hold-up study whose settings are frozen, among the winner's confirmations at the target scale.
    """
    with_policy = (row for row in ledger.rows.values() if row.checkpoint is not None and row.status == "finished")
    # In a hold-up study trials with a limit of iterations have not had their whole budget.
    rows = [row for row in with_policy if not row.stage or row.iterations is None]
    rows = design_of(spec).final_trials(spec, ledger, rows)
    return max((row for row in rows if result_of(row) is not None), key=merit, default=None), len(rows)


# --- its episodes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What a policy got, and its film, if any."""

    policy: ChosenPolicy
    spec: StudySpec
    """The policy's space, with the evaluation that was played."""
    returns: tuple[float, ...]
    """Undiscounted return of each episode, in the order of the seeds; at least one, finite."""
    num_cut: int
    """Episodes that did not end and were cut."""
    film: Path | None = None

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
        """Whether these are the returns of the trial's final evaluation; None where other episodes were asked for."""
        last = None if self.policy.row is None else self.policy.row.last_evaluation
        if last is None or last.progress < 1 or self.spec.evaluation != self.policy.spec.evaluation:
            return None
        return self.returns == tuple(last.returns)

    def to_json(self) -> dict[str, Any]:
        """Return everything that is known, as JSON values; an end of an interval that nobody knows is null."""
        policy, row = self.policy, self.policy.row
        mean = {name: None if each in (-math.inf, math.inf) else each for name, each in asdict(self.mean).items()}
        return {
            "study": None if policy.study is None else str(policy.study.path),
            "trial": None if row is None else row.trial,
            "chosen_among": policy.chosen_among or None,
            "checkpoint": None if policy.checkpoint is None else str(policy.checkpoint),
            "random": row is None,
            "environment": self.spec.environment.id,
            "deterministic": not self.stochastic,
            "seed": self.spec.evaluation.seed,
            "first_episode": policy.first_episode,
            "as_recorded": self.as_recorded,
            "n": len(self.returns),
            "mean": mean,
            "num_solved": self.num_solved,
            "num_cut": self.num_cut,
            "returns": list(self.returns),
            "suggested_floor": float(f"{self.mean.value:.3g}") if row is None and self.mean.has_interval else None,
            "film": None if self.film is None else str(self.film),
        }


def evaluate_policy(policy: ChosenPolicy, *, video: Path | None = None, **asked: int | bool | None) -> Evaluated:
    """Play a policy and return what it got.

    Args:
        policy: Of `find_policy` or `random_policy`.
        video: File for a film.
        asked: `episodes`, `seed` and `stochastic` of the evaluation; None: as the policy's space says.

    Raises:
        StudyError: The policy is not to be trusted, or its environment does not work.
    """
    policy.check_owner()
    if policy.study is not None and policy.spec.own_code:  # never run code because somebody else's study names it
        check_own(policy.study.path)
        policy.study.check_code(policy.spec.own_code)
    changes = {name: value for name, value in asked.items() if value is not None}
    spec = policy.spec.having(evaluation=changes)
    from study.trial.evaluation import evaluate
    from study.trial.policy import read_state

    with contextlib.nullcontext() if video is None else filming(video) as film:
        config, spec = _trained_in(policy, spec)
        state = None if policy.checkpoint is None else read_state(policy.checkpoint)
        result = evaluate(config, state, spec, first_episode=policy.first_episode, film=film)
    return Evaluated(policy=policy, spec=spec, returns=result.returns, num_cut=result.num_cut, film=video)


def _trained_in(policy: ChosenPolicy, spec: StudySpec) -> tuple[Any, StudySpec]:
    """Return what the policy was trained in, its script run again; and the space, as the environment must be played."""
    from study.trial.engine.envs.probing import probe, probe_study, sharing_of
    from study.trial.experiment import configuration_of

    if (adopted := adopted_by(policy.spec)) is not None:
        adopted.enter()
        return configuration_of(spec, script=adopted.pickled), spec
    if spec.environment.process == "auto" and sharing_of(spec.environment) == "wrong":
        spec = spec.having(environment={"process": "own"})
    # A random policy has no network that must suit.
    spaces = probe(spec.evaluated_environment, policy.title) if policy.row is None else probe_study(spec, policy.title)
    return configuration_of(spec, spaces=spaces), spec


# --- a film -----------------------------------------------------------------------------------------------------------

MOST_SECONDS = 20.0
"""Length of a film at most."""
DEFAULT_FPS = 30.0
"""Frames per second where an environment does not say: what Gymnasium's own wrappers take."""


@contextlib.contextmanager
def filming(film: Path) -> Iterator[Callable[[gymnasium.Env], gymnasium.Env]]:
    """Yield what puts a camera before an environment; its film is at its place when the block ends well.

    Errors say that no film can have this name, that the environment draws no picture, or that the film is not written.
    """
    if film.suffix.lower() != ".mp4" or film.is_dir():
        rule, got, fix = "must be the name of an .mp4 file", f"'{film}'", "Write --video film.mp4."
        raise wrong_option("--video", rule=rule, got=got, fix=fix)
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        fix = "Run `pip install 'imageio-ffmpeg>=0.6'`."
        raise wrong_option("--video", rule="needs imageio-ffmpeg", got="no such package", fix=fix)
    for name in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):  # drawing a picture needs neither sound nor a display
        os.environ.setdefault(name, "dummy")
    draft = film.with_name(f".{film.stem}.{os.getpid()}.mp4")
    try:
        film.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            yield lambda env: _Camera(env, draft, stack)
        draft.replace(film)
    except OSError as error:
        raise _unwritten(film, error) from error
    finally:
        with contextlib.suppress(OSError):  # there is none
            draft.unlink()


def _unwritten(film: Path, error: OSError) -> RecordError:
    why, fix = one_line(str(error.strerror or error), 200), "Name another file with --video."
    return RecordError(where=str(film), rule="the film must be written", got=why, fix=fix)


class _Camera(gymnasium.Wrapper):
    """Films an environment from its first reset on."""

    def __init__(self, env: gymnasium.Env, file: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(env)
        self._file, self._stack = file, stack
        self._process: Any = None
        self._fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
        self._left = math.floor(MOST_SECONDS * self._fps)

    def reset(self, **options: Any) -> Any:
        """Reset, and film."""
        return self._filmed(self.env.reset(**options))

    def step(self, action: Any) -> Any:
        """Take a step, and film."""
        return self._filmed(self.env.step(action))

    def _filmed(self, outcome: Any) -> Any:
        if not self._left:
            return outcome
        picture = np.asarray(self.env.render())
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            rule, got = "needs pictures of the shape (height, width, 3) of uint8", f"the shape {picture.shape}"
            raise wrong_option("--video", rule=rule, got=got, fix="Leave the option out, or correct `render`.")
        if self._process is None:
            import imageio_ffmpeg

            # The index at the beginning, where a browser looks for it; H.264 takes no odd sizes.
            more = ["-movflags", "+faststart", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
            settings = {"fps": self._fps, "macro_block_size": 1, "ffmpeg_log_level": "error", "output_params": more}
            size = (picture.shape[1], picture.shape[0])
            self._process = imageio_ffmpeg.write_frames(str(self._file), size, **settings)
            self._stack.enter_context(contextlib.closing(self._process))
            self._process.send(None)
        try:
            self._process.send(np.ascontiguousarray(picture))
        except OSError as error:  # an environment's own is another matter
            raise _unwritten(self._file, error) from error
        self._left -= 1
        return outcome
