"""`python -m study report` as a person types it, and its page in a real browser: screen, phone, paper. No Ray.

Pictures of the pages go to the folder named by STUDY_SCREENSHOTS, else to pytest's own.
"""

import base64
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.answers import Fact
from analysis.report import make_report, to_html
from analysis.tables.table import Table, TableColumn
from tests.e2e.commands import run, study
from tests.examples import ANALYSIS, example

PAPER_PX = 703
"""Between the margins of A4: 186 mm at 96 pixels per inch."""
SLACK_PX = 1.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the recorded throughput study with its report."""
    folder = Path(shutil.copytree(ANALYSIS / "example_throughput", tmp_path_factory.mktemp("study") / "planted"))
    done = run(study("report", folder), folder.parent)
    (folder / "said").write_text(" ".join(done.stdout.split()))
    return folder


def test_the_command_says_the_answer_and_where_the_page_is(folder):
    answer, printed = analysis.open(folder).answer(), (folder / "said").read_text()
    assert printed.startswith(answer.sentence)
    assert answer.prices.title in printed and str(folder / "report" / "report.html") in printed
    for name in ("report.html", "tables/T2.csv", "figures/efficiency.svg"):
        assert (folder / "report" / name).exists()


@pytest.fixture(scope="module")
def pages(folder, tmp_path_factory):
    """Pages of a real pipeline and of recorded studies, and one with the longest words that anybody would give it."""
    place, report = tmp_path_factory.mktemp("pages"), make_report(example("example_throughput"))
    word = "a_word_without_any_place_to_break_" * 6
    column, frame = TableColumn("x", "", word, word), pd.DataFrame({"x": [word]})
    wide = Table(key="T2", title=word, frame=frame, columns=(column,), conclusion=word, notes=(word,))
    facts = [Fact(role=role, text=word, command=f"{word} --set {word}") for role in ("answer", "support", "unknown")]
    facts = (*facts, Fact(role="limit", text=word))
    answer = replace(report.answer, findings=facts, rows=replace(wide, key="answer"), prices=None)
    told = {"name": word, "summary": word, "answer": answer, "tables": (wide,), "figures": (report.beside,)}
    (place / "long.html").write_text(to_html(replace(report, **told)))
    (place / "holdup.html").write_text(to_html(make_report(example("example_study"))))
    throughput = folder / "report" / "report.html"
    return {"throughput": throughput, **{name: place / f"{name}.html" for name in ("long", "holdup")}}


def show(browser, page, width, *, mobile=False, media="screen"):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
    browser.get(page.as_uri())


def picture(browser, file):
    height = browser.execute_script("return document.documentElement.scrollHeight")
    width = browser.execute_script("return document.documentElement.clientWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    file.write_bytes(base64.b64decode(shot["data"]))


TOO_WIDE = """
const [limit, boxes] = arguments;
const inBox = e => boxes && e.closest('.table-scroll') && !e.matches('.table-scroll');
return [...document.body.querySelectorAll('*')].filter(e => !e.matches('.skip') && !inBox(e) && !e.closest('svg *'))
  .map(e => [e.tagName + '.' + (e.getAttribute('class') || ''), e.getBoundingClientRect()])
  .filter(([name, box]) => box.width > 0 && (box.right > limit || box.left < -1))
  .map(([name, box]) => name + ' from ' + box.left + ' to ' + box.right);
"""
SCROLLING = """
return [...document.querySelectorAll(arguments[0])].filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.innerText.slice(0, 60));
"""


@pytest.mark.parametrize("page", ["long", "throughput", "holdup"])
@pytest.mark.parametrize(("device", "width"), [("desktop", 1280), ("phone", 390)])
def test_nothing_is_cut_on_a_screen(browser, pages, pictures, page, device, width):
    """On a screen no table scrolls; on a phone the answer does not."""
    show(browser, pages[page], width, mobile=device == "phone")
    picture(browser, pictures / f"report_{page}_{device}.png")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(TOO_WIDE, width + SLACK_PX, True) == []
    if device == "phone" or page != "long":
        assert browser.execute_script(SCROLLING, ".answer *" if device == "phone" else ".table-scroll") == []
    images = "return [...document.images].map(e => e.complete && e.naturalWidth > 0 && e.alt.length > 0)"
    assert {*browser.execute_script(images)} == {True}
    asked = "return performance.getEntriesByType('resource').map(e => e.name).filter(e => !e.startsWith('data:'))"
    assert browser.execute_script(asked) == []


@pytest.mark.parametrize("page", ["throughput", "long"])
def test_nothing_is_cut_on_paper(browser, pages, pictures, page):
    show(browser, pages[page], PAPER_PX, media="print")
    assert browser.execute_script(TOO_WIDE, PAPER_PX + SLACK_PX, False) == []
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    content = base64.b64decode(printed["data"])
    (pictures / f"report_{page}.pdf").write_bytes(content)
    assert content.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 2
