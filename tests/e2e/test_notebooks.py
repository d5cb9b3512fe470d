"""The notebooks run on a study of any kind, begin with its answer, and quote no number in their prose.

After a change of what a notebook shows, `python -m tests.e2e.test_notebooks` runs the notebooks and keeps what they
show.
"""

import ast
import os
import re
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot
from nbclient import NotebookClient

import analysis

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
NOTEBOOKS = sorted(path.name for path in ANALYSIS.glob("*.ipynb"))
OF_ANY_STUDY = ("learning.ipynb", "scaling.ipynb")
STUDIES = {"search": "example_coinrun", "throughput": "example_throughput", "holdup": "example_study"}
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")


def read(name):
    """Return a notebook and its cells of code."""
    book = nbformat.read(ANALYSIS / name, as_version=4)
    return book, [cell for cell in book.cells if cell.cell_type == "code"]


def execute(book):
    """Run a notebook where it lies; its metadata stays as it was, and tqdm's warning about widgets is left out."""
    kept = [cell.metadata.copy() for cell in book.cells], book.metadata.copy()
    client = NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ANALYSIS)}})
    client.execute(env=os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"})  # as Jupyter sets it
    for cell, metadata in zip(book.cells, kept[0], strict=True):
        cell.metadata = metadata
        if cell.cell_type == "code":  # Optuna, which checks a certificate's proposals, imports tqdm
            cell.outputs = [each for each in cell.outputs if "TqdmWarning" not in each.get("text", "")]
    book.metadata = kept[1]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_thin(name):
    _, cells = read(name)
    assert len(cells) <= 12
    assert [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])] == [cells[0]]
    for cell in cells:
        kinds = {type(node) for node in ast.walk(ast.parse(cell.source))}
        assert not kinds & {ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.For, ast.BinOp}, cell.source


@pytest.mark.parametrize("name", OF_ANY_STUDY)
def test_a_notebook_begins_with_its_answer_and_quotes_no_number(name):
    book, cells = read(name)
    assert cells[1].source.endswith("opened.answer()")
    assert cells[-1].source.startswith("import seaborn")
    assert "opened.trials" not in cells[-1].source, "what may not be compared is together in no picture"
    prose = " ".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert NUMBER.findall(prose) == [], "a number in the prose would be that of one study"


def test_the_table_that_people_come_for_is_the_first_after_the_answer():
    answer, table = read("scaling.ipynb")[1][1:3]
    assert table.source == 'opened.table("strong_scaling")'
    sentence = analysis.open(ANALYSIS / "example_throughput").answer().sentence
    assert sentence in answer.outputs[0]["data"]["text/html"]
    assert "speed-up" in table.outputs[0]["data"]["text/html"]


@pytest.mark.minutes
@pytest.mark.parametrize("kind", STUDIES)
@pytest.mark.parametrize("name", OF_ANY_STUDY)
def test_a_notebook_runs_on_a_study_of_any_kind(name, kind, monkeypatch):
    _, (parameters, *cells) = read(name)
    shown = ast.literal_eval(parameters.source.split("study, name = ")[1])[0]
    monkeypatch.chdir(ANALYSIS)
    shell = InteractiveShell()
    shell.run_cell(parameters.source.replace(shown, STUDIES[kind])).raise_error()
    for cell in cells:
        done = shell.run_cell(cell.source)
        done.raise_error()
        assert done.result is not None, cell.source
    pyplot.close("all")


if __name__ == "__main__":
    for name in NOTEBOOKS:
        book, _ = read(name)
        execute(book)
        nbformat.write(book, ANALYSIS / name)
