"""Texts of unknown origin, made harmless for the place where they are shown: terminal, spreadsheet, Markdown. Pure.

Reasons of failures, names, paths and host names come from records and folders, which may be a stranger's.
"""

import re

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, colours it, renames its window or reverses letters; not tab and newline."""
_PLACE = r"(?:^|[,;\t\r\n]) {0,8}"
"""Where a spreadsheet takes up a new cell, whatever its locale separates cells by."""
_BEGINNING = r"[=+\-@\uff0b\uff0d\uff1d\uff20]"
_FORMULA = re.compile(rf"(^)('*(?=[\t\r]))|({_PLACE})('*{_BEGINNING})")
_QUOTED_FORMULA = re.compile(rf"(^)'('*(?=[\t\r]))|({_PLACE})'('*{_BEGINNING})")
_HTML = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=[(\[:])")


def printable(text: str) -> str:
    """Return the text with a visible mark in place of every character that could command a terminal."""
    return _COMMANDS.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Return the text without line breaks: else a reason could look like further lines of ours."""
    return " ".join(text.split())


def csv_cell(text: str) -> str:
    """Return the text of a CSV cell, with an apostrophe before what a spreadsheet would compute; numbers stay.

    `from_csv_cell` returns what was given.
    """
    return text if _is_number(text) else _FORMULA.sub(r"\1\3'\2\4", text)


def from_csv_cell(text: str) -> str:
    """Return what `csv_cell` was given."""
    return text if _is_number(text) else _QUOTED_FORMULA.sub(r"\1\2\3\4", text)


def markdown(text: str) -> str:
    """Return the text without HTML tags and links: Markdown shows both as they were written."""
    return _LINK.sub(r"]\\", _HTML.sub("&lt;", text))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text
