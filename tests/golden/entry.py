"""How the tests of recorded studies enter the program: by its command line, and by what reads a study's folder."""

from pathlib import Path

from typer.testing import CliRunner

from study.cli import commands as command_line
from study.records.folder import StudyFolder, write_table
from study.records.ledger import ledger_of


def run_command(*words: str) -> tuple[int, str]:
    """Run a command of `python -m study` in this process; return its exit code and what it printed."""
    result = CliRunner().invoke(command_line.app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def write_trials_csv(study_folder: Path, target: Path) -> None:
    """Write the table of trials of a recorded study anew."""
    write_table(target, ledger_of(StudyFolder(study_folder).records).rows.values())
