"""Writes the space of a study around a script's own values, as YAML text. Pure.

The script's values are the baseline, which runs first at every scale. Runners, batch and learning rate are varied
around them; what the script lets Tune choose is varied as the script says.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.space.algorithms import of_script
from study.space.parameters import PARAMETERS, SCALE, Value
from study.space.script import ScriptFacts
from study.statistics import mean_interval

BATCH, LR = "train_batch_size", "lr"
BATCH_FACTOR, LR_FACTOR = 4, 10
"""A range goes from the script's value divided by this to the value times this."""
DEFAULT_BATCHES = 100
"""Train batches of a trial where the script has no limit of its own."""
TRIALS_PER_SCALE = 4
"""The script's own values, and three proposals."""
OF_TUNE = {"train_batch_size_per_learner": BATCH}
"""Setting of RLlib -> our parameter, where the names differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The return of a random policy.

    Attributes:
        value: In as many digits as the interval supports (return units).
        comment: How it was measured, with the interval.
    """

    value: float
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for.

    Attributes:
        config: The script, as it was named.
        args: Its arguments, as one text.
        runners: The scales; empty: from one runner to twice the script's.
        trials: Number of trials; None: four for each scale.
        floor: Measured by a random policy; None where nobody measured it.
    """

    config: str
    args: str = ""
    runners: tuple[int, ...] = ()
    trials: int | None = None
    floor: Floor | None = None


def floor_of(returns: Sequence[float], *, num_cut: int) -> Floor | None:
    """Return the floor that episodes of a random policy give; None where they have no interval.

    Args:
        returns: Undiscounted return of each episode.
        num_cut: Episodes that did not end.
    """
    mean = mean_interval(returns)
    half = (mean.high - mean.low) / 2
    if not math.isfinite(half):
        return None
    # The last digit is within half the width of the interval, so that what is rounded stays inside.
    value = mean.value if half == 0 else round(mean.value, -math.floor(math.log10(half))) + 0.0
    cut = f", {num_cut} of them cut" if num_cut else ""
    comment = f"random policy: {mean.value:.4g} [{mean.low:.4g}, {mean.high:.4g}] over {len(returns)} episodes{cut}"
    return Floor(value=value, comment=comment)


def space_text(facts: ScriptFacts, searched: Mapping[str, Any], wanted: Wanted) -> str:
    """Return a space around a script's values, as YAML with comments.

    Args:
        facts: Of the script.
        searched: Setting of RLlib -> what the script lets Tune choose from.
        wanted: What the command line asks for.
    """
    scales = wanted.runners or _scales(facts)
    budget = _budget(facts)
    ranges = _ranges(facts, searched, max(scales), budget.get("env_steps"))
    varied = [name for name in ("batch", "learning rate") if {"batch": BATCH, "learning rate": LR}[name] in ranges]
    lines = [
        f"# A study around the values of {facts.source.file}:",
        f"# {facts.algorithm} on {facts.environment} ({facts.found_as}).",
        "# What is not written here stays as the script says; it is read again at each start.",
        *(f"# {remark}" for remark in _remarks(facts, searched)),
        "version: 1",
        f"description: {_text(_description(facts, scales, varied))}",
        f"config: {_text(wanted.config)}",
        *([f"config_args: {_text(wanted.args)}"] if wanted.args else []),
        *_environment(facts, wanted.floor),
        "parameters:",
        f"  {SCALE}: {list(scales)}  # the script has {facts.values.get(SCALE, 0)}",
        *(f"  {name}: {_domain(domain)}{_comment(facts, name, searched)}" for name, domain in ranges.items()),
        "budget:  # of each trial; it ends at the first of these limits",
        *(f"  {name}: {value}" for name, value in budget.items()),
        "search:",
        f"  num_trials: {wanted.trials or TRIALS_PER_SCALE * len(scales)}",
        *_baseline(facts, ranges, searched, max(scales)),
    ]
    return "\n".join(lines) + "\n"


def _scales(facts: ScriptFacts) -> tuple[int, ...]:
    own = max(int(facts.values.get(SCALE) or 0), 1)
    return tuple(sorted({1, own, 2 * own}))


def _description(facts: ScriptFacts, scales: Sequence[int], varied: Sequence[str]) -> str:
    *first, last = map(str, scales)
    runners = f"{', '.join(first)} and {last}" if first else last
    what = f"; {' and '.join(varied)} searched" if varied else ""
    return f"{facts.source.file} with {runners} runners{what}"


def _remarks(facts: ScriptFacts, searched: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader would miss otherwise."""
    for name in facts.schedules:
        yield f"`{name}` follows the script's schedule and is not varied."
    known = of_script(facts).parameters
    for name in searched:
        if (parameter := OF_TUNE.get(name, name)) not in known:
            yield f"The script lets Tune choose `{parameter}`, which a study does not vary: it has one of these values."


