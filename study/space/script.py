"""What is known of a person's RLlib script, without Ray and without the script: recorded with the study. Pure.

`study.adopted` reads a script in a process of its own and makes these facts; a `StudySpec` with `config` holds them.
Commands that only read a study need nothing else of the script.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from study.space.domains import Model
from study.space.parameters import ALGORITHMS, FRAGMENT, PARAMETERS, SCALE, Algorithm, Value

_OFF_POLICY = (SCALE, "num_envs_per_env_runner", "train_batch_size", "lr", "gamma", "grad_clip", FRAGMENT)
"""What RLlib's other algorithms have of our parameters."""
_PERHAPS = {"num_epochs", "minibatch_size", "lambda"}
"""What a script's own algorithm may have beside those of RLlib's that it is derived from."""


class ScriptSource(Model):
    """The file that a configuration was found in."""

    file: str
    """Name of the file, or of the module, without its folder: studies are alike wherever the file lies."""
    sha256: str
    """Of the file's content, in hexadecimal."""
    modules: dict[str, str] = Field({})
    """Module of the user's own that the script imports -> SHA-256 of the files of it that were imported."""


class ScriptFacts(Model):
    """What a script's `AlgorithmConfig` says, as JSON values; what older versions recorded besides is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=True)

    source: ScriptSource
    found_as: str
    """How the configuration was found: `module level`, `function make_config`, `tune.Tuner`, `build_algo`, …."""
    algorithm: str
    """Name of the algorithm's class: `PPO`, `SAC`, or the script's own."""
    base_algorithm: str
    """Name of RLlib's class that it is, or is derived from."""
    environment: str
    """Name of the environment, or of its class, as written."""
    agents: list[str] = Field([])
    """Policies of several agents by their ids; empty for one agent."""
    values: dict[str, Any] = Field({})
    """Parameter of `study.space.parameters` -> the script's value; None where it has none (`grad_clip`)."""
    schedules: list[str] = Field([])
    """Parameters that follow a schedule: they have no one value, and are not varied unless the space names them."""
    overridden: list[str] = Field([])
    """Parameters of which every module that learns has a value of its own: a value of the whole would reach none."""
    searched: list[str] = Field([])
    """Parameters, and other settings of RLlib, for which the script lets Tune choose; `values` has one of theirs."""
    num_learners: int = 1
    """Learners among which RLlib divides a batch, at least one."""
    settings: dict[str, Any] = Field({})
    """Other options of RLlib that the script sets -> value as text, or a digest of a long one."""
    stop: dict[str, Any] = Field({})
    """Its stop criteria that are numbers, by RLlib's names of results."""
    runner_obstacle: str = ""
    """Why the batched runner cannot do the same as RLlib's own, which then samples; empty where it can."""
    learner_obstacle: str = ""
    """Why the fused learner cannot do the same as RLlib's own, which then learns; empty where it can."""
    sharing: Literal["harmless", "wrong", "unknown"] = "harmless"
    """What several of its environments in one process do to one another (`study.trial.engine.envs.probing`); unknown,
    too, of environments for several agents."""

    @property
    def is_multi_agent(self) -> bool:
        """Whether several agents act, each with a policy."""
        return bool(self.agents)

    @property
    def defaults(self) -> dict[str, Value]:
        """The script's values that a space can hold: numbers within the bounds of our parameters."""
        numbers = {name: value for name, value in self.values.items() if type(value) in (int, float)}
        found: dict[str, Value] = {}
        for name, value in numbers.items():
            parameter = PARAMETERS.get(name)
            if name == SCALE:
                found[name] = max(int(value), 1)  # without runners its main process samples, as one runner does
            elif parameter and math.isfinite(value) and parameter.allows(value) and value == parameter.kind(value):
                found[name] = parameter.kind(value)
        return found

    @property
    def traits(self) -> Algorithm:
        """What a space may give to the script's algorithm; its defaults are the script's values."""
        known = ALGORITHMS.get(self.base_algorithm)
        taken = {*_OFF_POLICY} if known is None else {*known.parameters, *(_PERHAPS & self.values.keys())}
        return Algorithm(
            name=self.base_algorithm,
            parameters=tuple(name for name in PARAMETERS if name in taken),
            defaults={name: value for name, value in self.defaults.items() if name in taken},
        )


def what_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str]:
    """Return in words how a script differs from the one that a study was started with, and what to restore.

    Args:
        before: Its facts at the start of the study, as JSON values.
        now: Those of now.
    """
    old, new = ({**facts, **facts["source"]} for facts in (before, now))
    file, places = new["file"], {"source", "file", "sha256"}
    facts = ", ".join(sorted(name for name in {*old, *new} - places if old.get(name) != new.get(name)))
    if old["sha256"] != new["sha256"]:
        return f"another {file}: {facts or 'text that changes none of its facts'}", f"Restore {file}"
    fix = "Restore what it imports and reads: modules, files, environment variables, the version of this program"
    return f"the same {file}, which gives other {facts}", fix
