"""An error that says where it arose says what must hold and what to do: read from the sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_A_FIX = {
    ("study/trial/run.py", "rule"): "`got` is what a runner said, which ends with its own fix",
}
"""(file, rule) -> why this error has none."""


def errors() -> Iterator[tuple[str, ast.Call, dict[str, ast.expr]]]:
    """Yield file, call and named arguments of each error or fault that names a place."""
    for file in sorted([*(ROOT / "study").rglob("*.py"), *(ROOT / "analysis").rglob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                given = {each.arg: each.value for each in node.keywords if each.arg}
                name = ast.unparse(node.func)
                if "where" in given and (given.keys() & {"rule", "got"} or name.endswith(("Error", "Fault"))):
                    yield str(file.relative_to(ROOT)), node, given


def is_said(value: ast.expr | None) -> bool:
    """Return whether an argument is given, and is no empty text."""
    return value is not None and not (isinstance(value, ast.Constant) and not str(value.value).strip())


def test_every_error_that_names_a_place_has_a_rule_and_a_fix() -> None:
    found, excused, seen = set(), set(), [*errors()]
    assert len(seen) > 150, "the sources are read"
    for file, call, given in seen:
        if ast.unparse(call.func) in ("replace", "in_one_line") or any(each.arg is None for each in call.keywords):
            continue  # the parts of another error
        rule = given.get("rule")
        excuse = (file, str(rule.value) if isinstance(rule, ast.Constant) else ast.unparse(rule or call))
        if is_said(rule) and is_said(given.get("fix")):
            continue
        if excuse in WITHOUT_A_FIX and is_said(rule):
            excused.add(excuse)
        else:
            found.add(f"{file}:{call.lineno}: {ast.unparse(call)}")
    assert found == set()
    assert excused == WITHOUT_A_FIX.keys()
