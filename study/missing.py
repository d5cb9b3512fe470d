"""What a command says where a package of this project is not installed. Standard library: nothing else may be there."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from study.errors import ExitCode, in_one_line


@contextmanager
def told_to_install() -> Iterator[None]:
    """Say in one line which package is not installed, and end the command; modules of our own are not meant."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "study").partition(".")[0] in ("study", "analysis"):
            raise
        fix = "Run `pip install -e .` in the project's folder, or activate the environment that has them."
        rule, got = "must have the packages of this project", f"no '{error.name}'"
        sys.stderr.write(f"{in_one_line(where=sys.executable, rule=rule, got=got, fix=fix)}\n")
        sys.exit(ExitCode.MISTAKE)
