"""From a space file, which may name a person's RLlib script as `config`, to a `StudySpec`. Imports no Ray.

A script runs in a process of its own (`study.adopted.finding`), up to where it would train, within a time limit;
nothing of Ray starts. What is wrong with it is one fault.
"""

import functools
import hashlib
import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from study.console import say
from study.errors import RecordError, SpaceError
from study.machine.apart import called_apart
from study.machine.shape import Speeds
from study.machine.shipping import OwnModule
from study.space.parameters import SCALE
from study.space.parsing import Source, parse_space, read_space, written
from study.space.spec import ScriptFacts, StudySpec
from study.text import listed, one_line

TIMEOUT_S = 900.0
"""Seconds that a script may take to come to its training and to make its environment, with the import of RLlib."""
_FINDS = "study.adopted.finding:adopted_of"
"""What runs a script there."""
_LONGEST = 300
"""Characters of what was found that a message shows."""
_READ: dict[str, "Adopted"] = {}
"""What was read in this process already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What the processes of trials must have of this machine, and what was seen of the environment here.

    Attributes:
        paths: Folders from which a script imports: its own, and what it has added to `sys.path`.
        modules: The user's own that are not installed; they travel to the nodes of a joined cluster.
        variables: Environment variables that a script sets, also by `ray.init`.
        jax_obstacle: Why JAX cannot serve a learner beside the user's own code; empty where it can.
        speeds: How fast the environment is here; None where it was not played.
        pickled: What `study.trial.experiment.pickled` returns for the `AlgorithmConfig` of a script; only a trial, or
            whoever plays a policy, unpickles it.
    """

    paths: tuple[str, ...] = ()
    modules: Sequence[OwnModule] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    jax_obstacle: str = ""
    speeds: Speeds | None = None
    pickled: bytes | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a process that runs the configuration, beside those that this one has."""
        path = os.pathsep.join(filter(None, [*self.paths, os.environ.get("PYTHONPATH")]))
        return {**self.variables, **({"PYTHONPATH": path} if self.paths else {})}

    def enter(self) -> None:
        """Let this process import what the script imports, and give it the script's environment variables."""
        sys.path[:0] = [path for path in self.paths if path not in sys.path]
        os.environ.update(self.variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Brought):
    """A script's configuration, and what is known of it."""

    pickled: bytes
    facts: ScriptFacts


# --- a space -------------------------------------------------------------------------------------------------------


def load_space(path: str | Path, *, overrides: Sequence[str] = ()) -> StudySpec:
    """Read a space file; where it names a script, run that in a process of its own, up to where it would train.

    `path` is the file, or the name of one in `search_spaces/`; `overrides` are `dotted.key=value` pairs that replace or
    add values, each read as YAML.

    Raises:
        SpaceError: The file is missing, is not a plain YAML mapping, or breaks a rule of the schema; or its script
            cannot be studied. Carries all faults found.
    """
    return parse_space(with_script(read_space(path, overrides=overrides)))


def with_script(source: Source) -> Source:
    """Return a space with the facts of the script that it names, if any; a `SpaceError` says why it has none."""
    content = source.content
    config, arguments = content.get("config"), content.get("config_args")
    if not isinstance(config, str) or not config:
        return source
    try:
        facts = read_script(config, args=words(arguments) if isinstance(arguments, str) else ()).facts
    except SpaceError as error:
        faults = [replace(fault, line=source.line_of("config")) for fault in error.faults]
        raise SpaceError(source.name, faults) from error
    return replace(source, content={**content, "script": facts.model_dump(mode="json")})


def adopted_by(spec: StudySpec) -> Adopted | None:
    """Return the script of a study; None for a study without one. A `RecordError` says what has changed in it."""
    if spec.config is None or spec.script is None:
        return None
    adopted, before = read_script(spec.config, args=words(spec.config_args)), dict(spec.script)
    if changed := [name for name, value in adopted.facts if value != before[name]]:
        where, rule = spec.script.source.file, "must be the script that the study was started with"
        fix = f"Restore {where}, and the modules, files and versions that it reads."
        raise RecordError(where=where, rule=rule, got=f"other {', '.join(changed)}", fix=fix)
    return adopted


def words(arguments: str, where: str = "config_args") -> list[str]:
    """Return the arguments of a script's command line, as a shell splits them; `where` is what named them."""
    try:
        return shlex.split(arguments)
    except ValueError as error:
        rule, fix = "must be words", "Close the quotes, or write a backslash before the quote."
        raise SpaceError.of("space", where=where, rule=rule, got=f"{arguments} ({error})", fix=fix) from error


# --- a script ------------------------------------------------------------------------------------------------------


def read_script(text: str, *, args: Sequence[str] = (), where: str = "config") -> Adopted:
    """Run a script in a process of its own, and say so; return the configuration that it would train with.

    `text` is `my_train.py` or `my_train.py:make_config`, `args` is its command line, `where` the option or key that
    names it.

    Raises:
        SpaceError: There is no such file, or it has no configuration, several, or one that cannot be studied; says why.
    """
    before, _, name = text.rpartition(":")
    place, name = (before, name) if before.endswith(".py") else (text, "")
    file = Path(place).resolve()
    if file.suffix != ".py":
        fix = "Write my_train.py or my_train.py:make_config; for a module a file with `from my_module import config`."
        raise SpaceError.of(text, where=where, rule="must be a Python file", got=f"'{text}'", fix=fix)
    if not file.is_file():
        fix = "Check the path; it begins in the folder in which the command is typed."
        raise SpaceError.of(text, where=where, rule="no such file", got=f"'{place}'", fix=fix)
    key = json.dumps([str(file), name, list(args), hashlib.sha256(file.read_bytes()).hexdigest()])
    if key not in _READ:
        rule, fix = "its process must come to its training", "Run the script by itself until it trains."
        ended = functools.partial(SpaceError.of, "script", where="", rule=rule, fix=fix)
        say(f"Running the code of {place} in its own process, up to where it would train. No Ray starts.", error=True)
        try:
            _READ[key] = called_apart(_FINDS, file, name, args, limit_s=TIMEOUT_S, otherwise=ended)
        except SpaceError as error:
            faults = [
                replace(each, where=": ".join(filter(None, [where, each.where])), got=one_line(each.got, _LONGEST))
                for each in error.faults
            ]
            raise SpaceError(text, faults) from error
    return _READ[key]


