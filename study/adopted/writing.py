"""Writes the space of a study around a script's own values, as YAML text. Pure.

The script's values are the baseline, which runs first at every scale. Runners, batch and learning rate are varied
around them; what the script lets Tune choose is varied as the script says.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from study.space.parameters import PARAMETERS, SCALE, Value
from study.space.script import ScriptFacts, of_script
from study.text import listed

BATCH, LR = "train_batch_size", "lr"
BATCH_FACTOR, LR_FACTOR = 4, 10
"""A range goes from the script's value divided by this to the value times this."""
DEFAULT_BATCHES = 100
"""Train batches of a trial where the script has no limit of its own."""
TRIALS_PER_SCALE = 4
"""The script's own values, and three proposals."""


def space_text(
    facts: ScriptFacts,
    searched: Mapping[str, Any],
    *,
    config: str,
    args: str = "",
    runners: Sequence[int] = (),
    trials: int | None = None,
) -> str:
    """Return a space around a script's values, as YAML with comments.

    Args:
        facts: Of the script.
        searched: Our parameter, or another setting of RLlib -> what the script lets Tune choose from.
        config: The script, as it was named.
        args: Its arguments, as one text.
        runners: The scales; empty: those that the script lets Tune choose, or from one runner to twice the script's.
        trials: Number of trials; None: four for each scale.
    """
    scales = tuple(runners) or _scales(facts, searched.get(SCALE, {}))
    budget = _budget(facts)
    ranges = _ranges(facts, searched, max(scales), budget.get("env_steps"))
    varied = [words for name, words in {BATCH: "batch", LR: "learning rate"}.items() if name in ranges]
    what = f"; {listed(varied)} searched" if varied else ""
    lines = [
        f"# A study around the values of {facts.source.file}:",
        f"# {facts.algorithm} on {facts.environment} ({facts.found_as}).",
        "# What is not written here stays as the script says; it is read again at each start.",
        *(f"# {remark}" for remark in not_varied(facts)),
        "version: 1",
        f"description: {_text(f'{facts.source.file} with {listed([*map(str, scales)])} runners{what}')}",
        f"config: {_text(config)}",
        *([f"config_args: {_text(args)}"] if args else []),
        *_environment(facts),
        "parameters:",
        f"  {SCALE}: {list(scales)}{_comment(facts, SCALE, () if runners else searched)}",
        *(f"  {name}: {_domain(domain)}{_comment(facts, name, searched)}" for name, domain in ranges.items()),
        "budget:  # of each trial; it ends at the first of these limits",
        *(f"  {name}: {value}" for name, value in budget.items()),
        "search:",
        f"  num_trials: {trials or TRIALS_PER_SCALE * len(scales)}",
        *_baseline(facts, ranges, searched, max(scales)),
    ]
    return "\n".join(lines) + "\n"


