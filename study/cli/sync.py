"""`sync`: a study's records brought to other places, MLflow, Optuna's storage, TensorBoard. Imports no engine."""

from collections.abc import Iterator

from study.cli.display import answer_of
from study.console import say, terminal
from study.errors import StudyError
from study.mirrors.process import mirrors_of
from study.mirrors.process import sync as catch_up
from study.options import Study, command_app, examples
from study.records.files import check_own
from study.records.folder import StudyFolder
from study.text import count

app = command_app()


@app.command(epilog=examples("python -m study sync studies/quickstart"))
def sync(study: Study) -> None:
    """Bring MLflow, and what else shows a study, up to date with its records."""
    console = terminal()
    for line in sync_study(StudyFolder(study)):
        say(console, line)


def sync_study(folder: StudyFolder) -> Iterator[str]:
    """Bring MLflow, Optuna's storage and event files, where the study has them, up to date with the records.

    The folder, which names the places, must be this user's own.

    Yields:
        A sentence for each place, as soon as it is up to date; for all but one that failed, why.

    Raises:
        StudyError: A place does not answer, or the records cannot be trusted; the others have got what they lacked.
    """
    folder.identity()
    folder.check_unpacked()
    check_own(folder.path)
    answer, failed = answer_of(folder.path), list[StudyError]()
    for mirror in mirrors_of(folder):
        try:
            mirror.answer = "" if isinstance(answer, str) else answer.to_markdown()
            lacked = catch_up(mirror)
            yield f"{mirror.name} is up to date" + (f": {count(lacked, 'record')} sent." if lacked else ".")
        except StudyError as error:
            failed.append(error)
    yield from map(str, failed[:-1])
    if failed:
        raise failed[-1]
