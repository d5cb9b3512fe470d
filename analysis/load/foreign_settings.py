"""What other people's RLlib scripts told MLflow about a run -> our names of settings and resources. Pure."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from analysis.load import rllib_names as names
from analysis.load.columns import RUN_COLUMNS
from analysis.load.fingerprint import asked, fingerprint
from analysis.load.rllib_names import Keys
from study.space.parameters import PARAMETERS, SCALE

_WHOLE = frozenset(name for name, column in RUN_COLUMNS.items() if column.dtype == "Int64")
_NETWORK = ("model", "model_config", "_model_config")
_KWARGS = "env_config"


@lru_cache(maxsize=256)
def keys_of(keys: frozenset[str]) -> Keys:
    """Return the index of a set of keys; runs of one script share theirs."""
    return Keys(keys)


class Settings:
    """The settings of one run: its parameters, and the configuration that Ray's callback puts among its metrics."""

    def __init__(self, params: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        self._params, self._metrics = params, metrics
        self._in_params = keys_of(frozenset(params))
        config = {key for key in metrics if names.canonical(key).startswith(names.CONFIG)}
        self._in_metrics = keys_of(frozenset(config))

    def number(self, candidates: Iterable[str]) -> float | None:
        """Return the first of the candidates that has a finite number; None when none has."""
        for name in candidates:
            if (key := self._in_params.first((name,))) is not None:
                try:
                    value = float(self._params[key])
                except ValueError:
                    continue  # `None`, `auto`, a schedule
                if abs(value) < names.HUGE:
                    return value
            if (key := self._in_metrics.first((name,))) is not None and abs(self._metrics[key]) < names.HUGE:
                return self._metrics[key]
        return None

    def text(self, candidates: Iterable[str]) -> str | None:
        """Return the first of the candidates that is there."""
        key = self._in_params.first(candidates)
        return self._params[key] if key is not None else None

    def below(self, *prefixes: str) -> dict[str, str]:
        """Return the parameters under one of some prefixes, without it."""
        found: dict[str, str] = {}
        for key, value in sorted(self._params.items()):
            parts = key.removeprefix("config/").replace(".", "/").split("/")
            if len(parts) > 1 and parts[0] in prefixes:
                found["/".join(parts[1:])] = value
        return found


def settings_of(settings: Settings) -> dict[str, Any]:
    """Return the columns of a run that are its settings: parameters, learners, CPUs, fingerprint; absent if unknown."""
    found = {name: settings.number(candidates) for name, candidates in names.PARAMS.items()}
    values: dict[str, Any] = {
        name: int(value) if name in _WHOLE else value for name, value in found.items() if value is not None
    }
    learners = max(int(values.get("num_learners", 0)), 1)
    per_learner = settings.number((names.TRAIN_BATCH_PER_LEARNER,))
    batch = per_learner * learners if per_learner else settings.number((names.TRAIN_BATCH,))
    if batch:
        values["train_batch_size"] = int(batch)
    if "minibatch_size" in values:
        values["minibatch_size"] *= learners  # RLlib's is that of each learner
    setting = {name: values[name] for name in PARAMETERS if name in values}
    kwargs, network = settings.below(_KWARGS), settings.below(*_NETWORK)
    environment = {"id": settings.text(names.ENVIRONMENT), **({"kwargs": kwargs} if kwargs else {})}
    workload = {"environment": environment, "network": network or None}
    return {
        **values,
        "num_cpus": _num_cpus(settings, values),
        "fingerprint": fingerprint(workload, asked(setting, execution="real", num_learners=values.get("num_learners"))),
    }


def _num_cpus(settings: Settings, values: Mapping[str, Any]) -> int | None:
    """Return the CPUs that RLlib reserves, where everything that they follow from is known."""
    main = settings.number(names.CPUS_MAIN)
    runner = settings.number(names.CPUS_RUNNER)
    learners, learner = values.get("num_learners"), settings.number(names.CPUS_LEARNER)
    if main is None or runner is None or SCALE not in values or learners is None:
        return None
    if learners and learner is None:
        return None
    total: float = main + values[SCALE] * runner + learners * (learner or 0)
    return round(total)
