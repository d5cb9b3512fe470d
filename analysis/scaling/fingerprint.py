"""Workload fingerprints: in what two differ, and what tells many apart. Imports orjson, names of parameters."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import orjson

from study.engine import engine_of
from study.errors import AnalysisError
from study.space.parameters import PARAMETERS, SCALE
from study.space.sections import LEARNERS

BATCH = "train_batch_size"
SETTINGS: Mapping[str, str] = MappingProxyType(
    {name: f"parameters.{name}" for name in PARAMETERS if name != SCALE}
    | {"minibatch_times_learners": "parameters.minibatch_size", LEARNERS: f"resources.{LEARNERS}"}
)
"""Field -> its place in a space. A command can run missing combinations of these, so their effect can be told apart
from that of the scale; that of hardware, versions or code cannot be from here."""
IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "train_batch_size": "batch",
        "lr": "learning rate",
        "minibatch_size": "minibatch",
        "minibatch_times_learners": "minibatch",
        "num_epochs": "epochs",
        "num_envs_per_env_runner": "environments per runner",
        "steps_per_env_runner": "steps per runner",
        "env_steps_per_runner": "steps per runner",
        "clip_param": "clip",
        "entropy_coeff": "entropy coefficient",
        "grad_clip": "gradient clip",
        "vf_loss_coeff": "value loss coefficient",
        "vf_clip_param": "value clip",
        LEARNERS: "learners",
        "max_iterations": "iterations",
        "cpu_model": "CPU model",
        "id": "environment",
    }
)
"""Parameter or field -> what people call it; in a sentence the first ones are named first."""
ENGINE = "engine"
"""Field that says which runner and learner were built, see `study.engine`."""
_BUILT, _ASKED = ("effective_runner.runner_class", "effective_learner.learner_class"), ("runner", "learner")
ABSENT = "absent"
"""Stands for the value of a field that one of two fingerprints lacks."""


@lru_cache(maxsize=4096)
def fields(fingerprint: str) -> Mapping[str, Any]:
    """Return the fields of a fingerprint, nested ones by dotted names (`environment.id`), the engine as one.

    Raises:
        AnalysisError: It is no JSON object.
    """
    try:
        content = orjson.loads(fingerprint)
    except orjson.JSONDecodeError:
        content = None
    if not isinstance(content, dict):
        rule = "must be the JSON text of an object"
        raise AnalysisError(
            where="fingerprint", rule=rule, got=f"{fingerprint[:60]!r}", fix="Load the runs by analysis.load."
        )
    return _with_engine(dict(_flat(content)))


def _with_engine(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with `engine` in place of those that say which runner and learner were asked and built."""
    engine = engine_of({name.rpartition(".")[2]: content[name] for name in _BUILT if name in content})
    if engine is None:
        return content
    return {name: value for name, value in content.items() if name not in (*_BUILT, *_ASKED)} | {ENGINE: engine}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", tuple(value) if isinstance(value, list) else value


def differing(first: str, second: str) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two fingerprints differ, each with its two values."""
    one, two = fields(first), fields(second)
    names = sorted(one.keys() | two.keys())
    pairs = {name: (one.get(name, ABSENT), two.get(name, ABSENT)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def replaced(fingerprint: str, gone: Iterable[str], added: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the fingerprint without some of its outermost fields, and with others in their place."""
    left_out = frozenset(gone)
    content = {name: value for name, value in orjson.loads(fingerprint).items() if name not in left_out}
    return orjson.dumps(content | dict(added), option=orjson.OPT_SORT_KEYS).decode()


def labels(fingerprints: Sequence[str]) -> list[str]:
    """Return a short name for each fingerprint: the fields in which they are not all equal, else the environment."""
    contents = [fields(fingerprint) for fingerprint in fingerprints]
    names = sorted({name for content in contents for name in content})
    varying = [name for name in names if len({repr(content.get(name)) for content in contents}) > 1]
    shown = varying or [
        name
        for name in ("environment.id", BATCH, "env_steps_per_runner", "digest")
        if any(name in content for content in contents)
    ]
    return [
        ", ".join(f"{in_words(name.rpartition('.')[2])} {text_of(content[name])}" for name in shown if name in content)
        for content in contents
    ]


def in_words(name: str) -> str:
    """Return what people call a parameter or a field."""
    return IN_WORDS.get(name, name.replace("_", " "))


def value_in_words(value: float) -> str:
    """Return a parameter's value as one says it: whole digits in full, decimals to three significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1_000 else f"{float(value):.3g}"


def text_of(value: Any) -> str:
    """Return a value of a field as text: whole numbers in full, others to six digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
