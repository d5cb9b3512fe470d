"""The certificate as one Markdown page. Arranges and rounds its figures; computes none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from study.engine import OWN
from study.text import markdown, printable

Content = Mapping[str, Any]
CLOCK = (
    "The rules are about learning. How long it takes, and whether more runners get there sooner, is answered by a "
    "throughput study with these numbers: `throughput.yaml`."
)


def page(content: Content) -> str:
    """Return the page of a certificate: blocks with a blank line between them."""
    parts = (_verdict, _rivals, _arms, _search, _sources)
    return markdown(printable("\n\n".join(block for part in parts for block in part(content)) + "\n"))


def _verdict(content: Content) -> Iterator[str]:
    study, scales, winner = content["study"], content["scales"], content["winner"]
    yield f"# {study['name']}: {content['sentence']}"
    yield (
        f"Setting `{winner['digest']}` on {content['environment']['id']} at {scales['target']} environment "
        f"runners, against the best setting at {scales['small']}; unseen before the confirmation: "
        f"{_listed(scales['unseen'])}."
    )
    yield content["search"]["sentence"]
    yield f"The setting, at every scale: {', '.join(f'{name} {_number(v)}' for name, v in winner['rule'].items())}."
    columns = ("train_batch_size", "minibatch_size", "num_epochs", "lr")
    numbers = ([scale, *(_number(found[name]) for name in columns)] for scale, found in winner["resolved"].items())
    yield _table(["num_env_runners", *columns], numbers)
    for engine, verdict in ((OWN, content["rllib"]), (content["engine"], content["verdict"])):
        if verdict is not None:
            yield f"## Under {engine}{' engine' if engine == OWN else ''}: {verdict['sentence']}"
            yield _table(
                ["rule", "found", "", ""],
                (
                    [each["law"], estimate(each["value"], 3), _kept(each), each["note"]]
                    for each in verdict["checks"].values()
                ),
            )
    if content["rllib"] is not None:
        difference = estimate(content["rllib"]["difference"], 3)
        yield f"Mean score at {scales['target']} runners under {OWN} less that under {content['engine']}: {difference}."
    yield "\n".join([*(f"- {sign}" for sign in content["signs"]), CLOCK])


def _kept(check: Content) -> str:
    if check["passed"] is False:
        return "**broken**" if check["lost"] else "**not shown**"
    return "kept" if check["passed"] else "not judged"


def _rivals(content: Content) -> Iterator[str]:
    yield "## What needs no search at the target scale"
    columns = "winner against, mean score, p (permutation), p (Holm), its steps to the target over the winner's, solved"
    yield _table(
        [*columns.split(", "), "the winner is"],
        (
            [
                name,
                f"{row['difference']['value']:+.3f} {_range(row['difference'], 3)}",
                *("-" if row[each] is None else f"{row[each]:.4f}" for each in ("p_value", "p_adjusted")),
                estimate(row["steps_ratio"], 2, n=False),
                " against ".join(map(str, row["solved"])),
                {"better": "better", "as good": "no better", "open": "not shown to be better"}[row["standing"]],
            ]
            for name, row in content["search"]["rivals"].items()
        ),
    )
    yield "Bounds of steps are corrected for the number of rivals: that of naive growth is lower than in rule 3."


def _arms(content: Content) -> Iterator[str]:
    arms = content["arms"]
    yield "## Arms, on test seeds"
    columns = (
        "arm, setting, n, n_failed, solved, mean score, IQM final_return, env_steps_to_target, cpu_s_spent, timing"
    )
    yield _table(columns.split(", "), (_arm(name, arm) for name, arm in arms.items()))
    if apart := [arm["resolution_env_steps"] for arm in arms.values() if arm["resolution_env_steps"]]:
        yield (
            "`env_steps_to_target` is the step of the first of two evaluations in a row at the target, up to "
            f"{max(apart):,.0f} after the one before: a run got there at some time in between."
        )


def _arm(name: str, arm: Content) -> Iterator[Any]:
    yield name
    yield f"`{arm['digest']}`"
    yield arm["n"]
    yield arm["n_failed"]
    yield f"{', '.join(map(str, arm['solved_at']))} of {arm['n']} {_range(arm['solve_rate'], 2)}"
    yield estimate(arm["score"], 3, n=False)
    yield estimate(arm["iqm_final_return"], 1, n=False)
    steps, never = arm["env_steps_to_target"], f", {arm['n_censored']} never" if arm["n_censored"] else ""
    yield "-" if steps is None else f"{steps:.0f}{never}"
    yield estimate(arm["cpu_s_spent"], 0, n=False)
    yield _listed(f"{count} {label}" for label, count in arm["timing"].items())


def _search(content: Content) -> Iterator[str]:
    optimism, hours = content["optimism"], content["cpu_hours"]
    yield "## How it was found"
    yield (
        f"Score when chosen {estimate(optimism['when_chosen'], 3)}, when confirmed "
        f"{estimate(optimism['when_confirmed'], 3)}: optimism {optimism['optimism']:+.3f}."
    )
    rows = (
        [stage, each["n"], each["n_failed"], each["n_restarts"], f"{hours[stage]:.3f}"]
        for stage, each in content["trials"].items()
    )
    yield _table(["stage", "trials", "failed", "restarts", "CPU-hours"], rows)


def _sources(content: Content) -> Iterator[str]:
    yield "## Sources"
    lines = []
    for session in content["sessions"]:
        found, cluster = session["provenance"], session["cluster"]
        versions = ", ".join(f"{name} {value}" for name, value in (found.get("versions") or {}).items() if value)
        git = found.get("git") or {}
        commit = f"{(git.get('commit') or 'unknown')[:12]}{' with changes' if git.get('dirty') else ''}"
        nodes = _listed(str(node.get("address")) for node in cluster.get("nodes", []))
        lines.append(f"- Session {session['session']}: commit {commit}; {versions}; nodes {nodes}.")
    study = content["study"]
    lines += [
        f"- Study {study['id']}, space digest {study['space_digest']}, version {content['protocol']} of the protocol, "
        f"{study['num_records']} records; `certificate.json` has every figure.",
        "- `python -m study certificate verify` makes every decision and every figure again from the records. That "
        "shows that the arithmetic is right, not that the records are those of a training.",
    ]
    yield "\n".join(lines)


def _table(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    lines += [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def estimate(found: Content | None, digits: int, *, n: bool = True) -> str:
    """Return an estimate of a certificate in words, with its interval and the number of runs."""
    if found is None:
        return "-"
    count = f" (n={found['n']})" if n else ""
    return f"{found['value']:.{digits}f} {_range(found, digits)}{count}"


def _range(found: Content, digits: int) -> str:
    low, high = found["low"], found["high"]
    if low is None and high is None:
        return "(no interval)"
    return f"[{'-∞' if low is None else f'{low:.{digits}f}'}, {'∞' if high is None else f'{high:.{digits}f}'}]"


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _listed(words: Iterable[Any]) -> str:
    return ", ".join(str(word) for word in words) or "none"
