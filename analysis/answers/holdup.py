"""What a hold-up study says: the setting by its values, whether it holds up, by which rule. Reads the certificate."""

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from analysis.answers.answer import Answer
from analysis.answers.facts import (
    Fact,
    capital,
    complete,
    cost_and_clocks,
    go_on,
    in_words,
    percent,
    progress,
    runners,
    table_of,
    to_copy,
)
from analysis.answers.search import candidates, titles
from analysis.estimates.certificate import DAMAGE, estimate_of
from analysis.estimates.settings import arm_in_words
from analysis.load.study_data import StudyData
from analysis.tables import columns
from analysis.tables.table import Table
from study.engine import OWN, engines_in_words
from study.space.parameters import SCALE
from study.space.settings import WINNER, WINNER_STOCK
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

MOST_BROKEN = 3
"""Broken rules that the answer names."""
ARMS = (
    columns.text("arm", "setting", "What was run."),
    columns.count(SCALE, "runners", "Environment runners."),
    columns.estimate("final_return", "1", "return", "Interquartile mean."),
    columns.text("solved", "solved", "Test runs that end at the target."),
    columns.count("steps", "steps to the target", "Mean; up to the horizon."),
)


def holdup_answer(study: "Study", price_per_cpu_hour: float | None) -> Answer:
    """Return what a hold-up study says: whether its setting learns as well with many runners as the best with few."""
    content, data = study.certificate, study.data
    if isinstance(content, str):
        return _not_yet(study, content)
    try:
        target = content["scales"]["target"]
        return Answer(
            kind=data.kind,
            findings=tuple(_facts(study, content, target)),
            setting=to_copy(_setting(content, data, target)),
            setting_is=f"the chosen setting, for {runners(target)}",
            rows=_rows(content["arms"], content["scales"]["small"]),
            figure="score",
        )
    except DAMAGE:
        fix = f"python -m study certificate write {shlex.quote(data.source)}"
        return _not_yet(study, "whether a setting holds up: certificate.json is damaged.", fix=fix)


def _facts(study: "Study", content: Mapping[str, Any], target: int) -> Iterator[Fact]:
    data, small = study.data, content["scales"]["small"]
    winner, arm = arm_in_words(WINNER, small), content["arms"][f"winner@{target}"]
    engine = engine_of_winner(data, target)
    yield Fact(role="answer", text=_verdict(content, target, small, engine), num_env_runners=target, arm=winner)
    others = [
        f"{other['solved']} of {other['n']} with {scale}"
        for scale in content["scales"]["unseen"]
        if (other := content["arms"].get(f"winner@{scale}")) is not None
    ]
    text = f"{arm['solved']} of {arm['n']} test runs were solved"
    text += f", and so were {listed(others)} runners, for which nothing was tuned" if others else ""
    yield Fact(role="support", text=f"{text}.", quantity="solved_share", num_env_runners=target, arm=winner)
    yield Fact(
        role="support", text=_rules_in_words(content, target), quantity="score", num_env_runners=target, arm=winner
    )
    if not content["verdict"]["learning"] and (seen := content.get("signs")):  # versions before 0.15.0 had none
        yield Fact(role="support", text=" ".join(seen), num_env_runners=target, arm=winner)
    yield cost_and_clocks(data, content["cpu_hours"]["all"])
    yield from titles(study, winner, target)
    yield from _unknown(content, data, target, engine)


def engine_of_winner(data: StudyData, target: int) -> str:
    """Return the engine of the chosen setting's test runs at the target scale."""
    here = data.runs[(data.runs["stage"] == "confirm") & (data.runs[SCALE] == target)]
    return engines_in_words(here.loc[here["baseline"] == WINNER, "engine"].dropna())


def _verdict(content: Mapping[str, Any], target: int, small: int, engine: str) -> str:
    if content["verdict"]["learning"]:
        return (
            f"Yes, for the engine {engine}: the chosen setting learns as well with {runners(target)} as the best one "
            f"does with {small}."
        )
    rules = _rules(content)
    broken, stopped = (sum(check["passed"] is each for check in rules) for each in (False, None))
    others = f"; {stopped} were not judged, since the study stopped at half" if stopped else ""
    why = f" It breaks {broken} of {len(rules)} rules{others}." if broken else ""
    return (
        f"No, for the engine {engine}: the chosen setting does not hold up with {runners(target)}, against the best "
        f"with {small}.{why}"
    )


