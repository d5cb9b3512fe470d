"""What a hold-up study says: the setting by its values, whether it holds up, by which rule. Reads the certificate."""

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from analysis.answers.answer import (
    Answer,
    Fact,
    capital,
    complete,
    cost_and_clocks,
    go_on,
    progress,
    runners,
    to_copy,
)
from analysis.estimates.settings import DAMAGE, arm_in_words, estimate_of
from analysis.tables.learning import rule_in_words, with_names
from analysis.tables.table import Table, TableColumn, in_words, percent, table_of
from study.engine import OWN
from study.space.parameters import SCALE
from study.space.settings import WINNER, WINNER_RLLIB
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

ARMS = (
    TableColumn("arm", "", "setting", "What was run."),
    TableColumn(SCALE, "1", "runners", "Environment runners."),
    TableColumn("final_return", "1", "return", "Interquartile mean.", estimate=True),
    TableColumn("solved", "", "solved", "Test runs that end at the target."),
    TableColumn("steps", "", "steps to the target", "Mean; up to the horizon."),
)


def holdup_answer(study: "Study") -> Answer:
    """Return what a hold-up study says: whether its setting learns as well with many runners as the best with few."""
    content, data = study.certificate, study.data
    if isinstance(content, str):
        return _not_yet(study, content)
    try:
        target, small = content["scales"]["target"], content["scales"]["small"]
        resolved = content["winner"]["resolved"][str(target)]
        tuned = tuple(data.spec.tuned) if data.spec is not None else tuple(resolved)
        lanes = ("num_envs_per_env_runner",) if resolved.get("num_envs_per_env_runner", 1) != 1 else ()
        names = dict.fromkeys((SCALE, *lanes, "train_batch_size", *tuned))
        return Answer(
            kind=data.kind,
            findings=tuple(_facts(study, content, target, small)),
            setting=to_copy({name: resolved[name] for name in names if resolved.get(name) is not None}),
            setting_is=f"the chosen setting, for {runners(target)}",
            rows=_rows(content["arms"], small),
            figure="score",
        )
    except DAMAGE:
        fix = f"python -m study certificate write {shlex.quote(data.source)}"
        return _not_yet(study, "whether a setting holds up: certificate.json is damaged.", fix=fix)


def _facts(study: "Study", content: Mapping[str, Any], target: int, small: int) -> Iterator[Fact]:
    engine = content["engine"]
    verdicts = {OWN: content["rllib"], engine: content["verdict"]}
    judged, verdict = next((name, each) for name, each in verdicts.items() if each is not None)
    yield Fact(role="answer", text=_sentence(content, judged, target, small))
    for text in _solved(content, judged, target):
        yield Fact(role="support", text=text, quantity="solved_last")
    broken = [
        (name, check)
        for name, each in verdicts.items()
        if each is not None
        for check in each["checks"].values()
        if check["passed"] is False
    ]
    for name, check in broken or [(judged, verdict["checks"][f"score_kept@{target}"])]:
        word = "" if check["passed"] else "Broken: " if check["lost"] else "Not shown: "
        engine_of = f" ({name})" if content["rllib"] else ""
        yield Fact(role="support", text=f"{word}{capital(rule_in_words(content, check, name))}{engine_of}.")
    yield Fact(role="support", text=with_names(content["search"]["sentence"], small))
    if content["rllib"] is not None and (difference := estimate_of(content["rllib"]["difference"])) is not None:
        text = f"Its mean score under {OWN} engine less that under {engine}: {in_words(difference)}."
        yield Fact(role="support", text=text)
    if not verdict["learning"] and content["signs"]:
        yield Fact(role="support", text=" ".join(content["signs"]))
    yield cost_and_clocks(study.data, content["cpu_hours"]["all"])
    yield from _unknown(content, target)


