"""The start of the command line: `python -m study`. The standard library alone: nothing else may be installed."""

import io
import os
import sys
from typing import NoReturn

from study.errors import ExitCode, Fault


def main(command: str = "") -> NoReturn:
    """Run the command line, or one of its commands; where a package is not installed, say in one line which."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: PTH123, SIM115 (a device; closed by the shell)
        if isinstance(stream, io.TextIOWrapper):  # help and names may have letters that the terminal has not
            stream.reconfigure(errors="replace")
        setattr(sys, name, stream)
    try:
        from study.cli.commands import main as guarded

        guarded(command)
    except ModuleNotFoundError as error:
        if (error.name or "study").partition(".")[0] in ("study", "analysis"):
            raise
        fix = "Run `pip install -e .` in the project's folder, or activate the environment that has them."
        rule, got = "must have the packages of this project", f"no '{error.name}'"
        sys.stderr.write(f"{Fault(where=sys.executable, rule=rule, got=got, fix=fix)}\n")
        sys.exit(ExitCode.MISTAKE)


if __name__ == "__main__":
    main()
