"""The report by value: conclusion first, refusals before it, limits, safe text, and files that stand alone."""

import csv
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from analysis.answers import Answer, Number, Unknown
from analysis.figures import Importance, absent, importance
from analysis.load import from_folder
from analysis.opened import Study
from analysis.report import build, make_report, parse_formats, to_html, to_markdown, write
from analysis.report.limits import GRID5000, acknowledgement, limits
from analysis.tables.cells import TableColumn
from analysis.tables.table import Layout, Table
from analysis.tables.writers import prose
from study.errors import AnalysisError
from tests.planted import Truth, planted_folder
from tests.unit.tables_data import study

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)> & ünï'
VOID = {"meta", "br", "img", "link", "input", "hr"}


def data(rows=({"status": "finished", "timing": "measured"},), **changes):
    runs = [{"trial": number, "num_env_runners": 10, "seed": 1, **row} for number, row in enumerate(rows)]
    return study(runs, **{"name": "demo", "sheet": {}, **changes})


def table(key, conclusion="It is so.", **more):
    frame = pd.DataFrame({"x": [1]})
    column = TableColumn(name="x", unit="s", meaning="A number.")
    return Table(key=key, title=f"Table {key}", frame=frame, columns=(column,), conclusion=conclusion, n=1, **more)


def empty(key, why="Nothing to show.", command=""):
    return Layout(key=key, title=f"Table {key}").without(why, command)


PICTURE = importance(Importance(values={10: {"lr": 0.3, "batch": 0.7}}, runs={10: 12}), engine="batched+lean")


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


ANSWER = Answer(
    kind="search",
    sentence="Batch 64 learnt best.",
    setting="train_batch_size: 64  lr: 1e-3",
    facts=("It is a fact.",),
    numbers=(Number(label="return", text="500"),),
    rows=table("answer"),
    unknown=(Unknown(text="other seeds.", command="python run_study.py --space x.yaml"),),
    figure="importance",
)


def test_the_answer_stands_before_the_contents_and_the_evidence():
    report = build(data(), [table("T2", "Twice as fast.")], [PICTURE], answer=ANSWER)
    page = to_html(report)
    words = ["Batch 64 learnt best.", "train_batch_size: 64", "It is a fact.", 'id="figure-importance"', "Other seeds."]
    places = [page.index(each) for each in (*words, "<nav", "Twice as fast.", 'id="limits"')]
    assert places[-3:] == sorted(places[-3:])
    assert max(places[:-3]) < places[-3]
    text = to_markdown(report)
    assert text.index("Batch 64") < text.index("figures/importance.png") < text.index("Twice as fast.")
    assert report.parts[0].figures == ()  # the figure beside the answer is not shown twice


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("holdup", ["holdup", "learning", "trials", "throughput", "time"]),
        ("search", ["learning", "trials", "throughput", "time", "holdup"]),
        ("throughput", ["throughput", "time", "holdup", "learning", "trials"]),
    ],
)
def test_evidence_is_in_the_order_of_the_study_s_question(kind, parts):
    tables = [table(key) for key in ("T2", "T11", "T5", "T8", "trials")]
    assert [part.key for part in build(data(kind=kind), tables, []).parts] == parts


def test_what_is_empty_is_one_list_at_the_end_each_reason_and_each_command_once():
    tables = [table("T2"), empty("T3", "No clock."), empty("T5", "No clock."), empty("T9", "No cell.", "python a.py")]
    tables.append(empty("T4", "No model.", "python a.py"))
    figures = [absent("own", "Own", "No clock."), absent("front", "Front", "No cell.", "python a.py")]
    missing = build(data(), tables, figures).missing
    assert missing[0].reasons["No clock."][0] == "T3. Table T3"
    (unnumbered,) = build(data(), [empty("trials")], []).missing
    assert unnumbered.reasons == {"Nothing to show.": ("Table trials",)}
    assert [(each.command, *map(len, each.reasons.values())) for each in missing] == [("", 3), ("python a.py", 2, 1)]
    for page in (to_html(build(data(), tables, figures)), to_markdown(build(data(), tables, figures))):
        assert [page.count(each) for each in ("No clock.", "No cell.", "No model.", "python a.py")] == [1] * 4


def test_refusals_are_told_once_the_most_important_ones():
    report = build(data(), [table("T2")], [], refusals=[f"refusal {number}" for number in range(6)])
    assert len(report.refusals) == 5
    assert to_html(report).count("refusal 3") == to_markdown(report).count("refusal 3") == 1


