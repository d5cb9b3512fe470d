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
from study.adopted.facts import MistakeError


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
        searched = searched_in(vars(config))
        for name, domain in searched.items():
            setattr(config, name, _one_of(name, domain))
        _refuse_nested(vars(config))
        return _of_class(config, trainable), {name.strip("_"): domain for name, domain in searched.items()}
    if not isinstance(content, Mapping):
        rule, got = "the parameters of a training must be an AlgorithmConfig", type(content).__name__
        raise MistakeError(rule=rule, got=got, fix="Give Tune an AlgorithmConfig or a dictionary.")
    values = dict(content)
    searched = searched_in(values)
    values.update({name: _one_of(name, domain) for name, domain in searched.items()})
    _refuse_nested(values)
    default = _class_of(trainable).get_default_config()
    try:
        config = default.update_from_dict(values)
    except Exception as error:
        rule, got = "RLlib must accept the dictionary of settings", f"{type(error).__name__}: {error}"
        raise MistakeError(rule=rule, got=got, fix="Write it as an AlgorithmConfig, such as PPOConfig().") from error
    return config, searched


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


def searched_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for which Tune would choose a value: name -> its description."""
    return {name: value for name, value in values.items() if _is_domain(value)}


def _refuse_nested(values: Mapping[str, Any]) -> None:
    """Refuse what Tune would choose inside of a setting, such as `env_config`: a trial would get the description.

    Raises:
        MistakeError: Names it.
    """
    if (place := next(_domains_in(values), None)) is not None:
        rule, fix = "Tune must choose whole settings of the configuration", "Give it one value."
        raise MistakeError(rule=rule, got=place, fix=fix)


def _domains_in(value: Any, place: str = "", depth: int = 5) -> Iterator[str]:
    """Yield where in a setting Tune would choose a value."""
    if _is_domain(value):
        yield place
    elif depth and isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _domains_in(inner, f"{place}[{name!r}]" if place else str(name).strip("_"), depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _domains_in(inner, f"{place}[{number}]", depth - 1)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from _domains_in(getattr(value, each.name, None), f"{place}.{each.name}", depth - 1)


def _is_domain(value: Any) -> bool:
    is_grid = isinstance(value, Mapping) and tuple(value) == ("grid_search",)
    return is_grid or isinstance(value, tune.search.sample.Domain)


def _one_of(name: str, domain: Any) -> Any:
    """Return a value in the middle of what Tune would choose from."""
    if isinstance(domain, Mapping):
        return domain["grid_search"][0]
    if (categories := getattr(domain, "categories", None)) is not None:
        return next(iter(categories))
    low, high = getattr(domain, "lower", None), getattr(domain, "upper", None)
    if low is None or high is None or not abs(low) < float("inf") or not abs(high) < float("inf"):
        rule, fix = f"Tune must choose `{name}` from a list or a range", "Give the setting one value."
        raise MistakeError(rule=rule, got=type(domain).__name__, fix=fix)
    is_log, _ = _sampling(domain)
    middle = (low * high) ** 0.5 if is_log else (low + high) / 2
    return round(middle) if isinstance(domain, tune.search.sample.Integer) else middle


def _sampling(domain: Any) -> tuple[bool, float | None]:
    """Return whether Tune draws the logarithm of a range uniformly, and the step to which it rounds."""
    sampler = domain.get_sampler()
    step = getattr(sampler, "q", None)
    return "Log" in type(getattr(sampler, "sampler", sampler)).__name__, step


def choices_of(domain: Any, times: int = 1) -> dict[str, Any]:
    """Return what Tune would choose from, as a space writes it: `choices`, or `low`, `high` and `log`.

    Args:
        domain: What the script gives to Tune.
        times: Factor of its sizes: how many learners have one each.
    """
    choices = domain["grid_search"] if isinstance(domain, Mapping) else getattr(domain, "categories", None)
    if choices is not None:
        return {"choices": [each * times if times > 1 else each for each in plain(list(choices))]}
    is_whole = type(domain).__name__ == "Integer"
    kind = int if is_whole else float
    is_log, step = _sampling(domain)
    high = domain.upper - 1 if is_whole and step is None else domain.upper  # Tune leaves the end of whole numbers out
    return {"low": kind(domain.lower) * times, "high": kind(high) * times, **({"log": True} if is_log else {})}
