"""T11: the certificate of a hold-up study as a table of its arms and rules. Reads files, no engine."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from analysis.estimates.certificate import certificate_of, estimate_of
from analysis.estimates.results import Results
from analysis.load import StudyData
from analysis.tables import definitions as words
from analysis.tables.grid import TableColumn
from analysis.tables.numbers import in_words
from analysis.tables.results import of_engine
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows

TITLE = "Hold-up certificate: the arms on test seeds"
SAID = (words.CERTIFICATE, words.STEPS_TO_TARGET)
COLUMNS = (
    TableColumn(name="arm", unit="", meaning="A setting at a scale; all on seeds that nothing was chosen by."),
    TableColumn(name="num_env_runners", unit="1", label="n", meaning="Environment runners."),
    TableColumn(name="n", unit="1", label="runs", meaning="Runs, each on a test seed of its own."),
    TableColumn(
        name="n_failed", unit="1", label="failed", meaning="Failed runs: score 0, not solved, never at the target."
    ),
    TableColumn(
        name="solve_rate", unit="1", label="solved", meaning="Share of runs that end at the target.", estimate=True
    ),
    TableColumn(name="score", unit="1", meaning="Mean score; floor 0, reference 1.", estimate=True),
    TableColumn(
        name="iqm_final_return", unit="return", label="IQM return", meaning="Interquartile mean.", estimate=True
    ),
    TableColumn(
        name="env_steps_to_target",
        unit="env steps",
        label="steps to target",
        meaning="Restricted mean to the horizon.",
        estimate=True,
    ),
    TableColumn(name="n_censored", unit="1", label="censored", meaning="Runs that did not reach the target by then."),
    TableColumn(
        name="cpu_s_spent", unit="CPU s", label="CPU time", meaning="Mean CPU time in training.", estimate=True
    ),
    TableColumn(name="timing", unit="", label="clocks", meaning="Labels of the runs' clocks."),
)
PASSED = {True: "kept", False: "BROKEN", None: "not judged"}


@of_engine
def hold_up(data: StudyData, results: Results) -> Table:
    """T11: the arms of the confirmation, the laws of the verdict as notes, or what is missing."""
    failed = results.num_failed
    content = certificate_of(data)
    if isinstance(content, str):
        return without_rows("T11", TITLE, content, definitions=SAID, n_failed=failed)
    try:
        return _table(content, data, failed)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        damage = (
            f"No certificate. certificate.json must be one, got a damaged file ({type(error).__name__}: {error}). "
            f"Fix: python -m study certificate write {shlex.quote(data.source)}"
        )
        return without_rows("T11", TITLE, damage, definitions=SAID, n_failed=failed)


def _table(content: Mapping[str, Any], data: StudyData, failed: int) -> Table:
    arms = content["arms"]
    frame: dict[str, list[Any]] = {
        "arm": [f"{name}, folded" if arm["folded"] else name for name, arm in arms.items()],
        "num_env_runners": [arm["scale"] for arm in arms.values()],
        **{name: [arm[name] for arm in arms.values()] for name in ("n", "n_failed")},
        **_estimates(arms, "solve_rate"),
        **_estimates(arms, "score"),
        **_estimates(arms, "iqm_final_return"),
        **estimate_columns("env_steps_to_target", [None] * len(arms)),
        "n_censored": [arm["n_censored"] for arm in arms.values()],
        **_estimates(arms, "cpu_s_spent"),
        # The certificate gives it without an interval.
        "env_steps_to_target": [arm["env_steps_to_target"] for arm in arms.values()],
        "env_steps_to_target_n": [arm["n"] for arm in arms.values()],
        "timing": [", ".join(f"{count} {label}" for label, count in arm["timing"].items()) for arm in arms.values()],
    }
    return Table(
        key="T11",
        title=TITLE,
        frame=make_frame(frame),
        columns=COLUMNS,
        definitions=SAID,
        n=sum(arm["n"] for arm in arms.values()),
        n_failed=sum(arm["n_failed"] for arm in arms.values()),
        excluded={"of other stages than the confirmation": len(data.runs) - sum(arm["n"] for arm in arms.values())},
        conclusion=_conclusion(content),
        notes=(*_notes(content), *_resolution(arms)),
    )


def _estimates(arms: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, list[Any]]:
    return estimate_columns(name, [estimate_of(arm[name]) for arm in arms.values()])


def _resolution(arms: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    apart = [steps for arm in arms.values() if (steps := arm.get("resolution_env_steps"))]
    if apart:
        yield f"Steps to target are those of evaluations, up to {max(apart):,.0f} env steps after the one before."


def _conclusion(content: Mapping[str, Any]) -> str:
    scales, verdict = content["scales"], content["verdict"]
    name = f"score_kept@{scales['target']}"
    kept = estimate_of(verdict["checks"].get(name, {}).get("value"))
    against = f"against the best setting at {scales['small']} runners"
    told = "" if kept is None else f" Mean score {against}: {in_words(kept)}, n={kept.n}."
    return f"At {scales['target']} runners the winner {verdict['sentence']}.{told}"


def _notes(content: Mapping[str, Any]) -> Iterator[str]:
    for check in content["verdict"]["checks"].values():
        value = estimate_of(check["value"])
        found = "" if value is None else f": {in_words(value)}"
        note = f" ({check['note']})" if check["note"] else ""
        yield f"{PASSED[check['passed']]}: {check['law']}{found}{note}."
    yield f"Against the baselines: {content['comparisons']['sentence']}."
    yield from content["notes"]