def test_every_table_and_figure_is_in_the_evidence_once():
    tables = [table(key) for key in ("T1", "T2", "T3", "T9", "T99")]
    report = build(data(), tables, [PICTURE])
    assert sorted(each.key for each in report.tables) == sorted(each.key for each in tables)
    assert report.sheet is not None
    assert [part.key for part in report.parts] == ["learning", "throughput", "models", "more"]
    assert [each.key for part in report.parts for each in part.figures] == ["importance"]


def test_a_definition_stands_once_on_the_page():
    tables = [table(key, definitions=("X is a number of things.",)) for key in ("T2", "T3")]
    assert to_html(build(data(), tables, [])).count("X is a number of things.") == 1


@pytest.mark.parametrize(("planned", "ended"), [(3, "; 1 of 3 trials has ended"), (1, "")])
def test_the_summary_of_an_unfinished_study_says_how_many_trials_have_ended(planned, ended):
    report = build(data(kind="search", sheet={"num_trials": planned}), [], [])
    assert f"Search: 1 trial with 10 runners{ended}; engine: " in report.summary


def test_a_table_with_the_title_of_its_part_has_one_heading_in_markdown():
    text = to_markdown(build(data(), [replace(table("trials"), title="Every trial"), table("T2")], []))
    assert [line for line in text.splitlines() if "Every trial" in line] == ["## Every trial"]
    assert "### T2. Table T2" in text


def test_limits_tell_what_is_missing_and_single():
    rows = [
        {"status": "finished", "timing": "measured", "digest": "aaa", "stage": "confirm"},
        {"status": "finished", "timing": "emulated", "digest": "aaa", "seed": 2, "stage": "confirm"},
        {"status": "finished", "timing": "emulated", "digest": "bbb", "stage": "confirm"},
        {"status": "failed", "timing": "tainted", "digest": "ccc", "reason": "it broke", "stage": "confirm"},
    ]
    found = {limit.title: limit.items for limit in limits(data(rows, problems=("It still runs.",)), [table("T9")])}
    assert found["Missing or unfinished"] == ("It still runs.",)
    assert found["Failed runs: they count as target not reached"] == ("1 run: it broke",)
    assert found["Clocks"][0].startswith("1 of 4 runs with a measured clock")
    assert found["Clocks"][2].startswith("1 run tainted")
    assert found["Seeds"][0].startswith("2 of 3 cells")
    assert any("is a prediction" in item for item in found["What the numbers do not mean"])


def test_the_testbed_is_acknowledged_where_a_node_is_from_there():
    node = {"nodes": "gros-1.nancy.grid5000.fr, gros-2.nancy.grid5000.fr"}
    assert acknowledgement(data([{"status": "finished", **node}])) == GRID5000
    host = {"hardware": {"hostname": "paradoxe-9.rennes.grid5000.fr"}}
    assert acknowledgement(data(sheet=host)) == GRID5000
    session = {"sessions": [{"cluster": {"nodes": [{"address": "gros-1.nancy.grid5000.fr", "num_cpus": 18}]}}]}
    report = build(data(sheet=session), [table("T2")], [])
    assert GRID5000 in to_markdown(report)
    assert "Grid&#39;5000 testbed" in to_html(report)


@pytest.mark.parametrize(
    "sheet",
    [
        {"hardware": {"hostname": "laptop"}},
        {"hardware": {"hostname": "node.grid5000.fr.example.org"}},
        {"hardware": {"hostname": "mygrid5000.fr"}},
        {"description": "meant for gros-1.nancy.grid5000.fr"},
        {"sessions": [{"command": ["--address", "gros-1.nancy.grid5000.fr"]}]},
    ],
)
def test_no_testbed_is_thanked_for_nothing(sheet):
    report = build(data(sheet=sheet), [table("T2")], [])
    assert report.acknowledgement == ""
    assert "Acknowledgement" not in to_html(report)


