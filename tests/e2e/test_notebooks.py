"""The notebooks show what they were committed with, run on a study of any kind, and quote no number in their prose.

Words are compared exactly and numbers to one in the last printed digit, or to a thousandth: the last digits of a
float, and the place at which an optimiser stops, differ between machines. Of a picture the words are compared; its
numbers stand in the text beside it. After a change of what a notebook shows, `python -m tests.e2e.test_notebooks` runs
the notebooks and keeps what they show.
"""

import ast
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import analysis

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
NOTEBOOKS = sorted(path.name for path in ANALYSIS.glob("*.ipynb"))
OF_ANY_STUDY = ("learning.ipynb", "scaling.ipynb")
STUDIES = {"search": "example_coinrun", "throughput": "example_throughput", "holdup": "example_study"}
SHOWN = ("text/plain", "text/html", "text/markdown", "image/svg+xml")
"""Kinds of output that are compared."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
TEXT = re.compile(r"<(?:text|title|desc)\b[^>]*>(.*?)</(?:text|title|desc)>", re.DOTALL)


def code_cells(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def read(name):
    return nbformat.read(ANALYSIS / name, as_version=4)


def shown(book):
    """Return what a reader sees of each cell: where there is HTML, nobody sees the plain text."""
    seen = []
    for cell in code_cells(book):
        kinds = {kind: text for output in cell.outputs for kind, text in output.get("data", {}).items()}
        if {"text/html", "image/png"} & kinds.keys():
            kinds.pop("text/plain", None)
        seen.append({kind: text for kind, text in kinds.items() if kind in SHOWN})
    return seen


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


def unit(number):
    """Return what the last printed digit of a number stands for."""
    digits, _, exponent = number.replace(",", "").partition("e")
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def assert_alike(kind, before, after):
    if kind == "image/svg+xml":
        before, after = ("\n".join(TEXT.findall(each)) for each in (before, after))
    words = [[" ".join(part.split()) for part in NUMBER.split(each)] for each in (before, after)]
    assert words[1] == words[0]
    for old, new in zip(NUMBER.findall(before), NUMBER.findall(after), strict=True):
        values = [float(each.replace(",", "")) for each in (old, new)]
        assert abs(values[0] - values[1]) <= max(1.01 * unit(old), 1.01 * unit(new), abs(values[0]) / 1000), (old, new)


@pytest.mark.parametrize(
    ("before", "after", "alike"),
    [
        ("2.71 [2.60, 2.81] (n=5)", "2.72 [2.60, 2.80] (n=5)", True),
        ("1,234 steps", "1,235 steps", True),
        ("2.71 [2.60, 2.81]", "2.73 [2.60, 2.81]", False),
        ("n = 5", "n = 7", False),
        ("faster", "slower", False),
    ],
)
def test_outputs_are_alike_up_to_the_last_printed_digit(before, after, alike):
    pictures = [
        f'<svg><path d="M {len(text)} 1"/><text x="{len(text)}">{text}</text></svg>' for text in (before, after)
    ]
    for kind, both in (("text/plain", (before, after)), ("image/svg+xml", pictures)):
        if alike:
            assert_alike(kind, *both)
        else:
            with pytest.raises(AssertionError):
                assert_alike(kind, *both)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_thin(name):
    cells = code_cells(read(name))
    assert len(cells) <= 12
    assert [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])] == [cells[0]]
    for cell in cells:
        kinds = {type(node) for node in ast.walk(ast.parse(cell.source))}
        assert not kinds & {ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.For, ast.BinOp}, cell.source


@pytest.mark.parametrize("name", OF_ANY_STUDY)
def test_a_notebook_begins_with_its_answer_and_quotes_no_number(name):
    book = read(name)
    cells = code_cells(book)
    assert cells[1].source.endswith("opened.answer()")
    assert cells[-1].source.startswith("import seaborn")
    assert "opened.trials" not in cells[-1].source, "what may not be compared is together in no picture"
    prose = " ".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert NUMBER.findall(prose) == [], "a number in the prose would be that of one study"


def test_the_table_that_people_come_for_is_the_first_after_the_answer():
    answer, table = code_cells(read("scaling.ipynb"))[1:3]
    assert table.source == 'opened.table("strong_scaling")'
    sentence = analysis.open(ANALYSIS / "example_throughput").answer().sentence
    assert sentence in answer.outputs[0]["data"]["text/html"]
    assert "speed-up" in table.outputs[0]["data"]["text/html"]


@pytest.mark.minutes
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_what_it_was_committed_with(name):
    book = read(name)
    kept = shown(book)
    assert any(kept), "the outputs are kept in the repository"
    execute(book)
    for cell, before, after in zip(code_cells(book), kept, shown(book), strict=True):
        assert after.keys() == before.keys(), cell.source
        for kind in after:
            assert_alike(kind, before[kind], after[kind])
        for output in cell.outputs:
            assert output.output_type in ("execute_result", "display_data"), output


@pytest.mark.minutes
@pytest.mark.parametrize("kind", STUDIES)
@pytest.mark.parametrize("name", OF_ANY_STUDY)
def test_a_notebook_runs_on_a_study_of_any_kind(name, kind):
    book = read(name)
    parameters = code_cells(book)[0]
    parameters.source = parameters.source.replace(
        ast.literal_eval(parameters.source.split("study, name = ")[1])[0], STUDIES[kind]
    )
    execute(book)
    assert STUDIES[kind] in parameters.source
    for cell in code_cells(book)[1:]:
        assert [each.output_type for each in cell.outputs][:1] == ["execute_result"], cell.source


if __name__ == "__main__":
    for name in NOTEBOOKS:
        book = read(name)
        execute(book)
        nbformat.write(book, ANALYSIS / name)