def _environment(facts: ScriptFacts, floor: Floor | None) -> Iterator[str]:
    target = _target(facts)
    if floor is None and target is None:
        return
    yield "environment:"
    if floor is not None:
        yield f"  floor: {floor.value:.12g}  # {floor.comment}"
    if target is not None:
        yield f"  target: {target[1]:.12g}  # the script's stop criterion {target[0]}"
    yield "  # reference: the return of a good policy; with floor and target it makes scores"


def _target(facts: ScriptFacts) -> tuple[str, float] | None:
    """Return the stop criterion that is a return, with its value."""
    for name, value in facts.stop.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if (
            name.rpartition("/")[2] in ("episode_return_mean", "episode_reward_mean")
            and is_number
            and math.isfinite(value)
        ):
            return name, float(value)
    return None


def _budget(facts: ScriptFacts) -> dict[str, Any]:
    """Return the script's own limits, as a space has them."""
    batch = int(facts.values.get(BATCH) or 1000)
    limits: list[float] = []
    time_s = None
    for name, value in facts.stop.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            continue
        last = name.rpartition("/")[2]
        if last in ("num_env_steps_sampled_lifetime", "timesteps_total"):
            limits.append(value)
        elif last == "training_iteration" and facts.base_algorithm == "PPO":  # an iteration is a batch
            limits.append(value * batch)
        elif last == "time_total_s":
            time_s = value
    steps = int(min(limits)) if limits else None
    if steps is None and time_s is None:
        steps = DEFAULT_BATCHES * batch
    return {**({} if steps is None else {"env_steps": steps}), **({} if time_s is None else {"time_s": time_s})}


def _ranges(
    facts: ScriptFacts, searched: Mapping[str, Any], most_runners: int, env_steps: int | None
) -> dict[str, Any]:
    """Return what is varied: parameter -> range or choices, in the order of `study.space.parameters`."""
    values, known = facts.defaults, of_script(facts).parameters
    ranges: dict[str, Any] = {}
    if BATCH in values and BATCH not in facts.schedules:
        batch = int(values[BATCH])
        least = max(
            batch // BATCH_FACTOR,
            int(values.get("minibatch_size", 1)),
            most_runners * int(values.get("num_envs_per_env_runner", 1)),
        )
        most = max(batch, min(batch * BATCH_FACTOR, (env_steps or batch * BATCH_FACTOR * 2) // 2))
        if least < most:
            ranges[BATCH] = {"low": least, "high": most, "log": True}
    if LR in values and LR not in facts.schedules:
        ranges[LR] = {"low": _rounded(values[LR] / LR_FACTOR), "high": _rounded(values[LR] * LR_FACTOR), "log": True}
    for name, domain in searched.items():
        if (parameter := OF_TUNE.get(name, name)) in known and _is_allowed(parameter, domain):
            ranges[parameter] = domain
    return {name: ranges[name] for name in PARAMETERS if name in ranges}


def _is_allowed(parameter: str, domain: Mapping[str, Any]) -> bool:
    """Return whether a space can hold what the script lets Tune choose from."""
    numbers = domain.get("choices", [domain.get("low"), domain.get("high")])
    return (
        all(
            isinstance(each, (int, float)) and not isinstance(each, bool) and PARAMETERS[parameter].allows(each)
            for each in numbers
        )
        and len(set(numbers)) > 1
    )


def _baseline(
    facts: ScriptFacts, ranges: Mapping[str, Any], searched: Mapping[str, Any], most_runners: int
) -> Iterator[str]:
    """Yield the setting that runs first: the script's values of what is varied."""
    of_tune = {OF_TUNE.get(name, name) for name in searched}
    own = {name: facts.defaults[name] for name in ranges if name not in of_tune and name in facts.defaults}
    lanes = most_runners * int(facts.defaults.get("num_envs_per_env_runner", 1))
    if BATCH in own and own[BATCH] < ranges[BATCH]["low"]:
        del own[BATCH]
        yield f"  # The script's batch of {facts.defaults[BATCH]} is less than a step of each of {lanes} environments."
    if not own:
        return
    yield "  baselines:  # they run first, at every scale"
    yield f"    - name: {_text(facts.source.file.removesuffix('.py'))}"
    yield f"      parameters: {{{', '.join(f'{name}: {value!r}' for name, value in own.items())}}}"


def _comment(facts: ScriptFacts, name: str, searched: Mapping[str, Any]) -> str:
    if name in {OF_TUNE.get(each, each) for each in searched}:
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
