"""One quantity has one value and one interval in tables, figures, answer, certificate and sentences of the examples."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.opened import Study
from tests.examples import example

EXAMPLES = ("example_throughput", "example_study", "example_table")
NOT_ESTIMATED = {
    ("return_steps", "value"): "points of curves; tests/unit/test_examples.py compares those of the certificate",
}
"""Printed numbers that are in no frame of estimates -> why."""
NUMBER = r"(-?[\d,]*\.?\d+)(?:%| %)?"
WRITTEN = re.compile(rf"{NUMBER} \[{NUMBER}, {NUMBER}\]")
Triple = tuple[float, float, float]


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


@pytest.mark.parametrize("name", EXAMPLES)
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


@pytest.mark.parametrize("name", EXAMPLES)
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