def _sentence(content: Mapping[str, Any], judged: str, target: int, small: int) -> str:
    """Return the verdict about RLlib's own engine, where it was run; then where the study's engine says otherwise."""
    engine, ours = content["engine"], content["verdict"]
    verdict = ours if content["rllib"] is None else content["rllib"]
    words = verdict["at"][str(target)]
    with_ = f"{target} of RLlib's own runners" if judged == OWN else f"{runners(target)} (engine {judged})"
    rules = [check for name, check in verdict["checks"].items() if name.endswith(f"@{target}")]
    broken = sum(check["passed"] is False for check in rules)
    text = {
        "holds up": f"Yes: with {with_} the chosen setting learns as well as the best one does with {small}.",
        "does not hold up": f"No: with {with_} the chosen setting does not hold up, against the best with {small}. It "
        f"breaks {broken} of {count(len(rules), 'rule')}.",
    }.get(
        words, f"Not shown: whether the chosen setting learns as well with {with_} as the best one does with {small}."
    )
    kept, missed = (
        [scale for scale, said in ours["at"].items() if (said == "holds up") is holds] for holds in (True, False)
    )
    does = "holds up as well" if words == "holds up" else "holds up"
    if missed:
        does = f"{ours['sentence']} with {listed(missed)} runners"
        does = f"holds up with {listed(kept)} runners, and {ours['sentence']} with {listed(missed)}" if kept else does
    if content["rllib"] is None:
        return f"{text} It {does}." if missed else text
    return f"{text} Under {engine}, by which it was found, it {does}."


def _solved(content: Mapping[str, Any], judged: str, target: int) -> Iterator[str]:
    """Yield how many test runs were solved, of RLlib's own first, and at the scales for which nothing was tuned."""
    arms, engine = content["arms"], content["engine"]
    found = {engine: arms[f"{WINNER}@{target}"]}
    if judged != engine and (own := arms.get(f"{WINNER_RLLIB}@{target}")) is not None:
        found = {f"{OWN} engine": own} | found
    (first, arm), *others = found.items()
    said = [f"{arm['solved']} of {arm['n']} test runs were solved under {first}"]
    said += [f"{each['solved']} of {each['n']} under {name}" for name, each in others]
    yield f"{', '.join(said)}, at the worst of the last three evaluations."
    unseen = [(scale, arms.get(f"{WINNER}@{scale}")) for scale in content["scales"]["unseen"]]
    if solved := [f"{each['solved']} of {each['n']} with {scale}" for scale, each in unseen if each is not None]:
        yield f"With numbers of runners for which nothing was tuned: {listed(solved)}."


def _rows(arms: Mapping[str, Mapping[str, Any]], small: int) -> Table:
    rows = []
    for each in arms.values():
        never = f", {each['n_censored']} never" if each["n_censored"] else ""
        steps = each["env_steps_to_target"]
        rows.append(
            {
                "arm": arm_in_words(each["name"], small),
                SCALE: each["scale"],
                "final_return": estimate_of(each["iqm_final_return"]),
                "solved": f"{each['solved']} of {each['n']}",
                "steps": "never" if steps is None else f"{steps:,.0f}{never}",
            }
        )
    title = "The chosen setting and the others, on test seeds"
    return table_of("answer", title, ARMS, rows, title)


def _unknown(content: Mapping[str, Any], target: int) -> Iterator[Fact]:
    arm = content["arms"].get(f"{WINNER_RLLIB}@{target}") or content["arms"][f"{WINNER}@{target}"]
    text = f"what {runners(target)} take in hours and cost, and what limits them. A throughput study of this setting "
    yield Fact(role="unknown", text=f"{text}answers it; it needs {target + 1} CPUs.")
    if content["rllib"] is None and content["engine"] != OWN:
        text = f"what {target} of RLlib's own runners with its learner make of the setting. A study with "
        text += "`holdup.confirm.num_seeds_rllib: 10` answers it."
        yield Fact(role="unknown", text=text)
    if arm["solved"] == (n := arm["n"]):
        missing = 1 - 0.025 ** (1 / n)  # Clopper and Pearson's upper end for none of n, at 95 %
        few = f"none of {n} test runs with {runners(target)} did, but up to {percent(missing)} of runs may"
        yield Fact(role="unknown", text=f"how rarely it misses the target: {few}.")


def _not_yet(study: "Study", why: str, *, fix: str = "") -> Answer:
    """Return what a study without a certificate says: how far it is, and how to go on."""
    data = study.data
    missing = why if fix or complete(data) else "whether a setting holds up: the study is not complete."
    said = Fact(role="answer", text=f"No answer yet: {progress(data)}.")
    unknown = Fact(role="unknown", text=missing, command=fix or go_on(data))
    return Answer(kind=data.kind, findings=(said, unknown), figure="score")
