"""Text for people: how numbers, durations and lists look, and what others wrote, made harmless to show. Pure.

Reasons of failures, names, paths and host names come from records and folders, which may be a stranger's.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

MISSING = "-"
"""Stands for a number that is not known."""


def number(value: float | None, form: str = ",.1f") -> str:
    """Return a number in a format of Python's, or `MISSING`."""
    return MISSING if value is None else format(value, form)


DIGITS = 3
"""Significant digits that people see; CSVs have all."""
MOST_DECIMALS = 8
NOTHING, TINY, HUGE = 1e-9, 1e-5, 1e15
"""A number below the first is 0 but for rounding: no quantity of a table is that small. One below the second, or not
below the third, is written with an exponent."""


def decimals_of(value: float) -> int:
    """Return the decimals that show the significant digits of `value`; 0 for large numbers, as for 1.00 at 0."""
    if not math.isfinite(value):
        return 0
    if abs(value) < NOTHING:
        return DIGITS - 1
    # Of the rounded value: 0.9996 to three digits is 1.00.
    exponent = int(f"{abs(value):.{DIGITS - 1}e}".split("e")[1])
    return min(max(DIGITS - 1 - exponent, 0), MOST_DECIMALS)


def fixed(value: float, decimals: int) -> str:
    """Return `value` with so many decimals and commas between thousands; no minus before a zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:,.{decimals}f}" if abs(value) < HUGE else f"{value:.{DIGITS - 1}e}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def significant(value: float) -> str:
    """Return a number to its significant digits: whole digits in full, tiny and huge numbers with an exponent."""
    if math.isnan(value):
        return "unknown"
    if abs(value) < NOTHING:
        return "0"
    return f"{value:.{DIGITS - 1}e}" if abs(value) < TINY else fixed(value, decimals_of(value))


def count(number: float, one: str, many: str = "") -> str:
    """Return `1 runner`, `2,000 runners`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """Return a duration: `45 s`, `12 min`, `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def cpu_hours(hours: float) -> str:
    """Return CPU-hours with two significant digits; from 1 on with one decimal: `12.3 CPU-hours`, `0.034 CPU-hours`."""
    return f"{hours:,.1f} CPU-hours" if hours >= 0.995 else f"{hours:.2g} CPU-hours"


def gigabytes(megabytes: float) -> str:
    """Return memory: `1.5 GB`."""
    return f"{megabytes / 1024:.1f} GB"


def listed(items: Iterable[object]) -> str:
    """Return `1, 2 and 4`."""
    *first, last = [*map(str, items)] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def spans(numbers: Sequence[int]) -> str:
    """Return ascending whole numbers with runs shortened: `1-3, 7`; `none` where there are none."""
    runs = [[each for _, each in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


# --- what others wrote: for a terminal, a spreadsheet, Markdown, a log -----------------------------------------------

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, colours it, renames its window or reverses letters; not tab and newline."""
_PLACE = r"(?:^|[,;\t\r\n]) {0,8}"
"""Where a spreadsheet takes up a new cell, whatever its locale separates cells by."""
_BEGINNING = r"[=+\-@\uff0b\uff0d\uff1d\uff20]"
_FORMULA = re.compile(rf"(^)('*(?=[\t\r]))|({_PLACE})('*{_BEGINNING})")
_HTML = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=[(\[:])")
_URL = re.compile(r"://(?=[^/])[^\s'\"<>]++")
"""What follows the scheme of a URL that names a host."""
_QUOTED = r"\"(?:[^\"\\]|\\.)*+\"|\"[^\"]*+\"|'(?:[^']|'')*+'|'[^']*+'"
"""A text in quotes, as a shell, JSON or YAML has it."""
_TELLING = (
    r"(?=[\w.-]*?(?:(?<!by)(?<!com)pass(?!es|eng|ive)|pwd|secret|token(?!i[sz])|credential|signature|"
    r"(?:api|access|account|private)[_-]?key|(?<=[?&])sig(?==|%3D)))"
)
"""Before a name that speaks of a secret, unlike `tokenizer`, `bypass` or `passengers`; `sig` signs access to Azure."""
_SECRET_VALUE = re.compile(
    rf"(?<![\w.-]){_TELLING}([\w.-]++(?:['\"]?\s{{0,3}}(?:=|%3D)\s{{0,3}}|['\"]\s{{0,3}}:\s{{0,3}}))"
    rf"(?:\{{[^{{}}]{{1,200}}\}}|{_QUOTED}|(?:(?!%3B|%26)[^&;\s'\"])+)",
    re.IGNORECASE,
)
"""Such a name, and its value, which may be in braces (ODBC) or in quotes."""
_SECRET_ENTRY = re.compile(
    rf"((?:(?<=\{{)|(?<=[{{,] )){_TELLING}[\w.-]++:[ \t]++)"
    rf"(?:{_QUOTED}|\[[^\[\]\n]*+\]|(?!\d{{1,3}}[ \t,}}])[^\s,{{}}'\"][^,{{}}\n]*)",
    re.IGNORECASE,
)
"""The same in a YAML mapping on one line, as `--set` takes it; a number of up to three digits is no secret."""
_SECRET_OPTION = re.compile(
    rf"(?<![\w-])(--?{_TELLING}[\w-]++[ \t]++)(?:{_QUOTED}|(?!-|\d{{1,5}}(?!\S))[^\s'\"]+)", re.IGNORECASE
)
"""An option with such a name, and the value behind it; a number of up to five digits is none (`--max-tokens 4096`)."""
_HEADER = re.compile(r"\b(Bearer|Basic) +(?=[\w.~+/-]*[0-9=])[\w.~+/=-]{12,}+")
_SECRET_LINE = re.compile(
    r"(^[ \t]{0,8}(?:(?:set-)?cookie|(?:proxy-)?authorization|x-[\w-]{0,20}(?:key|token)|password|passwd|pwd|secret|"
    r"token)[ \t]{0,3}:[ \t]{0,3})[^\s{\[].*",
    re.IGNORECASE | re.MULTILINE,
)
"""A header of HTTP, or a line of YAML, that is a secret whatever its value."""


def printable(text: str) -> str:
    """Return the text with a visible mark in place of every character that could command a terminal."""
    return _COMMANDS.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, most: int | None = None) -> str:
    """Return the text without line breaks: else a reason could look like further lines of ours.

    One of more than `most` characters ends behind a word, with dots.
    """
    line = " ".join(text.split())
    if most is None or len(line) <= most:
        return line
    return f"{line[:most].rpartition(' ')[0] or line[:most]} …"


