"""The notebooks run on the recorded examples, and what they show is what they were committed with."""

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
NOTEBOOKS = sorted(path.name for path in ANALYSIS.glob("*.ipynb"))
SHOWN = ("text/plain", "text/html", "text/markdown", "image/svg+xml")
"""Kinds of output that must come out the same."""


def code_cells(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def shown(book):
    return [
        {kind: text for output in cell.outputs for kind, text in output.get("data", {}).items() if kind in SHOWN}
        for cell in code_cells(book)
    ]


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
    NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(ANALYSIS)}}).execute()
    for cell, before, after in zip(code_cells(book), kept, shown(book), strict=True):
        assert after == before, cell.source
        for output in cell.outputs:
            assert output.output_type in ("execute_result", "display_data"), output
