"""Writes the space of a study around a script's own values, as YAML text. Pure.

The script's values are the baseline, which runs first at every scale. Runners, batch and learning rate are varied
around them.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from study.space.parameters import SCALE
from study.space.space_file import written
from study.space.spec import ScriptFacts
from study.text import listed

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
    """Return a space around a script's values, as YAML with comments.

    Args:
        facts: Of the script.
        config: The script, as it was named.
        args: Its arguments, as one text.
        runners: The scales; empty: one runner, the script's number, and twice that.
        trials: Number of trials; None: four for each scale.
    """
    own, file = max(int(facts.values.get(SCALE) or 0), 1), facts.source.file
    scales = sorted(set(runners or (1, own, 2 * own)))
    budget = _limits(facts) or {"env_steps": DEFAULT_BATCHES * _batch(facts)}
    ranges = _ranges(facts, max(scales), budget.get("env_steps"))
    named = {name: facts.defaults[name] for name, (low, _) in ranges.items() if facts.defaults[name] >= low}
    baselines = [{"name": file.removesuffix(".py"), "parameters": named}]
    target = _target(facts)
    said = ", ".join(f"{name} {facts.values.get(name)}" for name in (SCALE, *ranges))
    comments = [
        f"A study around the values of {file}: {facts.algorithm} on {facts.environment} ({facts.found_as}).",
        f"The script has {said}. What is not written here stays as it says; it is read again at each start.",
        *remarks(facts),
        "`environment: {floor: …, reference: …}` makes scores: the returns of a random policy, which",
        "`python -m study evaluate THIS_FILE --random --episodes 200` measures, and of a good one.",
        "A trial ends at the first limit of its budget; baselines run first, at every scale.",
    ]
    content = {
        "version": 1,
        "description": f"{file} with {listed([*map(str, scales)])} runners",
        "config": config,
        **({"config_args": args} if args else {}),
        **({"environment": {"target": target}} if target is not None else {}),  # the script's stop criterion
        "parameters": {
            SCALE: scales,
            **{name: {"low": low, "high": high, "log": True} for name, (low, high) in ranges.items()},
        },
        "budget": budget,
        "search": {
            "num_trials": trials or TRIALS_PER_SCALE * len(scales),
            **({"baselines": baselines} if named else {}),
        },
    }
    return written(content, header="\n".join(f"# {comment}" for comment in comments))


def remarks(facts: ScriptFacts) -> Iterator[str]:
    """Yield what differs from what the script does by itself."""
    if facts.searched:
        yield (
            f"The script lets Tune choose {listed([f'`{name}`' for name in facts.searched])}; here each has one of "
            "these values. Name it under `parameters` to vary it."
        )
    if not _limits(facts):
        steps = f"{DEFAULT_BATCHES * _batch(facts):,}"
        yield f"How long the script trains is not known: a trial has {DEFAULT_BATCHES} batches, {steps} steps."


def _ranges(facts: ScriptFacts, most_runners: int, env_steps: int | None) -> dict[str, tuple[float, float]]:
    """Return parameter -> lowest and highest value."""
    values = facts.defaults
    ranges: dict[str, tuple[float, float]] = {}
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


def _batch(facts: ScriptFacts) -> int:
    return int(facts.values.get(BATCH) or 1000)


def _target(facts: ScriptFacts) -> float | None:
    """Return the stop criterion that is a return, if it is one of the environment that evaluates."""
    elsewhere = re.search(r"\benv(_config)?:|^sha256:", str(facts.settings.get("evaluation_config", "")))
    for name, value in facts.stop.items():
        if name.endswith(("episode_return_mean", "episode_reward_mean")) and math.isfinite(value):
            return None if elsewhere and not name.startswith("evaluation/") else value
    return None


def _limits(facts: ScriptFacts) -> dict[str, Any]:
    """Return the script's own limits; RLlib ends a training after a whole batch, so that it has one at least."""
    stops = {name.rpartition("/")[2]: value for name, value in facts.stop.items() if 0 < value < math.inf}
    steps = [stops[name] for name in ("num_env_steps_sampled_lifetime", "timesteps_total") if name in stops]
    if facts.base_algorithm == "PPO" and "training_iteration" in stops:  # an iteration is a batch
        steps.append(stops["training_iteration"] * _batch(facts))
    limits: dict[str, Any] = {"env_steps": max(int(min(steps)), _batch(facts))} if steps else {}
    return limits | ({"time_s": stops["time_total_s"]} if "time_total_s" in stops else {})