def csv_cell(text: str) -> str:
    """Return the text of a CSV cell, with an apostrophe before what a spreadsheet would compute; numbers stay."""
    return text if _is_number(text) else _FORMULA.sub(r"\1\3'\2\4", text)


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

    Masked are what stands before the last @ of a URL (a password may hold what should have been written as %2F or
    %40); the value of every name that speaks of a secret, in queries, ODBC strings, assignments, YAML mappings on one
    line and command lines; and the credentials of an HTTP header. Takes a time proportional to the length of the text.
    """
    text = _URL.sub(_without_user, text)
    for secret in (_SECRET_OPTION, _SECRET_ENTRY, _SECRET_VALUE, _SECRET_LINE):
        text = secret.sub(r"\1***", text)
    return _HEADER.sub(r"\1 ***", text)


def mask_arguments(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config_args`, `config_kwargs` and `script` of a spec, as JSON values, with `***` for each secret.

    A script may have put a secret into its configuration (`env_config`). What the spec lacks is left out.
    """
    masked = {name: _masked(name, spec[name]) for name in ("config_args", "config_kwargs") if name in spec}
    if isinstance(script := spec.get("script"), Mapping):
        masked["script"] = {**script, "settings": _masked("settings", script.get("settings"))}
    return masked


def _masked(name: str, value: Any) -> Any:
    """Return a value without the texts that it, or a name above them, tells to be secret."""
    if isinstance(value, Mapping):
        return {key: _masked(f"{name}.{key}", each) for key, each in value.items()}
    if isinstance(value, list):
        return [_masked(name, each) for each in value]
    if isinstance(value, str):
        return "***" if value and _SECRET_VALUE.match(f"{name}=x") else mask_credentials(value)
    return value


def _without_user(url: re.Match[str]) -> str:
    _, at, host = url[0].rpartition("@")
    return f"://***@{host}" if at else url[0]
