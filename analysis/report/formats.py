"""The formats of a report. Pure, so that the command line can name them without loading anything."""

from typing import Literal, get_args

from study.errors import AnalysisError

Format = Literal["html", "md", "csv", "tex"]


def parse_formats(text: str) -> tuple[Format, ...]:
    """Return the formats named in "html,md", each once, in the order of `Format`.

    Raises:
        AnalysisError: One is unknown, or none is named.
    """
    known: tuple[Format, ...] = get_args(Format)
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if unknown := [word for word in words if word not in known]:
        raise AnalysisError(
            where="--format",
            rule=f"must be some of {', '.join(known)}",
            got=f"{unknown[0]!r}",
            fix="Name these.",
            code="unknown-report-format",
        )
    if not words:
        raise AnalysisError(
            where="--format",
            rule=f"must be some of {', '.join(known)}",
            got="none",
            fix="Name one, or drop it.",
            code="unknown-report-format",
        )
    return tuple(each for each in known if each in words)
