"""The answer of a hold-up study: the setting by its values, whether it holds up, by which rule, at what cost."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.answers.answer import Answer, Number, Unknown
from analysis.answers.progress import complete, progress, resume
from analysis.answers.search import candidates
from analysis.answers.words import capital, clocks_counted, interval, known, percent, run_again, runners, to_copy
from analysis.estimates import Results, Row
from analysis.estimates.certificate import DAMAGE, estimate_of
from analysis.estimates.settings import arm_in_words
from analysis.load.study_data import StudyData
from analysis.tables import columns
from analysis.tables.numbers import significant
from analysis.tables.table import Layout, Table
from study.engine import OWN, engines_in_words
from study.space.parameters import SCALE
from study.space.settings import WINNER, WINNER_STOCK
from study.text import count, listed

MOST_BROKEN = 3
"""Broken rules that the answer names."""
ROWS = Layout(
    key="answer",
    title="The chosen setting and the others, on test seeds",
    columns=(
        columns.text("arm", "setting", "What was run."),
        columns.count("num_env_runners", "runners", "Environment runners."),
        columns.estimate("final_return", "1", "return", "Interquartile mean."),
        columns.text("solved", "", "Test runs that end at the target."),
        columns.count("steps", "steps to the target", "Mean; up to the horizon."),
    ),
)


def holdup_answer(results: Results, rows: Sequence[Row], price_per_cpu_hour: float | None) -> Answer:
    """Return what a hold-up study says: whether its setting learns as well with many runners as the best with few."""
    data, content = results.data, results.certificate
    if isinstance(content, str):
        return _not_yet(results, content, rows)
    try:
        return _answer(content, data)
    except DAMAGE:
        fix = f"python -m study certificate write {shlex.quote(data.source)}"
        return _not_yet(results, "whether a setting holds up: certificate.json is damaged.", rows, fix=fix)


def _answer(content: Mapping[str, Any], data: StudyData) -> Answer:
    target, small = content["scales"]["target"], content["scales"]["small"]
    arm = content["arms"][f"winner@{target}"]
    return Answer(
        kind=data.kind,
        sentence=_sentence(content, target, small, engine_of_winner(data, target)),
        setting=to_copy(_setting(content, data, target)),
        setting_is=f"the chosen setting, for {runners(target)}",
        facts=tuple(_facts(content, arm, target, data))[:3],
        numbers=tuple(_numbers(content, arm, target)),
        rows=_rows(content["arms"], small),
        unknown=tuple(_unknown(content, data, target)),
        figure="score",
    )


def engine_of_winner(data: StudyData, target: int) -> str:
    """Return the engine of the chosen setting's test runs at the target scale."""
    here = data.runs[(data.runs["stage"] == "confirm") & (data.runs["num_env_runners"] == target)]
    return engines_in_words(here.loc[here["baseline"] == WINNER, "engine"].dropna())


def _sentence(content: Mapping[str, Any], target: int, small: int, engine: str) -> str:
    learning = content["verdict"]["learning"]
    if learning:
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
    """Return the rules of holding up: not the clock, nor what this study has no arm for."""
    return [
        check
        for check in content["verdict"]["checks"].values()
        if not check["name"].startswith("clock@") and (check["passed"], check["value"]) != (None, None)
    ]


def _setting(content: Mapping[str, Any], data: StudyData, target: int) -> dict[str, Any]:
    """Return RLlib's parameters at the target scale: the lanes, the batch, and what was searched.

    Where the space is not known: all of them.
    """
    resolved = dict(content["winner"]["resolved"][str(target)])
    tuned = tuple(data.spec.tuned) if data.spec is not None else tuple(resolved)
    lanes = (SCALE, *(("num_envs_per_env_runner",) if resolved.get("num_envs_per_env_runner", 1) != 1 else ()))
    names = dict.fromkeys((*lanes, "train_batch_size", *tuned))
    return {name: resolved[name] for name in names if resolved.get(name) is not None}


def _facts(content: Mapping[str, Any], arm: Mapping[str, Any], target: int, data: StudyData) -> Iterator[str]:
    unseen = [
        (scale, other)
        for scale in content["scales"]["unseen"]
        if (other := content["arms"].get(f"winner@{scale}")) is not None
    ]
    text = f"{arm['solved']} of {arm['n']} test runs were solved"
    if unseen:
        each = listed(f"{other['solved']} of {other['n']} with {scale}" for scale, other in unseen)
        text += f", and so were {each} runners, for which nothing was tuned"
    yield f"{text}."
    yield _deciding(content, target)
    yield f"The study took {significant(content['cpu_hours']['all'], 2)} CPU-hours; {clocks_counted(data.runs)}."


def _deciding(content: Mapping[str, Any], target: int) -> str:
    """Return the rules that were broken; where there is none, the score at the target scale and the narrowest rule."""
    rules = _rules(content)
    broken = [check for check in rules if check["passed"] is False]
    if broken:
        more = f"; and {len(broken) - MOST_BROKEN} more" if len(broken) > MOST_BROKEN else ""
        return f"Broken: {'; '.join(_rule(content, check) for check in broken[:MOST_BROKEN])}{more}."
    kept = [check for check in rules if check["passed"] and estimate_of(check["value"]) is not None]
    if not kept:
        return "No rule could be judged."
    asked = next((check for check in kept if check["name"] == f"score_kept@{target}"), None)
    narrowest = min(kept, key=lambda check: _margin(content, check))
    others = [narrowest] if asked is None or narrowest["name"] != asked["name"] else []
    first = [] if asked is None else [capital(_rule(content, asked))]
    return " ".join(f"{each}." for each in (*first, *(f"Kept most narrowly: {_rule(content, one)}" for one in others)))


