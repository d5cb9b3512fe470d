"""The recorded studies: the README quotes them, and a quantity has one value and one interval wherever it is shown."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.estimates import QUANTITIES
from analysis.figures import FIGURES
from analysis.opened import Study
from study.records.folder import StudyFolder
from study.statistics import mean_interval
from tests.examples import example

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
EXAMPLES = sorted(folder.name for folder in ANALYSIS.glob("example_*"))
WITH_ESTIMATES = ("example_throughput", "example_study", "example_table")
PROTOCOL = (ANALYSIS.parent / "study" / "designs" / "holdup" / "README.md").read_text()
NOT_ESTIMATED = {
    ("return_steps", "value"): "points of curves",
}
"""Printed numbers that are in no frame of estimates -> why."""
NUMBER = r"(-?[\d,]*\.?\d+)(?:%| %)?"
WRITTEN = re.compile(rf"{NUMBER} \[{NUMBER}, {NUMBER}\]")
Triple = tuple[float, float, float]


def test_the_arms_in_the_readme_are_those_of_the_certificate():
    content = json.loads(StudyFolder(ANALYSIS / "example_study").certificate.read_text())
    (section,) = re.findall(r"<!-- holdup-result -->\n(.*?)<!-- /holdup-result -->", PROTOCOL, flags=re.DOTALL)
    assert len(content["arms"]) >= 8
    for arm in content["arms"].values():
        final, never = arm["iqm_final_return"], f", {arm['n_censored']} never" if arm["n_censored"] else ""
        solved = ", ".join(map(str, arm["solved_at"]))
        value = f"{final['value']:.1f} [{final['low']:.1f}, {final['high']:.1f}]"
        assert f"| {solved} of {arm['n']} | {value} | {arm['env_steps_to_target']:,.0f}{never} |" in section, arm[
            "name"
        ]
    paid = content["search"]["sentence"].partition(":")[0]
    assert paid in " ".join(section.replace("**", "").split())


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_path_of_a_machine_is_in_an_example(name):
    folder = StudyFolder(ANALYSIS / name)
    for file in (folder.identity_file, folder.space_file, folder.table):
        for path in ("/work/", "/opt/", "/tmp/", "/root/", "/home/"):
            assert path not in file.read_text(), (file, path)


def test_coinrun_is_learnt_for_levels_that_were_never_seen():
    """Five seeds on test levels against a random policy there: 500 episodes, as the space's header says."""
    header = (ANALYSIS.parent / "search_spaces" / "coinrun_ppo.yaml").read_text()
    (upper,) = re.findall(r"A random policy gets [\d.]+ \[[\d.]+, ([\d.]+)\]", header)
    finals = example("example_coinrun").trials["final_return"]
    estimate = mean_interval(finals)
    assert estimate.n == 5
    assert f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]" in header
    assert estimate.low > float(upper)


def test_the_page_of_the_analysis_quotes_the_answer():
    page = (ANALYSIS / "README.md").read_text()
    quoted = re.search(
        r"<!-- scaling-result: .*? -->\n> \*\*(.*?)\*\* (.*?)\n<!-- /scaling-result -->", page, re.DOTALL
    )
    assert " ".join(quoted.groups()) == example("example_throughput").answer().sentence


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_every_view_says_is_a_fact(name):
    """Terminal, Markdown, page and titles of figures print the sentences of the narrator, each unchanged."""
    opened = example(name)
    answer, facts = opened.answer(), {each.text for each in opened.findings}
    assert answer.findings == opened.findings
    assert {*answer.facts, *answer.limits, *(each.text for each in answer.unknown)} <= facts
    text = " ".join(answer.to_text(80).split())
    for fact in opened.findings:
        if fact.role in ("answer", "support", "unknown"):
            assert " ".join(fact.text.split()) in text
            assert fact.quantity in {"", *QUANTITIES}
    subjects = {subject for _, subject, _ in FIGURES.values()}
    assert {figure.title for figure in opened.figures.values()} <= facts | subjects


def triples(frame: pd.DataFrame) -> Iterator[tuple[str, Triple]]:
    """Yield the estimates with an interval that a frame of a table or of a figure holds, with their columns."""
    for column in frame.columns:
        ends = ("low", "high") if column == "value" and "low" in frame else (f"{column}_low", f"{column}_high")
        if set(ends) <= set(frame.columns):
            for row in frame[[column, *ends]].dropna().astype(float).to_numpy().tolist():
                yield str(column), (row[0], row[1], row[2])


def printed(study: Study) -> Iterator[tuple[str, str, Triple]]:
    """Yield where and what a reader is shown: tables, figures, the answer's tables."""
    frames = [(table.key, table.frame) for table in (*study.tables.values(), *study.answer().tables)]
    frames += [(figure.key, figure.frame) for figure in study.figures.values() if figure.drawn]
    for key, frame in frames:
        for column, triple in triples(frame):
            yield key, column, triple


def sentences(study: Study) -> Iterator[tuple[str, str]]:
    """Yield every text beside the numbers: conclusions, notes, titles, captions, the answer."""
    texts = [(table.key, table.conclusion, *table.notes) for table in study.tables.values()]
    texts += [(figure.key, figure.title, figure.alt, figure.caption) for figure in study.figures.values()]
    for key, *own in (*texts, ("answer", study.answer().to_text())):
        yield from ((key, text) for text in own)


def known(study: Study) -> np.ndarray:
    frame = study.estimates().dropna(subset=["low", "high"])
    return np.array([*frame[["value", "low", "high"]].to_numpy(dtype=float).tolist(), *certified(study.certificate)])


def certified(content: Any) -> Iterator[list[float]]:
    """Yield the estimates with an interval that a certificate holds."""
    if isinstance(content, dict) and {"value", "low", "high"} <= content.keys():
        ends = content["value"], content["low"], content["high"]
        yield from [] if None in ends else [list(ends)]
    elif isinstance(content, (dict, list)):
        for each in content.values() if isinstance(content, dict) else content:
            yield from certified(each)


@pytest.mark.parametrize("name", WITH_ESTIMATES)
def test_what_is_printed_is_an_estimate_with_its_interval(name):
    study = example(name)
    estimates, strange, seen = known(study), [], 0
    for key, column, triple in printed(study):
        same = np.isclose(estimates[:, 0], triple[0], rtol=1e-9, atol=1e-12)
        equal = np.isclose(estimates[same], triple, rtol=1e-9, atol=1e-12).all(axis=1).any()
        seen += bool(equal)
        if not equal and (same.any() or (key, column) not in NOT_ESTIMATED):
            strange.append((key, column, triple, estimates[same].tolist()))
    assert strange == []
    assert seen >= 2


@pytest.mark.parametrize("name", WITH_ESTIMATES)
def test_an_interval_in_a_sentence_is_that_of_a_table_or_an_estimate(name):
    study = example(name)
    every = np.array([*known(study).tolist(), *(triple for _, _, triple in printed(study))])
    strange = []
    for key, text in sentences(study):
        for match in WRITTEN.finditer(text):
            unit = 100.0 if "%" in match[0] else 1.0
            numbers = [float(each.replace(",", "")) / unit for each in match.groups()]
            decimals = [len(each.partition(".")[2]) for each in match.groups()]
            room = [0.51 * 10.0**-places / unit for places in decimals]
            if not (np.abs(every - numbers) <= room).all(axis=1).any():
                strange.append((key, match[0]))
    assert strange == []