# --- a space around a script ----------------------------------------------------------------------------------------

BATCH, LR = "train_batch_size", "lr"
BATCH_FACTOR, LR_FACTOR = 4, 10
"""A range goes from the script's value divided by this to the value times this."""
DEFAULT_BATCHES = 100
"""Train batches of a trial where the script has no limit of its own."""
TRIALS_PER_SCALE = 4
"""The script's own values, and three proposals."""


def space_text(
    facts: ScriptFacts, *, config: str, args: str = "", runners: Sequence[int] = (), trials: int | None = None
) -> str:
    """Return a space around a script's values, as YAML with comments; `config` and `args` are the script as named.

    Without `runners` the scales are one runner, the script's number, and twice that; without `trials` each scale has
    `TRIALS_PER_SCALE`.
    """
    own, file = max(int(facts.values.get(SCALE) or 0), 1), facts.source.file
    scales = sorted(set(runners or (1, own, 2 * own)))
    budget = _limits(facts) or {"env_steps": DEFAULT_BATCHES * _batch_of(facts)}
    ranges = _ranges(facts, max(scales), budget.get("env_steps"))
    named = {name: facts.defaults[name] for name, (low, _) in ranges.items() if facts.defaults[name] >= low}
    search: dict[str, Any] = {"num_trials": trials or TRIALS_PER_SCALE * len(scales)}
    if named:
        search["baselines"] = [{"name": file.removesuffix(".py"), "parameters": named}]
    varied = {name: {"low": low, "high": high, "log": True} for name, (low, high) in ranges.items()}
    drawn = {name: " (drawn)" for name in facts.searched}
    said = ", ".join(f"{name} {facts.values.get(name)}{drawn.get(name, '')}" for name in (SCALE, *ranges))
    comments = [
        f"A study around the values of {file}: {facts.algorithm} on {facts.environment} ({facts.found_as}).",
        f"The script has {said}. What is not written here stays as it says; it is read again at each start.",
        *remarks(facts),
        "`environment: {floor: …, reference: …, target: …}` makes scores and solved shares: the returns of a random",
        "policy, which `python -m study evaluate THIS_FILE --random` measures, of a good one, and of one that will do.",
        "A trial ends at the first limit of its budget; baselines run first, at every scale.",
    ]
    content = {
        "version": 1,
        "description": f"{file} with {listed([*map(str, scales)])} runners",
        "config": config,
        **({"config_args": args} if args else {}),
        "parameters": {SCALE: scales, **varied},
        "budget": budget,
        "search": search,
    }
    return written(content, header="\n".join(f"# {comment}" for comment in comments))


def remarks(facts: ScriptFacts) -> Iterator[str]:
    """Yield what differs from what the script does by itself."""
    if facts.searched:
        names = listed([f"`{name}`" for name in facts.searched])
        yield f"The script lets Tune choose {names}. Where `parameters` names none, one value was drawn for it."
    if not _limits(facts):
        steps = f"{DEFAULT_BATCHES * _batch_of(facts):,}"
        yield f"How long the script trains is not known: a trial has {DEFAULT_BATCHES} batches, {steps} steps."


def _ranges(facts: ScriptFacts, most_runners: int, env_steps: int | None) -> dict[str, tuple[float, float]]:
    values, ranges = facts.defaults, dict[str, tuple[float, float]]()
    if BATCH in values and facts.base_algorithm != "Algorithm":  # others have a training step of their own
        batch = int(values[BATCH])
        # A step of each environment; a batch from a replay buffer has no such limit.
        lanes = most_runners * int(values.get("num_envs_per_env_runner", 1)) if facts.traits.is_on_policy else 1
        least = max(batch // BATCH_FACTOR, int(values.get("minibatch_size", 1)), lanes)
        most = max(batch, min(batch * BATCH_FACTOR, (env_steps or batch * BATCH_FACTOR * 2) // 2))
        if least < most:
            ranges[BATCH] = (least, most)
    if LR in values and LR not in facts.schedules:
        ranges[LR] = (float(f"{values[LR] / LR_FACTOR:.2g}"), float(f"{values[LR] * LR_FACTOR:.2g}"))
    return ranges


def _limits(facts: ScriptFacts) -> dict[str, Any]:
    """Return the script's own limits; RLlib ends a training after a whole batch, so that it has one at least."""
    stops = {name.rpartition("/")[2]: value for name, value in facts.stop.items() if 0 < value < math.inf}
    steps = [stops[name] for name in ("num_env_steps_sampled_lifetime", "timesteps_total") if name in stops]
    if facts.base_algorithm == "PPO" and "training_iteration" in stops:  # an iteration is a batch
        steps.append(stops["training_iteration"] * _batch_of(facts))
    limits: dict[str, Any] = {"env_steps": max(int(min(steps)), _batch_of(facts))} if steps else {}
    return limits | ({"time_s": stops["time_total_s"]} if "time_total_s" in stops else {})


def _batch_of(facts: ScriptFacts) -> int:
    return int(facts.values.get(BATCH) or 1000)
