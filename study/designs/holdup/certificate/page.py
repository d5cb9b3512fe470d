"""The certificate as one Markdown page. Arranges and rounds the figures of its JSON form; computes none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Content = Mapping[str, Any]
_LAST = 4
"""Evaluations of which each is shown alone."""


def page(content: Content) -> str:
    """Return the page of what `Certificate.to_json` returns."""
    return "\n".join(line for part in _PARTS for line in part(content)) + "\n"


def _head(content: Content) -> Iterator[str]:
    study, scales, verdict = content["study"], content["scales"], content["verdict"]
    yield f"# {study['name']}: {verdict['sentence']}"
    yield ""
    yield (
        f"Setting `{content['winner']['digest']}` on {content['environment']['id']} at {scales['target']} environment "
        f"runners, against the best setting at {scales['small']}; unseen before the confirmation: "
        f"{_listed(scales['unseen'])}."
    )
    yield ""


def _winner(content: Content) -> Iterator[str]:
    winner = content["winner"]
    values = ", ".join(f"{name} {_number(value)}" for name, value in winner["rule"].items())
    yield f"The setting, at every scale: {values}."
    yield ""
    columns = ("train_batch_size", "minibatch_size", "num_epochs", "lr")
    rows = ([scale, *(_number(numbers[name]) for name in columns)] for scale, numbers in winner["resolved"].items())
    yield from _table(["num_env_runners", *columns], rows)


def _checks(content: Content) -> Iterator[str]:
    yield "## Verdict"
    yield ""
    words = {True: "kept", False: "**broken**", None: "not judged"}
    yield from _table(
        ["rule", "found", "", ""],
        (
            [check["law"], _estimate(check["value"], 3), words[check["passed"]], check["note"]]
            for check in content["verdict"]["checks"].values()
        ),
    )
    yield f"Against the baselines: {content['comparisons']['sentence']}."
    yield ""
    rows = [
        [
            f"{row['baseline']} ({row['note']})" if row.get("note") else row["baseline"],
            _estimate(row["difference"], 3),
            _p(row["p_value"]),
            _p(row["p_adjusted"]),
        ]
        for row in content["comparisons"]["rows"].values()
    ]
    if rows:
        yield from _table(["winner less", "mean score", "p (permutation)", "p (Holm)"], rows)


def _arms(content: Content) -> Iterator[str]:
    yield "## Arms, on test seeds"
    yield ""
    rows = []
    for name, arm in content["arms"].items():
        censored = f", {arm['n_censored']} never" if arm["n_censored"] else ""
        steps = arm["env_steps_to_target"]
        rows.append(
            [
                f"{name}, as one RLlib runner" if arm["folded"] else name,
                f"`{arm['digest']}`",
                arm["n"],
                arm["n_failed"],
                f"{arm['solved']}/{arm['n']} {_range(arm['solve_rate'], 2)}",
                _estimate(arm["score"], 3, n=False),
                _estimate(arm["iqm_final_return"], 1, n=False),
                "-" if steps is None else f"{steps:.0f}{censored}",
                _estimate(arm["cpu_s_spent"], 0, n=False),
                _estimate(arm["cpu_s_reserved"], 0, n=False),
                _listed(f"{count} {label}" for label, count in arm["timing"].items()),
            ]
        )
    yield from _table(
        [
            "arm",
            "setting",
            "n",
            "n_failed",
            "solved",
            "mean score",
            "IQM final_return",
            "env_steps_to_target",
            "cpu_s_spent",
            "cpu_s_reserved",
            "timing",
        ],
        rows,
    )
    apart = [arm["resolution_env_steps"] for arm in content["arms"].values() if arm["resolution_env_steps"]]
    if apart:
        yield (
            "`env_steps_to_target` is the step of the first of two evaluations in a row at the target, up to "
            f"{max(apart):,.0f} after the one before: a run got there at some time in between."
        )
        yield ""
    shares = list(dict.fromkeys(share for arm in content["arms"].values() for share in arm["curve"]))
    shares.sort(key=lambda share: int(share.partition("/")[0]))
    yield "Runs at the target at each of the last evaluations; `solved` is of the mean of those in the last tenth:"
    yield ""
    last = shares[-_LAST:]
    yield from _table(
        ["arm", *last],
        ([name, *(_at_target(arm["curve"].get(share)) for share in last)] for name, arm in content["arms"].items()),
    )
    yield "IQM of the greedy evaluation's return, by share of the budget (environment steps in brackets):"
    yield ""
    yield from _table(
        ["arm", *shares],
        ([name, *(_point(arm["curve"].get(share)) for share in shares)] for name, arm in content["arms"].items()),
    )


def _at_target(point: Content | None) -> str:
    return "-" if point is None else f"{point['at_target']}/{point['iqm_return']['n']}"


def _point(point: Content | None) -> str:
    if point is None:
        return "-"
    return f"{_estimate(point['iqm_return'], 1, n=False)} ({point['env_steps']})"


def _search(content: Content) -> Iterator[str]:
    optimism, hours = content["optimism"], content["cpu_hours"]
    yield "## How it was found"
    yield ""
    yield (
        f"Score when chosen {_estimate(optimism['when_chosen'], 3)}, when confirmed "
        f"{_estimate(optimism['when_confirmed'], 3)}: optimism {optimism['optimism']:+.3f}."
    )
    yield ""
    yield from _table(
        ["stage", "trials", "failed", "restarts", "CPU-hours"],
        (
            [stage, each["n"], each["n_failed"], each["n_restarts"], f"{hours[stage]:.3f}"]
            for stage, each in content["trials"].items()
        ),
    )
    seeds = (
        f"{name} {each['first']} to {each['first'] + each['count'] - 1}" for name, each in content["seeds"].items()
    )
    yield f"Seeds: {', '.join(seeds)}."
    yield ""


def _diagnosis(content: Content) -> Iterator[str]:
    yield "## Diagnosis"
    yield ""
    rows = []
    for name, diagnosis in content["diagnosis"].items():
        shown = [
            f"{finding['meaning']} {_number(finding['value'])} ({finding['law']})"
            for finding in diagnosis["findings"]
            if finding["applies"]
        ]
        rows.append([name, _listed(diagnosis["labels"]), "; ".join(shown), diagnosis["n"], diagnosis["num_failed"]])
    yield from _table(["arm", "labels", "because", "n", "n_failed"], rows)


def _measured(content: Content) -> Iterator[str]:
    if not content["measured"]:
        return
    yield "## The clock: short trials with real runners"
    yield ""
    rows = []
    for point in content["measured"]:
        rates = point["env_steps_per_s"]
        shown = "not measured" if rates is None else f"{rates[1]:.0f} ({rates[0]:.0f} to {rates[2]:.0f})"
        timing = _listed(f"{count} {label}" for label, count in point["timing"].items())
        rows.append([point["kind"], point["scale"], shown, point["n"], point["n_failed"], timing])
    yield from _table(["kind", "num_env_runners", "env_steps_per_s: median (range)", "n", "n_failed", "timing"], rows)


def _sources(content: Content) -> Iterator[str]:
    yield "## Notes and sources"
    yield ""
    yield from (f"- {note}" for note in content["notes"])
    for session in content["sessions"]:
        found, cluster = session["provenance"], session["cluster"]
        versions = ", ".join(f"{name} {value}" for name, value in (found.get("versions") or {}).items() if value)
        commit = ((found.get("git") or {}).get("commit") or "unknown")[:12]
        nodes = _listed(str(node.get("address")) for node in cluster.get("nodes", []))
        yield f"- Session {session['session']}: commit {commit}; {versions}; nodes {nodes}."
    study = content["study"]
    yield (
        f"- Study {study['id']}, space digest {study['space_digest']}, {study['num_records']} records; "
        "`certificate.json` has every figure."
    )
    yield (
        "- `python -m study certificate verify` makes every decision and every figure again from the records. That "
        "shows that the arithmetic is right, not that the records are those of a training."
    )


_PARTS = (_head, _winner, _checks, _arms, _search, _diagnosis, _measured, _sources)


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _estimate(estimate: Content | None, digits: int, *, n: bool = True) -> str:
    if estimate is None:
        return "-"
    count = f" (n={estimate['n']})" if n else ""
    return f"{estimate['value']:.{digits}f} {_range(estimate, digits)}{count}"


def _range(estimate: Content, digits: int) -> str:
    low, high = estimate["low"], estimate["high"]
    if low is None and high is None:
        return "(no interval)"
    return f"[{'-∞' if low is None else f'{low:.{digits}f}'}, {'∞' if high is None else f'{high:.{digits}f}'}]"


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _p(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _listed(words: Iterable[Any]) -> str:
    return ", ".join(str(word) for word in words) or "none"
