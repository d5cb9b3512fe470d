"""An error that says where it arose says what must hold and what to do: read from the sources."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENDS_WITH_A_FIX = {"study/trial/run.py"}
"""Files with one error without a fix of its own: `got` is what a runner said, which ends with its own."""


def is_said(value: ast.expr | None) -> bool:
    """Return whether an argument is given, and is no empty text."""
    return value is not None and not (isinstance(value, ast.Constant) and not str(value.value).strip())


def test_every_error_that_names_a_place_has_a_rule_and_a_fix() -> None:
    seen, wrong, excused = 0, [], []
    for file in sorted([*(ROOT / "study").rglob("*.py"), *(ROOT / "analysis").rglob("*.py")]):
        place = str(file.relative_to(ROOT))
        for node in ast.walk(ast.parse(file.read_text())):
            given = {each.arg: each.value for each in node.keywords} if isinstance(node, ast.Call) else {}
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if "where" not in given or None in given or name == "replace":
                continue  # the parts of another error
            if given.keys() & {"rule", "got"} or name.endswith(("Error", "Fault")):
                seen += 1
                if not (is_said(given.get("rule")) and is_said(given.get("fix"))):
                    excusable = place in ENDS_WITH_A_FIX and "got" in given
                    (excused if excusable else wrong).append(f"{place}:{ast.unparse(node)}")
    assert seen > 150, "the sources are read"
    assert wrong == []
    assert len(excused) == len(ENDS_WITH_A_FIX)
