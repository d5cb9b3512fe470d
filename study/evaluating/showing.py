"""The first episodes of an evaluation, filmed or shown in a window. Steps environments; no Ray, no torch."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from study.evaluating.film import EPISODES, MOST_SECONDS, Shot, write_poster, writing

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Frame, Scene
    from study.trial.evaluation import EvaluationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What was shown.

    Attributes:
        shots: One for each episode of which something was seen.
        fps: Pictures per second.
        file: The film; None for a window.
        poster: A picture from the middle of the first episode, beside the film.
        unlike: Episodes whose replay had another return than the one that was counted.
    """

    shots: tuple[Shot, ...]
    fps: float
    file: Path | None
    poster: Path | None
    unlike: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Length at the environment's own pace."""
        return sum(shot.num_frames for shot in self.shots) / self.fps


def show(scene: "Scene", result: "EvaluationResult", *, film: Path | None = None) -> Shown:
    """Play the first episodes again with the actions that they had, into a film or a window.

    Args:
        scene: The environment, ready to draw.
        result: The evaluation, with the actions of its first episodes.
        film: Where the pictures go; None where the environment shows them itself.

    Raises:
        SpaceError: The environment does not draw.
        RecordError: The film cannot be written.
    """
    room = math.floor(MOST_SECONDS * scene.fps) if film is not None else math.inf
    shots: list[Shot] = []
    unlike: list[int] = []
    poster: Frame | None = None
    with nullcontext() if film is None else writing(film, scene.fps) as writer:
        for episode, actions in enumerate(result.actions[:EPISODES]):
            if room <= 0:
                break
            seen, total = 0, 0.0
            middle = int(min(room, len(actions))) // 2
            for frame, so_far in scene.replay(result.seeds[episode], actions):
                if seen >= room:
                    break
                if writer is not None and frame is not None:
                    writer.add(frame)
                if episode == 0 and seen == middle:
                    poster = frame
                seen, total = seen + 1, so_far
            room -= seen
            shot = _shot(episode, result, actions, seen)
            shots.append(shot)
            if shot.whole and not math.isclose(total, shot.episode_return, rel_tol=1e-6, abs_tol=1e-6):
                unlike.append(episode)
    return Shown(
        shots=tuple(shots),
        fps=scene.fps,
        file=film,
        poster=None if film is None or poster is None else write_poster(poster, film),
        unlike=tuple(unlike),
    )


def _shot(episode: int, result: "EvaluationResult", actions: Sequence[object], seen: int) -> Shot:
    return Shot(
        episode=episode,
        seed=result.seeds[episode],
        episode_return=result.returns[episode],
        num_steps=len(actions),
        num_frames=seen,
        whole=seen == len(actions) + 1,
    )
