"""The report by value: the answer first, at most five tables and five figures, safe text, files that stand alone."""

import csv
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from analysis.answers import Answer, Fact
from analysis.figures import Figure, absent
from analysis.opened import Study
from analysis.report import MOST, Report, make_report, to_html, write
from analysis.tables.table import Table, TableColumn, without_rows
from tests.planted import Truth, planted_runs, study
from tests.values import replace

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)> & ünï'
VOID = {"meta", "br", "img", "link", "input", "hr"}


def table(key, conclusion="It is so.", **more):
    frame = pd.DataFrame({"x": [1]})
    column = TableColumn("x", "s", "", "A number.")
    return Table(key=key, title=f"Table {key}", frame=frame, columns=(column,), conclusion=conclusion, n=1, **more)


def empty(key, why="Nothing to show."):
    return without_rows(key, f"Table {key}", why)


def bars(ax, frame):
    ax.barh(frame["name"], frame["value"])
    ax.set_xlabel("value [1]")


def picture(key="efficiency", **more):
    frame = pd.DataFrame({"name": ["one", "two"], "value": [0.3, 0.7]})
    return Figure(key=key, title=f"Picture {key}", alt="One is 0.3.", caption="Bars.", frame=frame, paint=bars, **more)


PICTURE = picture()
ANSWER = Answer(
    kind="throughput",
    findings=(
        Fact(role="answer", text="Batch 64 learnt best."),
        Fact(role="support", text="It is a fact."),
        Fact(role="unknown", text="other seeds.", command="python run_study.py --space x.yaml"),
        Fact(role="limit", text="It is one run."),
    ),
    setting="train_batch_size: 64  lr: 1e-3",
    rows=table("answer"),
    figure="efficiency",
)


def build(tables, figures, **changes):
    values = {"name": "demo", "source": "studies/demo", "summary": "A study.", "answer": ANSWER}
    return Report(**{**values, "tables": tuple(tables), "figures": tuple(figures), **changes})


class Outline(HTMLParser):
    """What a page is made of: its elements, open ones in order, headings, and what could ask for something."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.asks, self.ids, self.stack, self.faults, self.tags = [], [], [], [], [], set()
        self.seen, self.rows, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        named = dict(attrs)
        self.seen.append((tag, named))
        if tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.ids += [named["id"]] if "id" in named else []
        self.asks += [named[key] for key in ("src", "href", "xlink:href", "action", "data") if key in named]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_data(self, data):
        self.text += data

    def handle_endtag(self, tag):
        if not self.stack or self.stack.pop() != tag:
            self.faults.append(tag)


def test_a_page_has_at_most_five_tables_and_figures_and_none_is_empty():
    keys = ["T2", "T3", "T5"]
    tables = [table(key) for key in (*keys, "T8", "T1")]
    report = build([*tables[:1], empty("T3"), *tables[2:]], [picture(f"p{number}") for number in range(8)])
    assert [each.key for each in report.shown_tables] == ["T2", "T5"]
    assert len(report.shown_figures) == MOST
    full = build(tables, [PICTURE, *(picture(f"p{number}") for number in range(8))])
    assert [each.key for each in full.shown_tables] == keys
    assert len(full.shown_figures) == MOST - 1
    assert "`T8` (Table T8)" in full.files[0], "what is left out is a file"


def test_names_and_reasons_are_text_and_never_elements():
    hostile = replace(PICTURE, title=HOSTILE, alt=HOSTILE, caption=HOSTILE)
    facts = tuple(Fact(role=role, text=HOSTILE) for role in ("answer", "support", "unknown", "limit"))
    report = build(
        [table("T2", HOSTILE, notes=(HOSTILE,), definitions=(HOSTILE,))],
        [hostile, absent("phases", HOSTILE, HOSTILE)],
        name=HOSTILE,
        summary=HOSTILE,
        answer=replace(ANSWER, findings=facts),
    )
    outline = Outline(to_html(report))
    assert "script" not in outline.tags
    assert all(named.get("class") == "picture" for tag, named in outline.seen if tag == "img")
    assert not any(name.startswith("on") for _, named in outline.seen for name in named)
    assert "&lt;script&gt;" in to_html(report)


@pytest.fixture(scope="module")
def report():
    truth = Truth(cells=((2, 2048), (4, 2048), (8, 2048), (2, 4096)), blocks=3, failed=1)
    return make_report(Study(study(planted_runs(truth, np.random.default_rng(2)))))


@pytest.fixture(scope="module")
def small():
    """A report that is quickly written: two tables, a figure and one that is missing."""
    tables = [table("T1"), table("T2", "Twice as fast."), empty("T3")]
    return build(tables, [PICTURE, absent("score", "Score", "Refused. Fix: none.")])


def test_a_page_is_whole_and_asks_for_nothing(report):
    page = to_html(report)
    outline = Outline(page)
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert (outline.faults, outline.stack) == ([], [])
    assert outline.headings.count(1) == outline.headings[0] == 1
    assert all(after <= before + 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert len(outline.ids) == len(set(outline.ids))
    asks = [each for each in outline.asks if not each.startswith("data:image/svg+xml;base64,")]
    assert all(each.startswith("#") and each[1:] in outline.ids for each in asks)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", page)
    assert "default-src 'none'" in page
    pictures = [named for tag, named in outline.seen if tag == "img"]
    assert len(pictures) >= 2
    assert all(named["alt"] for named in pictures)


def test_the_files_are_all_there_and_stale_ones_go(small, tmp_path):
    (tmp_path / "figures").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    names = ("figures/score.svg", "tables/prices.csv")
    stale = [tmp_path / name for name in names]
    for file in (*stale, tmp_path / "figures" / "mine.svg"):
        file.write_text("of an earlier report")
    files = write(small, tmp_path, ("html", "csv", "tex"))
    assert files[0] == tmp_path / "report.html"
    assert all(file.stat().st_size > 0 for file in files)
    names = {file.relative_to(tmp_path).as_posix() for file in files}
    forms = {f"tables/{key}.{form}" for key in ("T1", "T2", "T3") for form in ("csv", "tex")}
    pictures = {f"figures/efficiency.{form}" for form in ("svg", "png", "csv", "pdf")}
    assert names == {"report.html", *forms, *pictures}
    assert not any(file.exists() for file in stale)
    assert (tmp_path / "figures" / "mine.svg").exists()
    with (tmp_path / "tables" / "T2.csv").open() as lines:
        assert list(csv.DictReader(line for line in lines if not line.startswith("#"))) == [{"x": "1"}]
