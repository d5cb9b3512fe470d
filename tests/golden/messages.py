"""Every message of the project, found in its source: one golden file shows what people can read, and each change of it.

A message is a call that is given a `code`: an error of `study.errors`, a `Fault`, or a function that makes one of its
keyword arguments. Parts that are only known at run time stand as `{expression}`.
"""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from study import errors

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).parent / "messages.txt"
ERRORS = frozenset(
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.StudyError)
)
FAULTS = frozenset({"Fault", "of", "Unusable"})
"""What makes a `Fault`: itself, `SpaceError.of`, `Unusable`."""
PARTS = ("where", "rule", "got", "fix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as its call in the source makes it.

    Attributes:
        file: File below the repository, with `/`.
        function: Function or method that makes it, `Class.method`; empty in a module.
        line: Line of the call.
        maker: What is called: `AnalysisError`, `Fault`.
        parts: Part -> its template; parts that are not given are missing.
        code: Its code; empty where there is none.
        positional: Whether an error is given arguments without a name.
    """

    file: str
    function: str
    line: int
    maker: str
    parts: dict[str, str]
    code: str
    positional: bool

    @property
    def text(self) -> str:
        """The code, what is called, where in the source, and the parts, for the golden file."""
        parts = [f"    {name}: {' '.join(self.parts[name].split())}" for name in PARTS if name in self.parts]
        place = f"{self.file}: {self.function}" if self.function else self.file
        return "\n".join([f"{self.code} ({self.maker}), {place}", *parts])


@functools.cache
def messages() -> list[Message]:
    """Return the messages of `study` and `analysis`, by code, file and line."""
    found = [
        message
        for package in ("study", "analysis")
        for path in sorted((ROOT / package).rglob("*.py"))
        for message in _of_file(path)
    ]
    return sorted(found, key=lambda message: (message.code, message.file, message.line))


def golden_text() -> str:
    """Return the text of the golden file; lines of source are left out, since they change with every edit."""
    return "\n".join(message.text for message in messages()) + "\n"


def _of_file(path: Path) -> Iterator[Message]:
    for name, scope in _scopes(ast.parse(path.read_text())):
        previous = 0
        nodes = sorted(_own_nodes(scope), key=lambda node: getattr(node, "lineno", 0))
        for node in nodes:
            if isinstance(node, ast.Call) and {"code", "rule", "fix"} & {keyword.arg for keyword in node.keywords}:
                message = _message(node, _assigned(nodes, previous, node.lineno), path, name)
                if message is not None:
                    previous = node.lineno
                    yield message


def _scopes(node: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield a module and the functions in it, with their names: `Class.method`."""
    if not isinstance(node, ast.ClassDef):
        yield outer, node
    for each in _own_nodes(node):
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _scopes(each, f"{outer}.{each.name}" if outer else each.name)


def _message(call: ast.Call, names: dict[str, str], path: Path, function: str) -> Message | None:
    maker = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    maker = "Fault" if maker in FAULTS and "fix" in given else maker
    is_message = maker in ERRORS | {"Fault"} or {"code", "fix"} <= given.keys()
    if not is_message or (maker == "SpaceError" and call.args) or any(each.arg is None for each in call.keywords):
        return None
    code = given.get("code")
    if isinstance(code, ast.Attribute) or (isinstance(code, ast.Name) and code.id not in names):
        return None  # the parts of another message are passed on
    parts = {name: _template(value, names) for name, value in given.items()}
    return Message(
        file=path.relative_to(ROOT).as_posix(),
        function=function,
        line=call.lineno,
        maker=maker,
        parts={name: parts[name] for name in PARTS if name in parts},
        code=parts.get("code", ""),
        positional=bool(call.args) and maker in ERRORS,
    )


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, a class or a module, without those of the functions and classes in it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _assigned(nodes: list[ast.AST], after: int, before: int) -> dict[str, str]:
    """Return the texts that names stand for on line `before`.

    Several assignments between the lines `after`, of the previous message, and `before` are joined by ` | `; where
    there is none, the last one above them counts.
    """
    near: dict[str, list[str]] = {}
    far: dict[str, tuple[int, str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and node.lineno <= before:
            for target in node.targets:
                for name, value in zip(_items(target), _items(node.value), strict=False):
                    if isinstance(name, ast.Name):
                        text = _template(value, {})
                        far[name.id] = max(far.get(name.id, (0, "")), (node.lineno, text))
                        if node.lineno > after:
                            near.setdefault(name.id, []).append(text)
    return {name: " | ".join(dict.fromkeys(near[name])) if name in near else text for name, (_, text) in far.items()}


def _items(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _template(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"  # type: ignore[attr-defined]
            for part in node.values
        )
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.IfExp):
        return f"{_template(node.body, names)} | {_template(node.orelse, names)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, names) + _template(node.right, names)
    return f"{{{ast.unparse(node)}}}"
