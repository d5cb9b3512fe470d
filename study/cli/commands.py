"""All commands, in one table. A command's module is imported when it is called, so that `--help` is fast.

A person's mistake ends here: a `StudyError` that nobody else took, or a full disk, is printed without a traceback.
"""

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from study.console import say, terminal, write
from study.errors import ExitCode, StudyError, in_one_line
from study.options import Version

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("study.cli.run", "Run a study, or continue one."),
    "status": ("study.cli.status", "Print where a study stands, or list the studies of a folder."),
    "report": ("study.cli.report", "Write the report of a study: one page, tables and figures."),
    "evaluate": ("study.cli.evaluate", "Play a recorded policy, or a random one; film it."),
    "certificate": ("study.cli.results", "Certificate of a hold-up study: write FOLDER, verify FOLDER."),
    "export": ("study.cli.results", "Print a trial's setting as a plain RLlib script."),
    "repeat": ("study.cli.results", "Train the setting of a trial again on new seeds."),
    "launch": ("study.launch.commands", "Run a study as a job: SLURM, OAR, ssh."),
    "doctor": ("study.cli.doctor", "Check this machine, or a Ray cluster, before a study."),
    "sync": ("study.cli.sync", "Bring MLflow, Optuna's storage and TensorBoard up to date."),
    "pack": ("study.cli.sync", "Copy a study for publication."),
    "schema": ("study.cli.results", "Print every field of a space file."),
}
"""Name -> (module with it in its `app`, what the list of commands says of it)."""


def load(name: str) -> Any:
    """Import a command's module and return the command, or the group of that name."""
    found = get_command(importlib.import_module(COMMANDS[name][0]).app)
    return getattr(found, "commands", {}).get(name, found)


class Commands(TyperGroup):
    """Lists the commands of the table, and imports one when it is called."""

    def __init__(self, **settings: Any) -> None:
        """Show a stand-in for each command."""
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=summary) for name, (_, summary) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command itself."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else load(name), rest


app = typer.Typer(
    cls=Commands,
    help="Scaling studies of RLlib on Ray: which settings hold up at many environment runners, and what they cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _main(
    version: Version = False,
) -> None:
    pass


def main(command: str = "") -> NoReturn:
    """Run the command line, or one of its commands, to its exit code; a person's mistake has no traceback.

    Raises:
        ModuleNotFoundError: A package is not installed.
    """
    for name in ("stdout", "stderr"):  # Python has None for one that was closed at the start, as by `>&-`
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (as long as the process)
    if not sys.flags.safe_path and Path.cwd() not in map(Path, sys.path):
        sys.path.append(os.getcwd())  # noqa: PTH109 (environments of the person's own)
    try:
        if sys.flags.optimize > 1:
            rule, fix = "must run without -OO: Ray and MLflow read docstrings", "Drop it, or unset PYTHONOPTIMIZE."
            raise StudyError(where="Python", rule=rule, fix=fix)
        (load(command) if command else app)()
    except ModuleNotFoundError:
        raise
    except StudyError as error:
        say(terminal(error=True), str(error))
        is_full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
        resumes = any(word.startswith("--resume") for word in sys.argv)  # a study is there, and waits
        sys.exit(ExitCode.STOPPED if is_full and resumes else ExitCode.MISTAKE)
    except Exception as error:  # noqa: BLE001 (the edge of the program: said, with its traceback)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where, rule = str(error.filename or "output"), f"must be writable ({error.strerror})"
            fix = "Free some space, then run the same command again."
            say(terminal(error=True), in_one_line(where=where, rule=rule, got="", fix=fix))
            sys.exit(ExitCode.MISTAKE)
        say(
            terminal(error=True),
            "A fault of this program; nothing recorded is lost. Please report it with these lines:",
        )
        write(traceback.format_exc(), error=True)
        sys.exit(ExitCode.UNEXPECTED)
    sys.exit(ExitCode.FINISHED)
