"""The files that a launch writes, from the templates beside this file. Imports no engine.

A value that is missing is an error, and a value is always written as a quoted string, so that no name of a host, a file
or an image can change the meaning of a file.
"""

import contextlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study.errors import LaunchError
from study.records.files import write_atomically


class WrittenFiles:
    """The files of a launch, for nobody else to read."""

    def __init__(self, folder: Path, texts: Mapping[str, str]) -> None:
        """Write them.

        Args:
            folder: Made where it is missing, with those above it.
            texts: Name -> content.

        Raises:
            LaunchError: The folder cannot be written; it is as it was before.
        """
        self._before: dict[Path, str | None] = {}
        self._made: list[Path] = []
        files = [folder / name for name in texts]
        try:
            self._made = [place for place in (folder, *folder.parents) if not place.exists()]
            self._before = {file: file.read_text() if file.exists() else None for file in files}
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in files:
                write_atomically(file, texts[file.name])
        except (OSError, UnicodeDecodeError) as error:
            self.undo()
            reason = error.strerror if isinstance(error, OSError) else error
            raise LaunchError(
                where=str(folder), rule="must be writable", got=reason, fix="Choose another --out."
            ) from error

    def undo(self) -> None:
        """Put back what was there before, and remove the folders that were made."""
        for file, text in self._before.items():
            with contextlib.suppress(OSError):
                if text is None:
                    file.unlink()
                else:
                    write_atomically(file, text)
        for place in self._made:
            with contextlib.suppress(OSError):  # another program has put something there
                place.rmdir()


def fill(template: str, **values: Any) -> str:
    """Return a template with its values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("study.launch", "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # YAML and scripts, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"json": json.dumps, "tojson": quoted, "sh": lambda value: shlex.quote(str(value))}
    return environment.get_template(template).render(values)


def quoted(value: Any) -> str:
    r"""Return a value as JSON that YAML reads as the same.

    JSON is YAML, except for characters that YAML 1.1 folds or refuses, and for those that JSON writes as two
    surrogates: all but printable ASCII becomes `\uXXXX` or `\UXXXXXXXX`, which YAML reads.
    """

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

    return re.sub(r"[^ -~]", escape, json.dumps(value, ensure_ascii=False))
