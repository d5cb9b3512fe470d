"""One place prints: no other file of the program writes to the terminal."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ALLOWED = {
    "study/console.py": "the place",
    "study/driver/signals.py": "runs inside a signal handler, where rich's locks may be held",
    "study/launch/node.py": "standard output is its protocol",
    "study/__main__.py": "says that the packages are missing, of which the console is one",
}
"""File -> why it writes by itself."""


def writes(file):
    """Return whether a file prints, has a console of its own, or writes to a standard stream."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("print", "typer.echo", "click.echo", "Console", "SteadyConsole", "rich.print"):
            return True
        if called.startswith(("sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer", "sys.stderr.buffer")):
            return True
    return False


def test_nothing_else_prints():
    files = [*ROOT.glob("study/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "run_study.py"]
    found = {file.relative_to(ROOT).as_posix() for file in files if writes(file)}
    assert found == set(ALLOWED)
