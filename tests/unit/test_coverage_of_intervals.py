"""The page's table of coverage is what its command prints, and a few of its cells, simulated here."""

import pytest

from tests.benchmarks.coverage import BEGIN, END, PAGE, ROWS, SIZES, cell

BY_NAME = {row.what: row for row in ROWS}


def printed():
    """Return the page's cells: row -> n -> percent, or None."""
    lines = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip().splitlines()[2:]
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in lines]
    return {
        row[0]: {n: None if text == "none" else int(text) for n, text in zip(SIZES, row[3:-1], strict=True)}
        for row in cells
    }


def test_the_page_has_a_row_for_every_simulated_interval():
    assert list(printed()) == list(BY_NAME)


CELLS = {
    "mean score, 10 % of runs fail": 5,
    "mean score, 30 % of runs fail": 3,
    "difference of means, 50 % of one fail": 5,
    "lower bound of a difference, none fails": 5,
    "lower bound, 5 % of the first fail": 20,
    "interquartile mean, none fails": 4,
    "interquartile mean, 20 % fail": 5,
    "ratio of times to target, 20 % never reach it": 4,
    "ratio of times to target": 10,
    "speed-up, paired by block": 3,
}
"""Row of the page -> number of runs of the cell that is simulated every time."""


@pytest.mark.parametrize(
    ("what", "sizes", "repetitions", "points"),
    [
        *((what, [n], 100, 16) for what, n in CELLS.items()),
        # The seeds are fixed: two points are for another machine's last digits.
        *(pytest.param(what, SIZES, None, 2, marks=[pytest.mark.heavy, pytest.mark.timeout(3600)]) for what in BY_NAME),
    ],
)
def test_a_cell_is_what_the_page_says(what, sizes, repetitions, points):
    for n in sizes:
        expected = printed()[what][n]
        found = cell(BY_NAME[what], n, **({} if repetitions is None else {"repetitions": repetitions}))
        assert found == expected if expected is None else found == pytest.approx(expected, abs=points), n
