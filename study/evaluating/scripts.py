"""A policy of a study of somebody's own script at work again. Runs the script, imports RLlib; all of it when needed."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from study.adopted.facts import Adopted
from study.adopted.loading import adopted_by
from study.errors import RecordError, SpaceError
from study.evaluating.policies import ChosenPolicy
from study.options import say_that_it_runs
from study.space.script import what_changed
from study.space.spec import StudySpec

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Mode, Scene

AlgorithmConfig = Any
"""RLlib's; nothing here imports it."""


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
        raise RecordError(where=where, rule=rule, got=got, fix=f"{fix}, {way_out}.", code="script-has-changed")
    return adopted


def load_script(policy: ChosenPolicy) -> AlgorithmConfig:
    """Return the configuration of the script that a policy was trained with, which is run for it.

    Whether to trust the script is the caller's to ask.

    Raises:
        SpaceError: The script cannot be read.
        RecordError: It is not the one that the study was started with.
    """
    adopted = script_as_recorded(
        policy.spec, way_out="or name the checkpoint and a space of the script as it is now, with --space"
    )
    adopted.enter()
    from study.trial.script_config import unpickled

    return unpickled(adopted.pickled)


@contextlib.contextmanager
def script_scene(config: AlgorithmConfig, spec: StudySpec, mode: "Mode") -> Iterator["Scene"]:
    """Yield the environment of a script, ready to draw.

    It is made with `render_mode` in its `env_config`.

    Raises:
        SpaceError: It does not draw so.
    """
    from study.trial.engine.envs.frames import scene_of, see_to_display
    from study.trial.script_evaluation import drawing_environment

    see_to_display(mode)
    with contextlib.ExitStack() as stack:
        try:
            env: Any = stack.enter_context(drawing_environment(config, mode, agent=spec.evaluation.agent))
        except Exception as error:
            where, what = ("--video" if mode == "rgb_array" else "--render"), " ".join(str(error).split())[:200]
            rule = f"'{spec.environment.id}' must take render_mode={mode!r} in its env_config"
            got, code = f"{type(error).__name__}: {what}", "render-mode-refused"
            fix = "Leave the option out, or give the environment that render mode."
            raise SpaceError.of("command line", where=where, rule=rule, got=got, fix=fix, code=code) from error
        yield scene_of(env, spec.environment.id, mode)