def _margin(content: Mapping[str, Any], check: Mapping[str, Any]) -> float:
    """Return how far a rule that is kept is from being broken, as a share of what it allows; 0 is the limit.

    Of a score the loss that is allowed and not excluded, of solved runs the misses that are left (a rule that no run
    missed has no limit in sight), of steps what the lower end of the ratio has above 1.
    """
    value, laws = estimate_of(check["value"]), content["laws"]
    assert value is not None  # the caller leaves these out
    if check["name"].startswith("score_kept@"):
        return float(1 + value.low / laws["tolerance"])
    if check["name"].startswith("solved@"):
        share = laws["solved_share"]
        return float((value.value - share) / (1 - share)) if value.value < 1 else math.inf
    return value.low - 1


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
        reaches = ", and 1 is inside" if value.low <= 1 <= value.high else ""
        return (
            f"with {scale} runners it must take fewer environment steps to the target than RLlib's defaults with the "
            f"batch grown, which take {value.value:.2f} times as many, {interval(value)}{reaches}"
        )
    word = "lower" if value.value < 0 else "higher"
    return (
        f"with {scale} runners the mean score is {abs(value.value):.3f} {word} than that of the best with {small}, "
        f"{_bound(value.low)} ({math.floor(100 * value.level)} % confidence; {content['laws']['tolerance']:g} lower is "
        "allowed)"
    )


def _bound(low: float) -> str:
    return f"at least {low:.3f} higher" if low >= 0 else f"no more than {-low:.3f} lower"


def _numbers(content: Mapping[str, Any], arm: Mapping[str, Any], target: int) -> Iterator[Number]:
    final = estimate_of(arm["iqm_final_return"])
    if final is not None:
        yield Number(label=f"return with {target} runners", text=significant(final.value), note=interval(final))
    yield Number(
        label="test runs solved", text=f"{arm['solved']} of {arm['n']}", note="seeds that the search did not use"
    )
    if (steps := arm["env_steps_to_target"]) is not None:
        grain = arm.get("resolution_env_steps")
        note = f"evaluated every {grain:,.0f} steps" if grain else ""
        yield Number(label="steps to the target", text=f"{steps:,.0f}{' or fewer' if grain else ''}", note=note)


def _rows(arms: Mapping[str, Mapping[str, Any]], small: int) -> Table:
    values = list(arms.values())
    return ROWS.table(
        values,
        "The arms of the confirmation.",
        n=sum(each["n"] for each in values),
        n_failed=sum(each["n_failed"] for each in values),
        values={
            "arm": [arm_in_words(each["name"], small, folded=each["folded"]) for each in values],
            "num_env_runners": [each["scale"] for each in values],
            "final_return": [estimate_of(each["iqm_final_return"]) for each in values],
            "solved": [f"{each['solved']} of {each['n']}" for each in values],
            "steps": [_steps(each) for each in values],
        },
    )


def _steps(arm: Mapping[str, Any]) -> str:
    if arm["env_steps_to_target"] is None:
        return "never"
    never = f", {arm['n_censored']} never" if arm["n_censored"] else ""
    return f"{arm['env_steps_to_target']:,.0f}{never}"


def _unknown(content: Mapping[str, Any], data: StudyData, target: int) -> Iterator[Unknown]:
    if not content["clock_measured"]:
        text = f"what {runners(target)} take in hours and cost, and what limits them: their clocks were not measured."
        command = run_again(data, "real", ["execution=real"])
        yield Unknown(text=f"{text} That needs {target + 1} CPUs." if command else text, command=command)
    stock = content["arms"].get(f"{WINNER_STOCK}@{target}")
    if engine_of_winner(data, target) != OWN and (stock is None or stock["folded"]):
        tried = (
            "" if stock is None else f": tried was one of them with the environments of all, {count(stock['n'], 'run')}"
        )
        yield Unknown(text=f"what {target} of RLlib's own runners with its learner make of the setting{tried}.")
    rows = [row for row in content["comparisons"]["rows"].values() if row["better"] is False]
    for row in rows:
        difference = estimate_of(row["difference"])
        if difference is not None:
            name = arm_in_words(row["baseline"], content["scales"]["small"])
            yield Unknown(
                text=f"whether it is better than {name}: it scores {difference.value:+.3f}, "
                f"{interval(difference, digits=1)}."
            )
    arm = content["arms"][f"winner@{target}"]
    if arm["solved"] == (n := arm["n"]):
        missing = 1 - 0.025 ** (1 / n)  # Clopper and Pearson's upper end for none of n, at 95 %
        few = f"none of {n} test runs did, but up to {percent(missing)} of runs may"
        yield Unknown(text=f"how rarely it misses the target: {few}.")


def _not_yet(results: Results, why: str, rows: Sequence[Row], *, fix: str = "") -> Answer:
    """Return what a study without a certificate says: how far it is, and its best setting so far."""
    data = results.data
    found = candidates(results, rows)
    done = progress(data)
    missing = why if fix or complete(data) else "whether a setting holds up: the study is not complete."
    unknown = (Unknown(text=missing, command=fix or resume(data)),)
    if not found:
        return Answer(kind=data.kind, sentence=f"No answer yet: {done}.", unknown=unknown)
    best = found[0]
    return Answer(
        kind=data.kind,
        sentence=f"No answer yet: {done}. So far a return of {known(best.final_return)} with "
        f"{runners(best.num_env_runners)} is best, on seeds that settings are chosen by.",
        setting=to_copy({SCALE: best.num_env_runners, **best.setting}),
        unknown=unknown,
        figure="score",
    )