def _scales(facts: ScriptFacts, domain: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the scales; `domain` is what the script lets Tune choose from, if it does."""
    own = max(int(facts.values.get(SCALE) or 0), 1)
    given = domain.get("choices") or ([domain["low"], own, domain["high"]] if domain else [1, own, 2 * own])
    return tuple(sorted({max(int(each), 1) for each in given}))


def not_varied(facts: ScriptFacts) -> Iterator[str]:
    """Yield what a reader would expect to be varied, and is not."""
    if not _knows_batch(facts) and BATCH not in facts.searched:
        yield f"`{BATCH}` is not varied: {facts.algorithm} has a training step of its own, which may not read it."
    for name in facts.schedules:
        yield f"`{name}` follows the script's schedule and is not varied."
    for name in facts.overridden:
        yield f"`{name}` is not varied: every module that learns has its own (algorithm_config_overrides_per_module)."
    known = of_script(facts).parameters
    for name in facts.searched:
        if name not in known:
            yield f"The script lets Tune choose `{name}`, which a study does not vary: it has one of these values."
    others = facts.stop.keys() - {(_target(facts) or ("",))[0]}
    if others and not _limits(facts):
        names = ", ".join(sorted(others))
        yield f"Its stop criterion {names} is no number of steps: a trial has {DEFAULT_BATCHES} batches."


def _environment(facts: ScriptFacts) -> Iterator[str]:
    yield "# environment: {floor: …, reference: …} makes scores: the returns of a random policy, which"
    yield "# `python -m study evaluate THIS_FILE --random --episodes 200` measures, and of a good one."
    if (target := _target(facts)) is not None:
        yield "environment:"
        yield f"  target: {target[1]:.12g}  # the script's stop criterion {target[0]}"


def _stops(facts: ScriptFacts) -> dict[str, float]:
    """Return the script's stop criteria that are finite numbers."""
    numbers = {name: value for name, value in facts.stop.items() if type(value) in (int, float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _target(facts: ScriptFacts) -> tuple[str, float] | None:
    """Return the stop criterion that is a return, with its value: one of the environment that evaluates."""
    other = facts.settings.get("evaluation_config", {})
    elsewhere = isinstance(other, str) or bool({"env", "env_config"} & other.keys())
    for name, value in _stops(facts).items():
        is_return = name.rpartition("/")[2] in ("episode_return_mean", "episode_reward_mean")
        if is_return and (not elsewhere or name.startswith("evaluation/")):
            return name, float(value)
    return None


def _budget(facts: ScriptFacts) -> dict[str, Any]:
    """Return the limits of a trial, as a space has them: the script's own where it has any."""
    return _limits(facts) or {"env_steps": DEFAULT_BATCHES * _batch(facts)}


def _batch(facts: ScriptFacts) -> int:
    return int(facts.values.get(BATCH) or 1000)


def _limits(facts: ScriptFacts) -> dict[str, Any]:
    """Return the script's own limits; RLlib ends a training after a whole batch, so that it has one at least."""
    stops = {name.rpartition("/")[2]: value for name, value in _stops(facts).items() if value > 0}
    steps = [stops[name] for name in ("num_env_steps_sampled_lifetime", "timesteps_total") if name in stops]
    if facts.base_algorithm == "PPO" and "training_iteration" in stops:  # an iteration is a batch
        steps.append(stops["training_iteration"] * _batch(facts))
    limits: dict[str, Any] = {"env_steps": max(int(min(steps)), _batch(facts))} if steps else {}
    return limits | ({"time_s": stops["time_total_s"]} if "time_total_s" in stops else {})


def _ranges(
    facts: ScriptFacts, searched: Mapping[str, Any], most_runners: int, env_steps: int | None
) -> dict[str, Any]:
    """Return what is varied: parameter -> range or choices, in the order of `study.space.parameters`."""
    values, known = facts.defaults, of_script(facts).parameters
    ranges: dict[str, Any] = {}
    if BATCH in values and _knows_batch(facts):
        batch = int(values[BATCH])
        least = max(batch // BATCH_FACTOR, int(values.get("minibatch_size", 1)), _lanes(facts, most_runners))
        most = max(batch, min(batch * BATCH_FACTOR, (env_steps or batch * BATCH_FACTOR * 2) // 2))
        if least < most:
            ranges[BATCH] = {"low": least, "high": most, "log": True}
    if LR in values and LR not in facts.schedules:
        ranges[LR] = {"low": _rounded(values[LR] / LR_FACTOR), "high": _rounded(values[LR] * LR_FACTOR), "log": True}
    for name, domain in searched.items():
        if name in known and name not in (SCALE, *facts.overridden) and _is_allowed(name, domain):
            ranges[name] = domain
    return {name: ranges[name] for name in PARAMETERS if name in ranges}


def _knows_batch(facts: ScriptFacts) -> bool:
    """Return whether the algorithm is one of RLlib's, or derived from one, so that it reads the train batch."""
    return facts.base_algorithm != "Algorithm"


def _lanes(facts: ScriptFacts, runners: int) -> int:
    """Return the least train batch: a step of each environment; a batch from a replay buffer has no such limit."""
    return runners * int(facts.defaults.get("num_envs_per_env_runner", 1)) if facts.is_on_policy else 1


def _is_allowed(parameter: str, domain: Mapping[str, Any]) -> bool:
    """Return whether a space can hold what the script lets Tune choose from."""
    numbers = domain.get("choices", [domain.get("low"), domain.get("high")])
    plain = [each for each in numbers if isinstance(each, (int, float)) and not isinstance(each, bool)]
    allowed = [each for each in plain if PARAMETERS[parameter].allows(each)]
    return len(allowed) == len(numbers) and len(set(numbers)) > 1


def _baseline(
    facts: ScriptFacts, ranges: Mapping[str, Any], searched: Mapping[str, Any], most_runners: int
) -> Iterator[str]:
    """Yield the setting that runs first: the script's values of what is varied."""
    own = {name: facts.defaults[name] for name in ranges if name not in searched and name in facts.defaults}
    lanes = _lanes(facts, most_runners)
    if BATCH in own and own[BATCH] < ranges[BATCH]["low"]:
        del own[BATCH]
        yield f"  # The script's batch of {facts.defaults[BATCH]} is less than a step of each of {lanes} environments."
    if not own:
        return
    yield "  baselines:  # they run first, at every scale"
    yield f"    - name: {_text(facts.source.file.removesuffix('.py'))}"
    yield f"      parameters: {{{', '.join(f'{name}: {value!r}' for name, value in own.items())}}}"


def _comment(facts: ScriptFacts, name: str, searched: Collection[str]) -> str:
    if name in searched:
        return "  # as the script lets Tune choose"
    return f"  # the script has {facts.values[name]!r}" if name in facts.values else ""


def _domain(domain: Mapping[str, Any]) -> str:
    if "choices" in domain:
        return f"[{', '.join(map(repr, domain['choices']))}]"
    inside = ", ".join(f"{name}: {str(value).lower()}" for name, value in domain.items())
    return f"{{{inside}}}"


def _rounded(value: Value) -> float:
    return float(f"{value:.2g}")


def _text(value: str) -> str:
    """Return text as YAML reads it back."""
    return json.dumps(value, ensure_ascii=False)
