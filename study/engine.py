"""The engine of a trial: which runner sampled and which learner learnt, by one name. Pure.

A faster runner or learner moves the number of runners from which more of them do not help, so that every statement on
scaling is one about an engine. Records, tables, figures and MLflow take its name from here.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from study.space.spec import StudySpec

UNKNOWN = "unknown"
"""The engine of runs that say nothing of theirs, such as those that never came up."""
OWN = "RLlib's own"
_RLLIB = "RLlib"
_OURS: Mapping[str, str] = MappingProxyType(
    {"BatchedEnvRunner": "batched", "FusedPPOLearner": "fused", "LeanPPOLearner": "lean"}  # lean: before 0.13.0
)
_RLLIBS = re.compile(r"Stock(MultiAgent)?EnvRunner|(Counting|Extended)?(PPO|APPO|IMPALA|DQN|SAC|TQC)(Torch)?Learner")
"""Classes that do what RLlib's do, some with counters or clocks."""


def engine_of(effective: Mapping[str, Any]) -> str | None:
    """Return the engine by what was read back from a built algorithm; None where it does not say both parts."""
    runner, learner = effective.get("runner_class"), effective.get("learner_class")
    if not runner or not learner:
        return None
    return _joined(_part(runner), _part(learner))


def engine_of_space(spec: "StudySpec") -> str:
    """Return the engine that a space asks for; a trial has others where these cannot serve, and records them."""
    learner = _RLLIB if spec.learner_in_use == "rllib" else spec.learner_in_use
    return _joined("batched" if spec.runner_in_use == "batched" else _RLLIB, learner)


def engines_in_words(engines: Iterable[str | None]) -> str:
    """Return the engine of some runs, with their numbers where there are several; `UNKNOWN` where no run tells it."""
    found = Counter(each for each in engines if each).most_common()
    if len(found) < 2:
        return found[0][0] if found else UNKNOWN
    return ", ".join(f"{name} ({count} run{'' if count == 1 else 's'})" for name, count in found)


def other_engine(spec: "StudySpec") -> tuple[str, str] | None:
    """Return the engine to compare a space's own with, and the options of a run that measure it.

    None where no option changes it: both parts of a script may be of a kind that RLlib's own alone can do.
    """
    own = engine_of_space(spec)
    wanted = {"runner": "batched", "learner": "auto"} if own == OWN else {"runner": "stock", "learner": "rllib"}
    if spec.traits.asynchronous or spec.algorithm == "A2C":  # their learner has no alternative
        del wanted["learner"]
    changed = {name: value for name, value in wanted.items() if getattr(spec, name) != value}
    other = engine_of_space(spec.having(**changed))
    return None if other == own else (other, " ".join(f"--set {key}={to}" for key, to in changed.items()))


def _part(name: Any) -> str:
    return _RLLIB if _RLLIBS.fullmatch(str(name)) else _OURS.get(str(name), str(name))


def _joined(runner: str, learner: str) -> str:
    return OWN if (runner, learner) == (_RLLIB, _RLLIB) else f"{runner}+{learner}"
