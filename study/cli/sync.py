"""`sync`: a study's records brought to other places, MLflow, Optuna's storage, TensorBoard. Imports no engine."""

from collections.abc import Iterator
from typing import Annotated

import typer

from study.cli.display import answer_of
from study.console import say, terminal
from study.errors import StudyError
from study.mirrors.follower import Mirror
from study.mirrors.follower import sync as catch_up
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.optuna_storage import OptunaMirror
from study.mirrors.process import MIRRORS
from study.mirrors.tensorboard import TensorBoardMirror
from study.options import Study, command_app, examples
from study.records.files import check_own
from study.records.folder import StudyFolder

app = command_app()


@app.command(
    epilog=examples(
        "python -m study sync studies/quickstart",
        "python -m study sync studies/quickstart --tracking-uri http://127.0.0.1:5000",
    ),
)
def sync(
    study: Study,
    tracking_uri: Annotated[
        str | None, typer.Option(help="Write to this MLflow instead of the study's own; builds a complete copy there.")
    ] = None,
    optuna_storage: Annotated[
        str | None, typer.Option(help="Write to this Optuna storage instead of the study's own.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files for TensorBoard, also of a study without them.")
    ] = False,
) -> None:
    """Bring MLflow, and what else shows a study, up to date with its records; with an option, only what it names."""
    folder, console = StudyFolder(study), terminal()
    for line in sync_study(folder, tracking_uri=tracking_uri, optuna_storage=optuna_storage, tensorboard=tensorboard):
        say(console, line)


def sync_study(
    folder: StudyFolder,
    *,
    tracking_uri: str | None = None,
    optuna_storage: str | None = None,
    tensorboard: bool = False,
) -> Iterator[str]:
    """Bring the places that are named, else those that the folder names, up to date with the records.

    One that is away does not keep the others from their part. Those of the folder must be this user's own.

    Yields:
        A sentence for each place, as soon as it is up to date; for all but one that failed, why.

    Raises:
        StudyError: A place does not answer, or the records cannot be trusted; the others have got what they lacked.
    """
    folder.identity()
    folder.check_unpacked()
    places: dict[type[Mirror], str | None] = {
        MlflowMirror: tracking_uri,
        OptunaMirror: optuna_storage,
        TensorBoardMirror: str(folder.tensorboard) if tensorboard else None,
    }
    if not any(places.values()):
        check_own(folder.path)
        places = {kind: kind.address_of(folder) for kind in MIRRORS.values()}
    failed: list[StudyError] = []
    for kind, address in places.items():
        if address is None:
            continue
        try:
            mirror = kind(folder, kind.check(address))
            if kind is MlflowMirror:
                answer = answer_of(folder.path)
                mirror.answer = "" if isinstance(answer, str) else answer.to_markdown()
            sent, trials = catch_up(mirror)
            yield f"{kind.name} is up to date: {sent} records sent, {trials} trials there."
        except StudyError as error:
            failed.append(error)
    yield from map(str, failed[1:])
    if failed:
        raise failed[0]
