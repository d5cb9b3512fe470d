"""The certificate as one Markdown page: its sentences, and its figures as tables. Rounds them; computes none.

The columns of the tables have the names that their values have in `certificate.json`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from study.engine import OWN
from study.text import markdown, printable, significant

Content = Mapping[str, Any]
NUMBERS = "train_batch_size minibatch_size num_epochs lr"
CHECK = "value judged note"
RIVAL = "difference p_value p_adjusted steps_ratio solved standing"
ARM = "digest n n_failed solved_at solve_rate score iqm_final_return env_steps_to_target n_censored cpu_s_spent timing"
STAGE = "n n_failed n_restarts cpu_hours"
"""Columns of the tables, separated by blanks."""
CLOCK = (
    "The rules are about learning. How long it takes, and whether more runners get there sooner, is answered by a "
    "throughput study with these numbers: `throughput.yaml`."
)


def page(content: Content) -> str:
    """Return the page of a certificate: blocks with a blank line between them."""
    return markdown(printable("\n\n".join(_blocks(content)) + "\n"))


def _blocks(content: Content) -> Iterator[str]:
    study, scales, winner, optimism = (content[part] for part in ("study", "scales", "winner", "optimism"))
    yield f"# {study['name']}: {content['sentence']}"
    yield (
        f"Setting `{winner['digest']}` on {content['environment']['id']} at {scales['target']} environment "
        f"runners, against the best setting at {scales['small']}; unseen before the confirmation: "
        f"{_shown(scales['unseen'])}."
    )
    yield content["search"]["sentence"]
    rule = ", ".join(f"{name} {_shown(value)}" for name, value in winner["rule"].items())
    yield f"The setting, at every scale: {rule}."
    yield _table("num_env_runners", winner["resolved"], NUMBERS)
    for engine, verdict in ((f"{OWN} engine", content["rllib"]), (content["engine"], content["verdict"])):
        if verdict is not None:
            yield f"## Under {engine}: {verdict['sentence']}"
            checks = verdict["checks"].values()
            yield _table("rule", {each["law"]: {**each, "judged": _judged(each)} for each in checks}, CHECK)
    if content["rllib"] is not None:
        difference = _shown(content["rllib"]["difference"])
        yield f"Mean score at {scales['target']} runners under {OWN} less that under {content['engine']}: {difference}."
    yield "\n".join(f"- {line}" for line in (*content["signs"], CLOCK))
    yield "## What needs no search at the target scale"
    yield _table("the winner against", content["search"]["rivals"], RIVAL)
    yield "`steps_ratio` is corrected for the number of rivals: so its bounds are wider than in rule 3."
    yield "## Arms, on test seeds"
    yield _table("arm", content["arms"], ARM)
    yield (
        "`env_steps_to_target` is the mean step of the first of two evaluations in a row at the target: a run got "
        "there at some time since the evaluation before."
    )
    yield "## How it was found"
    chosen, confirmed = _shown(optimism["when_chosen"]), _shown(optimism["when_confirmed"])
    yield f"Score when chosen {chosen}, when confirmed {confirmed}: optimism {_shown(optimism['optimism'])}."
    hours = content["cpu_hours"]
    yield _table(
        "stage", {stage: {**each, "cpu_hours": hours[stage]} for stage, each in content["trials"].items()}, STAGE
    )
    yield "## Sources"
    for session in content["sessions"]:
        found, nodes = session["provenance"], session["cluster"].get("nodes", [])
        git, versions = found.get("git") or {}, found.get("versions") or {}
        commit = f"{(git.get('commit') or 'unknown')[:12]}{' with changes' if git.get('dirty') else ''}"
        programs = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        where = _shown([node.get("address") for node in nodes])
        yield f"Session {session['session']}: commit {commit}; {programs}; nodes {where}."
    yield (
        f"Study {study['id']}, space digest {study['space_digest']}, version {content['protocol']} of the protocol, "
        f"{study['num_records']} records; `certificate.json` has every figure."
    )
    yield (
        "`python -m study certificate verify` makes every decision and every figure again from the records. That "
        "shows that the arithmetic is right, not that the records are those of a training."
    )


def _judged(check: Content) -> str:
    if check["passed"] is False:
        return "**broken**" if check["lost"] else "**not shown**"
    return "kept" if check["passed"] else "not judged"


def _table(first: str, rows: Mapping[str, Content], columns: str) -> str:
    """Return a table: the key of each row, below the heading `first`, and what the row has below each column's name."""
    names = columns.split()
    lines = [[first, *names], ["---"] * (1 + len(names))]
    lines += [[key, *(_shown(row[name]) for name in names)] for key, row in rows.items()]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _shown(value: Any) -> str:
    """Return a value of a certificate for people; an estimate with its interval and the number of runs."""
    match value:
        case None:
            return "-"
        case float():
            return significant(value)
        case list():
            return ", ".join(map(_shown, value)) or "none"
        case {"value": middle, "low": low, "high": high, "n": n}:
            ends = ("-∞" if low is None else _shown(low), "∞" if high is None else _shown(high))
            interval = "no interval" if low is None and high is None else f"[{', '.join(ends)}]"
            return f"{_shown(middle)} {interval} (n={n})"
        case dict():
            return ", ".join(f"{count} {label}" for label, count in value.items())
    return str(value)