def test_names_and_reasons_are_text_and_never_elements():
    rows = [{"status": "failed", "timing": "tainted", "reason": HOSTILE}]
    hostile = replace(PICTURE, title=HOSTILE, alt=HOSTILE, caption=HOSTILE)
    report = build(
        data(rows, name=HOSTILE, problems=(HOSTILE,)),
        [table("T2", HOSTILE, notes=(HOSTILE,), definitions=(HOSTILE,)), empty("T3", HOSTILE)],
        [hostile, absent("own", HOSTILE, HOSTILE)],
        refusals=[HOSTILE],
    )
    outline = Outline(to_html(report))
    assert outline.tags.isdisjoint({"script", "img"})
    assert "&lt;script&gt;" in to_html(report)
    assert "<script>" not in to_markdown(build(data(rows), [], [], refusals=[HOSTILE]))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    truth = Truth(cells=((2, 2048), (4, 2048), (8, 2048), (2, 4096)), blocks=3, failed=1)
    return planted_folder(tmp_path_factory.mktemp("planted") / "demo", truth, np.random.default_rng(2))


@pytest.fixture(scope="module")
def report(planted):
    return make_report(Study(from_folder(planted.path)))


@pytest.fixture(scope="module")
def small():
    """A report that is quickly written: two tables, a figure and one that is missing."""
    tables = [table("T1"), table("T2", "Twice as fast."), empty("T3")]
    return build(data(), tables, [PICTURE, absent("efficiency", "Efficiency", "Refused. Fix: none.")])


def test_a_page_is_whole_and_asks_for_nothing(report):
    page = to_html(report)
    outline = Outline(page)
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert outline.faults == []
    assert outline.stack == []
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert len(outline.ids) == len(set(outline.ids))
    assert all(each.startswith("#") and each[1:] in outline.ids for each in outline.asks)
    assert "script" not in outline.tags
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", page)
    assert "default-src 'none'" in page
    assert page.count('role="img"') == sum(figure.drawn for figure in report.figures) > 5


def test_the_files_are_all_there_and_stale_ones_go(small, tmp_path):
    (tmp_path / "figures").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    stale = [tmp_path / "figures" / "efficiency.svg", tmp_path / "tables" / "prices.csv"]
    for file in stale:
        file.write_text("of an earlier report")
    (tmp_path / "figures" / "mine.svg").write_text("somebody's own")
    files = write(small, tmp_path, ("html", "md", "csv", "tex"))
    assert files[0] == tmp_path / "report.html"
    assert all(file.stat().st_size > 0 for file in files)
    names = {file.relative_to(tmp_path).as_posix() for file in files}
    forms = {f"tables/{key}.{form}" for key in ("T1", "T2", "T3") for form in ("md", "csv", "tex")}
    pictures = {f"figures/importance.{form}" for form in ("svg", "png", "csv", "pdf")}
    assert names == {"report.html", "report.md", *forms, *pictures}
    assert not any(file.exists() for file in stale)
    assert (tmp_path / "figures" / "mine.svg").exists()
    with (tmp_path / "tables" / "T2.csv").open() as lines:
        assert list(csv.DictReader(line for line in lines if not line.startswith("#"))) == [{"x": "1"}]
    assert re.findall(r"!\[[^]]*\]\(([^)]+)\)", (tmp_path / "report.md").read_text()) == ["figures/importance.png"]


def test_a_format_alone_writes_nothing_else(small, tmp_path):
    names = {file.relative_to(tmp_path).as_posix() for file in write(small, tmp_path, ("csv",))}
    assert names == {"tables/T1.csv", "tables/T2.csv", "tables/T3.csv", "figures/importance.csv"}


def test_a_folder_that_cannot_be_written_is_told(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AnalysisError, match=r"must be writable.*--out"):
        write(small, tmp_path / "file", ("md",))


@pytest.mark.parametrize(("text", "formats"), [("html", ("html",)), (" tex, html,html", ("html", "tex"))])
def test_formats_are_named(text, formats):
    assert parse_formats(text) == formats


@pytest.mark.parametrize("text", ["pdf", "html,doc", "", ","])
def test_unknown_formats_are_told(text):
    with pytest.raises(AnalysisError, match="--format: must be some of html, md, csv, tex"):
        parse_formats(text)


def test_a_page_without_any_table_says_what_is_wrong():
    page = to_html(build(data(problems=("All is lost.",)), [], []))
    assert "All is lost." in page


def test_names_between_backticks_are_code_and_everything_is_escaped():
    assert prose("`measured` or <b>`x<y`</b>") == "<code>measured</code> or &lt;b&gt;<code>x&lt;y</code>&lt;/b&gt;"
    assert prose("one ` alone") == "one ` alone"
