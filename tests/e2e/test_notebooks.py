"""The notebooks run on the recorded examples, and what they show is what they were committed with.

Words are compared exactly and numbers to one in the last printed digit, or to a thousandth: the last digits of a
float, and the place at which an optimiser stops, differ between machines. Of a picture the words are compared; its
numbers stand in the text beside it. After a change of what tables say, `python -m tests.e2e.test_notebooks` runs the
notebooks and keeps what they show.
"""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
NOTEBOOKS = sorted(path.name for path in ANALYSIS.glob("*.ipynb"))
SHOWN = ("text/plain", "text/html", "text/markdown", "image/svg+xml")
"""Kinds of output that are compared."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
TEXT = re.compile(r"<(?:text|title|desc)\b[^>]*>(.*?)</(?:text|title|desc)>", re.DOTALL)


def code_cells(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def shown(book):
    """Return what a reader sees of each cell: where there is HTML, nobody sees the plain text."""
    seen = []
    for cell in code_cells(book):
        kinds = {kind: text for output in cell.outputs for kind, text in output.get("data", {}).items()}
        if "text/html" in kinds:
            kinds.pop("text/plain", None)
        seen.append({kind: text for kind, text in kinds.items() if kind in SHOWN})
    return seen


def execute(book):
    """Run a notebook where it lies; its metadata stays as it was, and tqdm's warning about widgets is left out."""
    kept = [cell.metadata.copy() for cell in book.cells], book.metadata.copy()
    NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ANALYSIS)}}).execute()
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
        ("2.710000", "2.711", True),
        ("2.71 [2.60, 2.81]", "2.73 [2.60, 2.81]", False),
        ("n = 5", "n = 7", False),
        ("faster", "slower", False),
    ],
)
def test_outputs_are_alike_up_to_the_last_printed_digit(before, after, alike):
    if alike:
        assert_alike("text/plain", before, after)
    else:
        with pytest.raises(AssertionError):
            assert_alike("text/plain", before, after)


def test_of_a_picture_the_words_are_compared():
    def picture(word, clip):
        return f'<svg><clipPath id="{clip}"/><path d="M 1 {clip}"/><text x="{clip}">{word}</text></svg>'

    assert_alike("image/svg+xml", picture("runners", 1), picture("runners", 23))
    with pytest.raises(AssertionError):
        assert_alike("image/svg+xml", picture("runners", 1), picture("learners", 1))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_thin(name):
    book = nbformat.read(ANALYSIS / name, as_version=4)
    cells = code_cells(book)
    assert len(cells) <= 12
    assert [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])] == [cells[0]]
    for cell in cells:
        kinds = {type(node) for node in ast.walk(ast.parse(cell.source))}
        assert not kinds & {ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.For, ast.BinOp}, cell.source


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_what_it_was_committed_with(name):
    book = nbformat.read(ANALYSIS / name, as_version=4)
    kept = shown(book)
    assert any(kept), "the outputs are kept in the repository"
    execute(book)
    for cell, before, after in zip(code_cells(book), kept, shown(book), strict=True):
        assert after.keys() == before.keys(), cell.source
        for kind in after:
            assert_alike(kind, before[kind], after[kind])
        for output in cell.outputs:
            assert output.output_type in ("execute_result", "display_data"), output


if __name__ == "__main__":
    for name in NOTEBOOKS:
        book = nbformat.read(ANALYSIS / name, as_version=4)
        execute(book)
        nbformat.write(book, ANALYSIS / name)
