"""`sync` and `pack`: a study's records brought to other places. Thin calls into `study.cli.syncing` and the records."""

from pathlib import Path
from typing import Annotated

import typer

from study.console import say, terminal
from study.options import Command, Study, command_app, examples

app = command_app()


@app.command(
    cls=Command,
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
    from study.cli.syncing import sync_study
    from study.records.folder import StudyFolder

    folder, console = StudyFolder(study), terminal()
    for line in sync_study(folder, tracking_uri=tracking_uri, optuna_storage=optuna_storage, tensorboard=tensorboard):
        say(console, line)


@app.command(
    cls=Command,
    epilog=examples("python -m study pack studies/acrobot_holdup published/acrobot --digits 7"),
)
def pack(
    study: Study,
    target: Annotated[Path, typer.Argument(help="Folder of the copy; must not hold anything.")],
    results_only: Annotated[
        bool, typer.Option("--results-only", help="Leave out training iterations: enough to replay, not to certify.")
    ] = False,
    digits: Annotated[
        int | None, typer.Option(min=7, max=7, help="Significant digits of training iterations: 7 halve the size.")
    ] = None,
) -> None:
    """Copy a study for publication: compressed records without paths of this machine, and its certificate."""
    from study.designs.holdup.certificate.making import make_certificate
    from study.records.folder import StudyFolder
    from study.records.packing import pack as pack_study

    folder = StudyFolder(study)
    packed = pack_study(folder, target, results_only=results_only, digits=digits)
    if folder.certificate.exists() and not results_only:
        make_certificate(packed).write(packed)
    size = packed.records.stat().st_size
    shown = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    say(terminal(), f"{packed.records}: {shown}.")
