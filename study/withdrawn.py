"""What version 0.12.2 had and this one does not: whoever asks for it reads so in one line. Imports no engine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from study.errors import Fault, StudyError

_HONESTY = "Leave it out: `certificate verify` shows that the arithmetic is right, not that the records are honest."
WITHDRAWN: Mapping[str, str] = {
    "replay": "Read what it found in study/designs/holdup/evidence.md, or run it in version 0.12.2.",
    "export --format patch": "Leave out --format: the calls to add to your script are printed.",
    "adopt --episodes": "Leave it out; `evaluate SPACE --random --episodes 200` measures the floor of a space.",
    "evaluate --render": "Use --video, which films the episodes.",
    "evaluate --best-and-worst": "Leave it out: a film shows the first episodes.",
    "evaluate --attach": "Leave it out; `python -m study sync STUDY` brings a study's films to MLflow.",
    "evaluate --tracking-uri": "Leave it out; `python -m study sync STUDY --tracking-uri URI` brings films there.",
    "seams": "Run `pytest tests/contract/test_private.py`, which checks what is used of Ray, RLlib, MLflow and JAX.",
    "launch --jump": "Leave it out, and add `-J FRONT-END` to the ssh line that --dashboard prints.",
    "launch --stage": "Copy the environment in --activate: study/launch/README.md has the line.",
    "launch --min-nodes": "Leave it out: a job begins with all its nodes, so ask for as many as it needs.",
    **{f"certificate verify --{option}": _HONESTY for option in ("frozen", "rerun", "seed", "tracking-uri")},
}
"""Command, or command with an option and its value -> what to do instead."""
VALUES: Mapping[tuple[str, str], str] = {
    ("learner", "lean"): "Remove it: the fused learner serves where it can, else RLlib's own.",
}
"""Key of a space, and a value that it had -> what to do instead."""
KEYS: Mapping[str, str] = {
    "holdup.calibrate": "Remove it: the search begins with this project's default setting.",
    "holdup.stress": "Remove it: the best of the race is confirmed, at unseen scales too.",
    "holdup.measure": "Remove it: a throughput study answers the clock, `python run_study.py --space throughput.yaml`.",
    "holdup.cpu_hours": "Remove it: --dry-run says what the study costs; lower the sizes of its stages.",
}
"""Key of a space -> what to do instead."""
NAMES: Mapping[str, str] = {
    "table not_measured": "Read the trials, which name each clock.",
    "table pop_tree": "Read the phases.",
    "table recommendation": "Read the answer, its price list, and the phases.",
    "figure weak_efficiency": "Read the table weak_scaling, or plot its estimates: weak_efficiency.",
    "figure return_wall_clock": "Plot return_steps, or draw `study.evaluations` against wall_time_s.",
    "figure importance": "Run `python -m study importance STUDY`.",
    "figure throughput": "Plot the efficiency, or read the price list.",
    "figure time_to_target": "Plot the steps to the target, or read its table.",
    **{f"quantity {name}": "Ask for steps_to_target." for name in ("goodput", "statistical_efficiency")},
    **{f"quantity {name}": "Ask for share_runners, or load_balance." for name in ("transfer", "useful_share")},
    "quantity share_unexplained": "Ask for share_rest.",
    "quantity best_train_batch_size": "Ask for steps_to_target, by batch.",
    "quantity knee_num_env_runners": "Ask for limit_num_env_runners.",
    "quantity ceiling_of_all_batches_env_steps_per_s": "Ask for ceiling_env_steps_per_s.",
}
"""Table, figure or quantity of `analysis` -> what to do instead."""


def refuse_withdrawn(words: Sequence[str]) -> None:
    """Refuse a command line that asks for something that is gone.

    Raises:
        StudyError: It does.
    """
    given = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for name, fix in WITHDRAWN.items():
        command, dashes, option = name.partition(" --")
        asked = command.split(), f"{dashes.strip()}{option}".split()
        rest = given[len(asked[0]) :]
        places = (rest[start : start + len(asked[1])] for start in range(len(rest) + 1))
        if given[: len(asked[0])] == asked[0] and asked[1] in places:
            raise StudyError(where=name, rule="was withdrawn in version 0.13.0", fix=fix)


def withdrawn_values(content: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each key or value in the content of a space that is gone."""
    for place, fix in KEYS.items():
        section, _, name = place.partition(".")
        if isinstance(content.get(section), Mapping) and name in content[section]:
            yield Fault(where=place, rule="was withdrawn in version 0.15.0", fix=fix)
    for (key, value), fix in VALUES.items():
        if content.get(key) == value:
            yield Fault(where=key, rule=f"`{value}` was withdrawn in version 0.13.0", fix=fix)
