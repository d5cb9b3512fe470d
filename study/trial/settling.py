"""What `auto` stands for in a study, settled once before its first trial; all its sessions and nodes keep it."""

from collections.abc import Callable
from importlib.util import find_spec

from study.errors import SpaceError
from study.space.rules import tables
from study.space.spec import StudySpec
from study.trial.engine.envs.probing import in_own_processes, sharing_of


def with_lasting_process(spec: StudySpec, *, source: str, note: Callable[[str], None]) -> StudySpec:
    """Return the spec of a new study with what `environment.process: auto` stands for; its environment is tried.

    `note` is called with a line where no two environments may share a process, or where that is not known.

    Raises:
        SpaceError: None may share a process, and the study would let several do so.
    """
    name = f"'{spec.environment.id}'"
    sharing = sharing_of(spec.environment) if spec.environment.process == "auto" else "harmless"
    if sharing == "unknown":
        note(
            f"{name} does not play the same episode twice with the same seed, so that nobody can see whether several "
            "in one process disturb each other. If it keeps state in its process, set environment.process=own."
        )
    if sharing != "wrong":
        return spec
    own = in_own_processes(spec)
    if faults := [*tables(own)]:
        raise SpaceError(source, faults)
    note(f"{name} plays another episode where a second one is in its process, so that no two share one.")
    return own


def with_lasting_learner(
    spec: StudySpec, *, is_new: bool, jax_obstacle: str, source: str, note: Callable[[str], None]
) -> StudySpec:
    """Return the spec with the learner that `auto` stands for; of a resumed study it is settled already.

    `jax_obstacle` says why JAX cannot be used here, beside the environment; `note` is called with a line where RLlib's
    own learner stands in for the fused one.

    Raises:
        SpaceError: The study learns with JAX, which is not installed here.
    """
    learner = spec.learner
    if is_new and learner == "auto" and not spec.fused_obstacle:
        learner = "rllib" if jax_obstacle else "fused"
        if jax_obstacle and spec.algorithm == "A2C":
            rule = f"`A2C` needs the fused learner, and {jax_obstacle}"
            raise SpaceError.of(source, where="algorithm", rule=rule, fix="Remove it.")
        if jax_obstacle:
            note(f"Slower: RLlib's own learner instead of the fused one: {jax_obstacle}.")
    if learner == "fused" and find_spec("jax") is None:
        rule, got = "this study learns with `fused`, which needs JAX", "none here"
        fix = "Run pip install jax, or start a new study with --name and --set learner=rllib."
        raise SpaceError.of(source, where="learner", rule=rule, got=got, fix=fix)
    return spec.having(learner=learner)
