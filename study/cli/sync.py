"""`sync` and `pack`: a study's records brought to other places: MLflow, Optuna's storage, TensorBoard, a copy.

One place that is away does not keep the others from their part. Imports no engine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from study.cli.display import answer_of
from study.console import say, terminal
from study.errors import StudyError
from study.mirrors.process import mirrors_of
from study.mirrors.process import sync as catch_up
from study.options import Study, command_app, examples
from study.records.files import check_own
from study.records.folder import StudyFolder

app = command_app()


@app.command(epilog=examples("python -m study sync studies/quickstart"))
def sync(study: Study) -> None:
    """Bring MLflow, and what else shows a study, up to date with its records."""
    console = terminal()
    for line in sync_study(StudyFolder(study)):
        say(console, line)


@app.command(
    epilog=examples("python -m study pack studies/acrobot_holdup published/acrobot"),
)
def pack(
    study: Study,
    target: Annotated[Path, typer.Argument(help="Folder of the copy; must not hold anything.")],
) -> None:
    """Copy a study for publication: compressed records without paths of this machine, and its certificate."""
    from study.designs.holdup.certificate import write_certificate
    from study.records.derived import pack as pack_study

    folder = StudyFolder(study)
    packed = pack_study(folder, target)
    if folder.certificate.exists():
        write_certificate(packed)
    say(terminal(), f"{packed.records}: {packed.records.stat().st_size / 1e6:.2g} MB.")


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
            yield f"{mirror.name} is up to date: {catch_up(mirror)} records sent."
        except StudyError as error:
            failed.append(error)
    yield from map(str, failed[1:])
    if failed:
        raise failed[0]
