"""What a call of Tune or of an algorithm names: a configuration, and what Tune would choose. Imports RLlib."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune import registry

from study.adopted.describing import plain
from study.adopted.reading import MistakeError

_DEEPEST = 5
"""Levels of a setting in which a choice of Tune is looked for."""


def as_config(content: Any, trainable: Any = None) -> tuple[AlgorithmConfig, dict[str, Any]]:
    """Return the configuration that a call of Tune or of an algorithm's constructor names.

    Args:
        content: An `AlgorithmConfig`, or a dictionary of its settings.
        trainable: The algorithm: a class or RLlib's name of one. None: the configuration's own.

    Returns:
        A copy of it, and what Tune would choose: setting -> values; the copy has one of them.

    Raises:
        MistakeError: No configuration can be made of it.
    """
    if isinstance(content, AlgorithmConfig):
        config = content.copy(copy_frozen=False)
        searched = _take_one_of_each(vars(config))
        return _of_class(config, trainable), {name.strip("_"): domain for name, domain in searched.items()}
    if not isinstance(content, Mapping):
        rule, got = "the parameters of a training must be an AlgorithmConfig", type(content).__name__
        raise MistakeError(rule=rule, got=got, fix="Give Tune an AlgorithmConfig or a dictionary.")
    values = dict(content)
    searched = _take_one_of_each(values)
    default = _class_of(trainable).get_default_config()
    try:
        return default.update_from_dict(values), searched
    except Exception as error:
        rule, got = "RLlib must accept the dictionary of settings", f"{type(error).__name__}: {error}"
        raise MistakeError(rule=rule, got=got, fix="Write it as an AlgorithmConfig, such as PPOConfig().") from error


def _class_of(trainable: Any) -> type[Algorithm]:
    if inspect.isclass(trainable):
        return trainable
    try:
        found: type[Algorithm] = registry.get_trainable_cls(str(trainable))
    except Exception as error:
        rule, fix = "the algorithm must be one of RLlib", "Name one that RLlib has, such as PPO."
        raise MistakeError(rule=rule, got=f"'{trainable}'", fix=fix) from error
    return found


def _of_class(config: AlgorithmConfig, trainable: Any) -> AlgorithmConfig:
    """Return the configuration for the algorithm that shall train, which may be another than its own."""
    if trainable is None:
        return config
    algorithm = _class_of(trainable)
    default = algorithm.get_default_config()
    if not isinstance(config, type(default)):  # as the constructor of RLlib's `Algorithm` does
        config = default.update_from_dict(config.to_dict())
    config.algo_class = algorithm
    return config


def _take_one_of_each(values: dict[str, Any]) -> dict[str, Any]:
    """Put one value in the place of each choice of Tune; return the choices: setting -> domain.

    Raises:
        MistakeError: Tune would choose inside of a setting, such as `env_config`: a trial would get the domain.
    """
    found = dict(_domains_in(values))
    if inside := [place for place in found if len(place) > 1]:
        rule, got = "Tune must choose whole settings of the configuration", ".".join(inside[0]).strip("_")
        raise MistakeError(rule=rule, got=got, fix="Give it one value.")
    searched = {name: domain for (name,), domain in found.items()}
    values.update({name: _one_of(name, domain) for name, domain in searched.items()})
    return searched


def _domains_in(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield where Tune would choose a value, and from what."""
    if _is_domain(value):
        yield place, value
        return
    inner: Mapping[Any, Any] = {}
    if isinstance(value, Mapping):
        inner = value
    elif isinstance(value, (list, tuple)):
        inner = dict(enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
    if len(place) <= _DEEPEST:
        for name, each in inner.items():
            yield from _domains_in(each, (*place, str(name)))


def _is_domain(value: Any) -> bool:
    is_grid = isinstance(value, Mapping) and tuple(value) == ("grid_search",)
    return is_grid or isinstance(value, tune.search.sample.Domain)


def _categories(domain: Any) -> list[Any] | None:
    found = domain["grid_search"] if isinstance(domain, Mapping) else getattr(domain, "categories", None)
    return None if found is None else list(found)


def _is_log(domain: Any) -> bool:
    sampler = domain.get_sampler()
    return "Log" in type(getattr(sampler, "sampler", sampler)).__name__  # one that rounds holds another


def _one_of(name: str, domain: Any) -> Any:
    """Return a value in the middle of what Tune would choose from."""
    if (categories := _categories(domain)) is not None:
        return categories[0]
    low, high = getattr(domain, "lower", None), getattr(domain, "upper", None)
    if low is None or high is None or not abs(low) < float("inf") or not abs(high) < float("inf"):
        rule, fix = f"Tune must choose `{name}` from a list or a range", "Give the setting one value."
        raise MistakeError(rule=rule, got=type(domain).__name__, fix=fix)
    middle = (low * high) ** 0.5 if _is_log(domain) else (low + high) / 2
    return round(middle) if isinstance(domain, tune.search.sample.Integer) else middle


def choices_of(domain: Any, times: int = 1) -> dict[str, Any]:
    """Return what Tune would choose from, as a space writes it: `choices`, or `low`, `high` and `log`.

    Args:
        domain: What the script gives to Tune.
        times: Factor of its sizes: how many learners have one each.
    """
    if (categories := _categories(domain)) is not None:
        return {"choices": [each * times if times > 1 else each for each in plain(categories)]}
    low, high = float(domain.lower), float(domain.upper)
    if isinstance(domain, tune.search.sample.Integer):
        is_rounded = getattr(domain.get_sampler(), "q", None) is not None
        low, high = int(low), int(high) - (not is_rounded)  # Tune leaves the end of whole numbers out
    return {"low": low * times, "high": high * times, **({"log": True} if _is_log(domain) else {})}
