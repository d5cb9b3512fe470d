"""The layers of the program, by its imports: a package imports what stands below it, and nothing in a circle."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LAYERS: tuple[tuple[str, ...], ...] = (
    ("harmless", "text", "metrics"),
    ("errors", "engine"),
    ("console", "missing", "statistics", "ray_private", "jax_private"),
    ("space",),
    ("machine",),
    ("records",),
    ("planning",),
    ("exporting",),
    ("designs",),
    ("mirrors", "trial"),
    ("adopted",),
    ("driver",),
    ("analysis",),
    ("options",),
    ("evaluating", "doctor", "launch"),
    ("cli",),
    ("__main__", "__init__"),
)
"""From the bottom; those of one layer do not import each other. `study.x` is called x."""

OF_ANALYSIS = {
    "statistics",
    "space",
    "planning",
    "records",
    "metrics",
    "engine",
    "errors",
    "harmless",
    "text",
    "mirrors",
}
"""What `analysis` may import of `study`."""

STILL: Mapping[tuple[str, str], str] = {
    ("analysis.estimates.certificate", "study.designs.holdup.certificate"): "analysis",
}
"""Imports that break a rule -> the package that will end them; an entry that breaks none any more must go."""


def modules() -> dict[str, Path]:
    """Return dotted name -> file, of every module of the program."""
    files = [*ROOT.glob("study/**/*.py"), *ROOT.glob("analysis/**/*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imports(module: str, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the program that a module imports, now or when it is used; not for types alone."""
    tree = ast.parse(known[module].read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def package(module: str) -> str:
    """Return the package of a module, as `LAYERS` calls it."""
    first, _, rest = module.partition(".")
    return "analysis" if first == "analysis" else rest.partition(".")[0] or "__init__"


def arrows() -> set[tuple[str, str]]:
    """Return every import as a pair of modules."""
    known = modules()
    return {(module, other) for module in known for other in imports(module, known) if other != module}


def circles(arrows: set[tuple[str, str]]) -> list[list[str]]:
    """Return the groups that import each other, directly or through others."""
    below: dict[str, set[str]] = {}
    for upper, lower in arrows:
        below.setdefault(upper, set()).add(lower)

    def reached(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            for lower in below.get(left.pop(), ()):
                if lower not in found:
                    found.add(lower)
                    left.append(lower)
        return found

    reach = {each: reached(each) for each in below}
    groups = {tuple(sorted(other for other in reach[each] if each in reach.get(other, ()))) for each in reach}
    return sorted(list(group) for group in groups if group)


def breaks_a_rule(upper: str, lower: str) -> bool:
    """Return whether one module must not import another."""
    above, below = package(upper), package(lower)
    if above == below:
        return False
    if "analysis" in (above, below):
        return below not in OF_ANALYSIS if above == "analysis" else above not in ("cli", "evaluating", "__init__")
    floor = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    return floor[below] >= floor[above]


def test_a_package_imports_only_what_stands_below_it() -> None:
    broken = {pair for pair in arrows() if breaks_a_rule(*pair)}
    assert broken == STILL.keys()


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(arrows()) == []


def test_no_packages_import_each_other_in_a_circle() -> None:
    between = {(package(upper), package(lower)) for upper, lower in arrows() - STILL.keys()}
    assert circles({(upper, lower) for upper, lower in between if upper != lower}) == []


def test_a_circle_is_seen() -> None:
    assert circles({("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")}) == [["a", "b", "c"]]
