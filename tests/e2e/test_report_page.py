"""`python -m study report` as a person types it, and its page in a real browser: screen, phone, paper. No Ray.

Pictures of the pages go to the folder named by STUDY_SCREENSHOTS, else to pytest's own.
"""

import base64
import re

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.report import build, to_html
from analysis.tables.cells import TableColumn
from analysis.tables.table import Table
from study.cli.report import report
from study.records.folder import StudyFolder
from tests.e2e.commands import run, study
from tests.planted import Truth, planted_folder
from tests.synthetic import sync_mlflow
from tests.unit.test_figures_learning import run as learning_run
from tests.unit.test_report import PICTURE, data

PAPER_PX = 703
"""Between the margins of A4: 186 mm at 96 pixels per inch."""
SLACK_PX = 1.5
SMALLEST_PX = 8.0
"""Height of the box of a figure's letters on a phone."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> StudyFolder:
    truth = Truth(cells=((1, 2048), (4, 2048), (16, 2048), (46, 2048), (4, 4096)), blocks=3, failed=2)
    return planted_folder(tmp_path_factory.mktemp("study") / "planted", truth, np.random.default_rng(4))


@pytest.fixture(scope="module")
def uri(folder):
    uri = f"sqlite:///{folder.path.parent}/mlflow.db"
    sync_mlflow(folder, tracking_uri=uri)
    return uri


@pytest.fixture(scope="module")
def reported(folder, uri):
    """The command on a study folder, with its output."""
    done = run(study("report", folder.path, "--tracking-uri", uri), folder.path.parent)
    assert done.returncode == 0, done.stderr
    return done


def test_the_command_says_the_answer_and_where_the_page_is(folder, reported):
    page = folder.path / "report" / "report.html"
    assert page.exists()
    assert str(page) in reported.stdout
    answer, printed = analysis.open(folder.path).answer(), " ".join(reported.stdout.split())
    assert printed.startswith(answer.sentence)
    assert answer.prices.title in printed
    assert (folder.path / "report" / "tables" / "T2.csv").exists()
    assert (folder.path / "report" / "figures" / "efficiency.svg").exists()


def test_the_files_are_with_the_study_in_mlflow(uri, reported):
    from mlflow import MlflowClient

    assert "Attached to MLflow" in reported.stdout
    client = MlflowClient(uri)
    (number,) = [each.experiment_id for each in client.search_experiments() if each.name == "planted"]
    (parent,) = client.search_runs([number], "tags.`study.role` = 'study'")
    names = {each.path for each in client.list_artifacts(parent.info.run_id, "report")}
    assert {"report/report.html", "report/report.md", "report/tables", "report/figures"} <= names


def test_a_study_in_mlflow_is_reported_too(uri, reported, tmp_path, capsys):
    report(uri, name="planted", format_="html", out=tmp_path)
    assert "\nAttached to MLflow" in capsys.readouterr().out
    assert "T2. Strong scaling" in (tmp_path / "report.html").read_text()


def test_a_report_does_not_depend_on_mlflow(folder, tmp_path, capsys):
    report(str(folder.path), format_="csv", out=tmp_path / "out", tracking_uri="http://127.0.0.1:9")
    assert "\nNot attached to MLflow: tracking URI http://127.0.0.1:9" in capsys.readouterr().out
    assert (tmp_path / "out" / "tables" / "T2.csv").exists()


@pytest.fixture(scope="module")
def pages(folder, reported, tmp_path_factory):
    """The page of a real pipeline, and one with the longest words that anybody would give it."""
    long = tmp_path_factory.mktemp("long") / "report.html"
    word = "a_word_without_any_place_to_break_" * 6
    rows = [learning_run(number, status="failed", reason=word) for number in range(3)]
    column = TableColumn(name="x", unit="", meaning=word, label=word)
    frame = pd.DataFrame({"x": [word]})
    wide = Table(key="T2", title=word, frame=frame, columns=(column,), conclusion=word, notes=(word,))
    content = build(data(rows, name=word, problems=(word,)), [wide], [PICTURE], refusals=[f"{word} --set {word}"])
    long.write_text(to_html(content))
    return {"planted": folder.path / "report" / "report.html", "long": long}


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
TEXTS = """
return [...document.querySelectorAll('.picture svg')].map(svg => {
  const frame = svg.getBoundingClientRect();
  return [svg.id, [frame.left, frame.top, frame.right, frame.bottom],
    [...svg.querySelectorAll('text')].map(text => {
      const box = text.getBoundingClientRect();
      return [text.textContent, [box.left, box.top, box.right, box.bottom]];
    })];
});
"""


def overlap(one, two):
    """Return by how many pixels two boxes overlap in the direction in which they overlap least."""
    return min(min(one[2], two[2]) - max(one[0], two[0]), min(one[3], two[3]) - max(one[1], two[1]))


def check_figures(browser, smallest):
    figures = browser.execute_script(TEXTS)
    assert figures
    for name, frame, texts in figures:
        assert len(texts) >= 4, name
        for words, box in texts:
            assert box[0] >= frame[0] - SLACK_PX, (name, words)
            assert box[2] <= frame[2] + SLACK_PX, (name, words)
            assert box[1] >= frame[1] - SLACK_PX, (name, words)
            assert box[3] <= frame[3] + SLACK_PX, (name, words)
            assert min(box[2] - box[0], box[3] - box[1]) >= min(smallest, 0.4 * len(words) * smallest), (name, words)
        for number, (words, box) in enumerate(texts):
            for other, second in texts[number + 1 :]:
                # The box of a line holds room above and below its letters.
                assert overlap(box, second) <= 0.25 * min(box[3] - box[1], second[3] - second[1]), (name, words, other)
        assert any(re.search(r"\[.+\]$", words) for words, _ in texts), (
            f"{name}: no axis with a unit"
        )  # names need none


@pytest.mark.parametrize("page", ["planted", "long"])
@pytest.mark.parametrize(("device", "width"), [("desktop", 1280), ("phone", 390)])
def test_nothing_is_cut_or_overlaps_on_a_screen(browser, pages, pictures, page, device, width):
    show(browser, pages[page], width, mobile=device == "phone")
    picture(browser, pictures / f"report_{page}_{device}.png")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(TOO_WIDE, width + SLACK_PX, True) == []
    check_figures(browser, SMALLEST_PX if device == "phone" else 10.0)
    asked = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert browser.execute_script(asked) == []


@pytest.mark.parametrize("page", ["planted", "long"])
def test_nothing_is_cut_on_paper(browser, pages, pictures, page):
    show(browser, pages[page], PAPER_PX, media="print")
    assert browser.execute_script(TOO_WIDE, PAPER_PX + SLACK_PX, False) == []
    check_figures(browser, 5.0)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    content = base64.b64decode(printed["data"])
    (pictures / f"report_{page}.pdf").write_bytes(content)
    assert content.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 2


def test_the_words_of_a_figure_can_be_unfolded(browser, pages):
    show(browser, pages["planted"], 1280)
    said = browser.execute_script(
        "const d = document.querySelector('#figure-efficiency details'); d.open = true; return d.innerText"
    )
    assert re.search(r"\(n=3\)", said)
