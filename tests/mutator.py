"""Puts small wrong changes into a package, one at a time, and counts how many of them some test notices.

    python -m tests.mutator study/planning.py --mutants 20 --tests tests/unit/test_planning.py

A mutant changes one expression of the package: a comparison, `and` or `or`, a condition, an operator of arithmetic, a
number or a truth value. Which ones are tried follows from `--seed` alone as long as the package stays as it is, so that
two sets of tests meet the same mutants. The tests must pass without a mutant, else the count says nothing: that is
tried first. Survivors are listed by place. Each mutant runs in a copy of the checkout, which is removed.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600.0
PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
)
SWAPS: dict[type[ast.AST], type[ast.AST]] = {one: two for pair in PAIRS for one, two in (pair, pair[::-1])}
SWAPS[ast.FloorDiv] = ast.Mult
CONDITIONAL = (ast.If, ast.IfExp, ast.While)
ANNOTATED = ("annotation", "returns", "decorator_list", "type_params")
"""Parts of the tree that decide nothing at run time, or that no test should notice."""


@dataclass(frozen=True)
class Mutant:
    """One expression, replaced by a wrong one."""

    path: Path
    node: ast.expr
    text: str

    def source(self) -> str:
        """Return the file with the change; columns of Python's tree count bytes."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        start = sum(map(len, lines[: self.node.lineno - 1])) + self.node.col_offset
        end = sum(map(len, lines[: (self.node.end_lineno or 0) - 1])) + (self.node.end_col_offset or 0)
        whole = b"".join(lines)
        return (whole[:start] + f"({self.text})".encode() + whole[end:]).decode()


def wrong(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the wrong forms of an expression."""
    match node:
        case ast.Compare(left=left, ops=[operator, *others], comparators=comparators) if type(operator) in SWAPS:
            yield ast.Compare(left, [SWAPS[type(operator)](), *others], comparators)  # type: ignore[list-item]
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(SWAPS[type(operator)](), values)  # type: ignore[arg-type]
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(operator)](), right)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a tree, without annotations, decorators and the parts of f-strings."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name in ANNOTATED or not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.MatchValue):
                continue
            if isinstance(child, ast.expr):
                yield child
            yield from expressions(child)


def mutants(package: Path) -> list[Mutant]:
    """Return every mutant of a package, in a fixed order."""
    found = []
    for path in sorted(package.rglob("*.py")) if package.is_dir() else [package]:
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, CONDITIONAL) and "TYPE_CHECKING" not in ast.unparse(node.test):
                found.append(Mutant(path, node.test, f"not ({ast.unparse(node.test)})"))
        found += [Mutant(path, node, ast.unparse(form)) for node in expressions(tree) for form in wrong(node)]
    return found


def noticed_by(tests: list[str], checkout: Path) -> str:
    """Return the first test that fails, nothing where all pass."""
    command = ["pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    variables = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=checkout, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "no end"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if done.returncode == 0 else lines[0][:120] if lines else f"exit code {done.returncode}"


def main() -> None:
    """Try some mutants of a package and print which survive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="A folder or file of the checkout, such as study/planning.py.")
    parser.add_argument("--mutants", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", default="tests/unit", help="Files and folders for pytest, with spaces.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout, tests = Path(folder) / "checkout", asked.tests.split()
        shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".git", "*cache*", "studies", "mlruns"))
        if failure := noticed_by(tests, checkout):
            parser.exit(1, f"These tests fail without any mutant: {failure}\n")
        every = mutants(checkout / asked.package)
        tried = random.Random(asked.seed).sample(every, min(asked.mutants, len(every)))
        caught = 0
        for mutant in tried:
            before = mutant.path.read_text()
            mutant.path.write_text(mutant.source())
            by = noticed_by(tests, checkout)
            mutant.path.write_text(before)
            caught += bool(by)
            place = f"{mutant.path.relative_to(checkout)}:{mutant.node.lineno}"
            print(f"{'caught' if by else 'SURVIVES':9}{place}: {mutant.text}  [{by}]", flush=True)
        print(f"{caught} of {len(tried)} caught, of {len(every)} mutants of {asked.package}")


if __name__ == "__main__":
    main()
