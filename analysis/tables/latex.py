"""A table as LaTeX, for booktabs and graphicx. Pure text; every character of the data is escaped."""

from analysis.tables.grid import Grid, numeric_columns
from study.harmless import one_line

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "\N{EN DASH}": "--",
    "—": "---",
    "…": r"\ldots{}",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "·": r"$\cdot$",
    "∞": r"$\infty$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "²": r"\textsuperscript{2}",
    "→": r"$\rightarrow$",
}
"""Characters that LaTeX reads otherwise, or that its default fonts lack."""


def escape(text: str) -> str:
    """Return `text` on one line, such that LaTeX prints it."""
    return "".join(ESCAPES.get(letter, letter) for letter in one_line(text))


def to_latex(table: Grid) -> str:
    """Return a `table` environment with caption and label; a table wider than the page is shrunk to it."""
    said = [table.more_rows, table.counts, *table.notes, *table.definitions]
    small = escape(" ".join(said).strip())
    foot = [f"\\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {small}\\end{{minipage}}"]
    body = [] if table.empty else _tabular(table)
    lines = [
        "% \\usepackage[T1]{fontenc}",
        "% \\usepackage{booktabs,graphicx}",
        "\\begin{table}[htbp]",
        "\\centering",
        f"\\caption{{{escape(f'{table.title}. {table.conclusion}')}}}",
        f"\\label{{tab:{table.key}}}",
        *body,
        *foot,
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tabular(table: Grid) -> list[str]:
    rows = table.cells()
    numeric = numeric_columns(rows)
    heads = [f"{{{escape(column.heading)}}}" for column in table.columns]
    lines = ["\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"]
    lines += [f"\\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}", "\\toprule"]
    lines += [" & ".join(heads) + " \\\\", "\\midrule"]
    # The braces keep a cell that begins with a bracket from being read as an option of the line before.
    lines += [" & ".join(f"{{{escape(each.text)}}}" for each in row) + " \\\\" for row in rows]
    return [*lines, "\\bottomrule", "\\end{tabular}}"]
