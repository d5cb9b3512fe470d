"""Words: the glossary of `study/README.md` is used, and words of a private dialect are not."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[2] / "study"
MOST_WORDS = 15
BANNED = {
    r"laws?": "rule",
    r"(a|the|one|every|each|no|first|second|last|two|its) looks?": "evaluation, or observation",
    r"told": "reported",
    r"folded": "aggregated",
    r"company": "trials at its side",
    r"legs?": "name what it is",
    r"anchors?": "baseline, base cell, arm or reference",
}
"""Word of our own dialect -> what to write."""


def words_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment and docstring, without what stands in backquotes."""
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type == tokenize.COMMENT or docstring:
            yield token.start[0], re.sub(r"`[^`]*`", "", token.string)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.type


def glossary() -> list[str]:
    table = (STUDY / "README.md").read_text().split("## Glossary")[1]
    return [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("|")][2:]


@pytest.mark.parametrize("package", sorted({path.relative_to(STUDY).parts[0] for path in STUDY.rglob("*.py")}))
def test_comments_and_docstrings_have_the_words_of_the_field(package: str) -> None:
    files = [STUDY / package] if package.endswith(".py") else (STUDY / package).rglob("*.py")
    found = [
        f"{path.relative_to(STUDY)}:{line}: {match[0]!r} -> {instead}"
        for path in files
        for line, text in words_of(path)
        for banned, instead in BANNED.items()
        for match in re.finditer(rf"\b{banned}\b", text, flags=re.IGNORECASE)
    ]
    assert found == []


def test_the_glossary_is_short_and_every_word_of_it_is_used() -> None:
    texts = " ".join(path.read_text().lower() for path in STUDY.rglob("*.py"))
    assert len(glossary()) <= MOST_WORDS
    assert [word for word in glossary() if word.replace(" ", "") not in texts.replace("_", "").replace("-", "")] == []


HOPS = re.findall(r"`([\w/]+\.py):(\w+)`", (STUDY / "README.md").read_text())


@pytest.mark.parametrize(("file", "function"), HOPS)
def test_the_page_names_functions_that_exist(file: str, function: str) -> None:
    assert re.search(rf"^ *(async )?def {function}\(", (STUDY / file).read_text(), flags=re.MULTILINE)