def _rules(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rules of holding up: not what this study has no arm for, nor the clock of before version 0.15.0."""
    return [
        check
        for check in content["verdict"]["checks"].values()
        if not check["name"].startswith("clock@") and (check["passed"], check["value"]) != (None, None)
    ]


def _rules_in_words(content: Mapping[str, Any], target: int) -> str:
    """Return the rules that were broken; where there is none, the score at the target scale."""
    rules = _rules(content)
    broken = [check for check in rules if check["passed"] is False]
    if broken:
        more = f"; and {len(broken) - MOST_BROKEN} more" if len(broken) > MOST_BROKEN else ""
        return f"Broken: {'; '.join(_rule(content, check) for check in broken[:MOST_BROKEN])}{more}."
    kept = [check for check in rules if check["passed"] and estimate_of(check["value"]) is not None]
    asked = next((check for check in kept if check["name"] == f"score_kept@{target}"), *kept[:1])
    return f"{capital(_rule(content, asked))}." if kept else "No rule could be judged."


def _rule(content: Mapping[str, Any], check: Mapping[str, Any]) -> str:
    """Return a rule with what was found."""
    name, _, scale = check["name"].partition("@")
    value, small = estimate_of(check["value"]), content["scales"]["small"]
    if name == "solved":
        arm = content["arms"][f"winner@{scale}"]
        return f"{check['law']}, and {arm['solved']} of {arm['n']} were"
    if value is None:
        return f"{check['law']}: {check['note']}"
    if name == "steps_saved":
        inside = ", and 1 is inside" if value.low <= 1 <= value.high else ""
        return (
            f"with {scale} runners it must take fewer environment steps to the target than RLlib's defaults with the "
            f"batch grown, which take {in_words(value)} times as many{inside}"
        )
    bound = f"at least {value.low:.3f} higher" if value.low >= 0 else f"no more than {-value.low:.3f} lower"
    word = "lower" if value.value < 0 else "higher"
    return (
        f"with {scale} runners the mean score is {abs(value.value):.3f} {word} than "
        f"that of the best with {small}, {bound} ({math.floor(100 * value.level)} % confidence; "
        f"{content['laws']['tolerance']:g} lower is allowed)"
    )


def _setting(content: Mapping[str, Any], data: StudyData, target: int) -> dict[str, Any]:
    """Return RLlib's parameters at the target scale: the lanes, the batch, and what was searched; else all of them."""
    resolved = dict(content["winner"]["resolved"][str(target)])
    tuned = tuple(data.spec.tuned) if data.spec is not None else tuple(resolved)
    lanes = (SCALE, *(("num_envs_per_env_runner",) if resolved.get("num_envs_per_env_runner", 1) != 1 else ()))
    names = dict.fromkeys((*lanes, "train_batch_size", *tuned))
    return {name: resolved[name] for name in names if resolved.get(name) is not None}


def _rows(arms: Mapping[str, Mapping[str, Any]], small: int) -> Table:
    rows = []
    for each in arms.values():
        never = f", {each['n_censored']} never" if each["n_censored"] else ""
        steps = each["env_steps_to_target"]
        rows.append(
            {
                "arm": arm_in_words(each["name"], small, folded=each["folded"]),
                SCALE: each["scale"],
                "final_return": estimate_of(each["iqm_final_return"]),
                "solved": f"{each['solved']} of {each['n']}",
                "steps": "never" if steps is None else f"{steps:,.0f}{never}",
            }
        )
    return table_of("answer", "The chosen setting and the others, on test seeds", ARMS, rows)


def _unknown(content: Mapping[str, Any], data: StudyData, target: int, engine: str) -> Iterator[Fact]:
    small, arm = content["scales"]["small"], content["arms"][f"winner@{target}"]
    text = f"what {runners(target)} take in hours and cost, and what limits them. A throughput study of this setting "
    text += f"answers it; it needs {target + 1} CPUs."
    yield Fact(role="unknown", text=text, command=_throughput_study(content, data))
    stock = content["arms"].get(f"{WINNER_STOCK}@{target}")
    if engine != OWN and (stock is None or stock["folded"]):
        tried = f": tried was one of them with the environments of all, {count(stock['n'], 'run')}" if stock else ""
        text = f"what {target} of RLlib's own runners with its learner make of the setting{tried}."
        yield Fact(role="unknown", text=text)
    for row in content["comparisons"]["rows"].values():
        difference = estimate_of(row["difference"])
        if row["better"] is False and difference is not None:
            name = arm_in_words(row["baseline"], small)
            text = f"whether it is better than {name}: its mean score less that one's is {in_words(difference)}."
            yield Fact(role="unknown", text=text, quantity="score_lead", num_env_runners=target, arm=name)
    if arm["solved"] == (n := arm["n"]):
        missing = 1 - 0.025 ** (1 / n)  # Clopper and Pearson's upper end for none of n, at 95 %
        few = f"none of {n} test runs did, but up to {percent(missing)} of runs may"
        yield Fact(role="unknown", text=f"how rarely it misses the target: {few}.")


def _throughput_study(content: Mapping[str, Any], data: StudyData) -> str:
    """Return the command that times the setting at the small and the target scale; empty for a person's script."""
    if data.spec is None or data.spec.config is not None:
        return ""
    small, target, environment = content["scales"]["small"], content["scales"]["target"], data.spec.environment
    numbers = content["winner"]["resolved"][str(target)]
    names = ("num_env_runners", "num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs")
    changes = [f"environment.id={environment.id}", *(f"parameters.{name}={numbers[name]}" for name in names)]
    changes += [f"environment.kwargs={json.dumps(environment.kwargs)}"] if environment.kwargs else []
    grid: dict[str, Any] = {"num_env_runners": [small, target]}
    if "steps_per_env_runner" in content["winner"]["rule"]:
        grid["steps_per_env_runner"] = content["winner"]["rule"]["steps_per_env_runner"]
    changes.append(f"throughput.grids={json.dumps({'clock': grid})}")
    words = ["python", "run_study.py", "--space", "throughput.yaml", "--name", f"{data.name}_clock"]
    return shlex.join([*words, *(word for each in changes for word in ("--set", each))])


def _not_yet(study: "Study", why: str, *, fix: str = "") -> Answer:
    """Return what a study without a certificate says: how far it is, and its best setting so far."""
    data, found = study.data, candidates(study)
    missing = why if fix or complete(data) else "whether a setting holds up: the study is not complete."
    unknown = Fact(role="unknown", text=missing, command=fix or go_on(data))
    text = f"No answer yet: {progress(data)}."
    if not found:
        return Answer(kind=data.kind, findings=(Fact(role="answer", text=text), unknown))
    best = found[0]
    text += (
        f" So far a return of {in_words(best.final_return)} with {runners(best.scale)} is best, on seeds that settings "
        "are chosen by."
    )
    fact = Fact(role="answer", text=text, quantity="final_return", num_env_runners=best.scale, arm=best.of.name)
    return Answer(
        kind=data.kind,
        findings=(fact, unknown),
        setting=to_copy({SCALE: best.scale, **best.setting}),
        figure="score",
    )
