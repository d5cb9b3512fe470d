"""Texts made harmless for the place where they are shown: terminal, spreadsheet, Markdown, a log. Pure.

Reasons of failures, names, paths and host names come from records and folders, which may be a stranger's.
"""

import re
from collections.abc import Mapping
from typing import Any

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, colours it, renames its window or reverses letters; not tab and newline."""
_PLACE = r"(?:^|[,;\t\r\n]) {0,8}"
"""Where a spreadsheet takes up a new cell, whatever its locale separates cells by."""
_BEGINNING = r"[=+\-@\uff0b\uff0d\uff1d\uff20]"
_FORMULA = re.compile(rf"(^)('*(?=[\t\r]))|({_PLACE})('*{_BEGINNING})")
_QUOTED_FORMULA = re.compile(rf"(^)'('*(?=[\t\r]))|({_PLACE})'('*{_BEGINNING})")
_HTML = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=[(\[:])")
_URL = re.compile(r"://(?=[^/])[^\s'\"<>]++")
"""What follows the scheme of a URL that names a host."""
_PLAIN_HOST = re.compile(r"(?:[\w.-]+|\[[\w:.%]+\])?(?::\d+)?(?=[/?#])")
_OF_A_DATABASE = re.compile(r"(?:postgres\w*|mysql|mariadb|mssql|oracle)(?:\+\w+)?$", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"(?<![\w.-])(?=[\w.-]*?(?:pass|pwd|secret|token|credential|signature|api_?key|access_?key|private_?key))"
    r"([\w.-]++(?:['\"]?\s{0,3}(?:=|%3D)\s{0,3}|['\"]\s{0,3}:\s{0,3}))"
    r"(?:\{[^{}]{1,200}\}|\"[^\"]{0,200}\"|'[^']{0,200}'|(?:(?!%3B|%26)[^&;\s'\"])+)",
    re.IGNORECASE,
)
"""A name that speaks of a secret, and its value, which may be in braces (ODBC) or in quotes."""
_SECRET_OPTION = re.compile(
    r"(?<![\w-])(--?(?=[\w-]*?(?:(?<=[-_])pass|passwd|password|passphrase|pwd|secret|token|credentials?|api[_-]?key|"
    r"access[_-]?key|private[_-]?key)[ \t])[\w-]++[ \t]++)"
    r"(?:\"[^\"]{0,200}\"|'[^']{0,200}'|(?!-|\d{1,3}(?!\S))[^\s'\"]+)",
    re.IGNORECASE,
)
"""An option whose name ends in a word for a secret, and the value behind it, in a command line.

A number of up to three digits is none (`--pad-token 0`).
"""
_HEADER = re.compile(r"\b(Bearer|Basic) +(?=[\w.~+/-]*[0-9=])[\w.~+/=-]{12,}+")


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


def mask_credentials(text: str) -> str:
    """Return `text` without passwords and tokens: `***` stands for each.

    Masked are what stands before the last @ of a URL (a password may hold what should have been written as %2F or %40;
    only after a mere host and port, an @ is one of the path); the value of every name that speaks of a secret, in
    queries, ODBC strings, assignments and command lines; and the credentials of an HTTP header. Takes a time
    proportional to the length of the text.
    """
    text = _SECRET_OPTION.sub(r"\1***", _URL.sub(_without_user, text))
    return _HEADER.sub(r"\1 ***", _SECRET_VALUE.sub(r"\1***", text))


def mask_arguments(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a study hands to a script, `config_args` and `config_kwargs`, with `***` for each secret.

    Args:
        spec: JSON values of a study's spec; what it lacks is left out.
    """
    masked: dict[str, Any] = {}
    if "config_args" in spec:
        masked["config_args"] = mask_credentials(spec["config_args"])
    if "config_kwargs" in spec:
        given = spec["config_kwargs"]
        secret = {each for each, value in given.items() if isinstance(value, str) and _is_secret(f"{each}={value}")}
        masked["config_kwargs"] = {name: "***" if name in secret else value for name, value in given.items()}
    return masked


def _is_secret(assignment: str) -> bool:
    return mask_credentials(assignment) != assignment


def _without_user(url: re.Match[str]) -> str:
    before, at, host = url[0].rpartition("@")
    scheme = url.string[max(url.start() - 40, 0) : url.start()]
    if not at or (_PLAIN_HOST.match(before, 3) and not _OF_A_DATABASE.search(scheme)):
        return url[0]
    return f"://***@{host}"
