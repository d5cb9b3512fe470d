"""`certificate write|verify`: the result of a hold-up study. Thin calls into the certificate and its rerun."""

from pathlib import Path
from typing import Annotated

import typer

from study.console import say, terminal, write
from study.errors import ExitCode
from study.options import Study, command_app, examples, wrong_option

app = command_app("Certificate of a hold-up study: write FOLDER, verify FOLDER.")


@app.command("write", epilog=examples("python -m study certificate write studies/acrobot_holdup"))
def write_files(study: Study) -> None:
    """Write certificate.json and certificate.md from the study's records, as the end of a study does."""
    from study.designs.holdup.certificate.making import make_certificate
    from study.records.folder import StudyFolder

    folder = StudyFolder(study)
    certificate = make_certificate(folder)
    certificate.write(folder)
    write(f"{certificate.to_markdown()}\n")


@app.command(
    epilog=examples(
        "python -m study certificate verify studies/acrobot_holdup",
        "python -m study certificate verify studies/acrobot_holdup --rerun 3",
    ),
)
def verify(
    path: Annotated[Path, typer.Argument(help="certificate.json, or the study folder that holds it.")],
    frozen: Annotated[
        str | None, typer.Option(help="Digest that the study printed before the first test seed ran; compared.")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow that the study was mirrored to; the digest that it holds is compared.")
    ] = None,
    rerun: Annotated[int, typer.Option(min=0, help="Train so many trials of the confirmation again.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the draw of these trials; printed. By default a new one.")
    ] = None,
) -> None:
    """Recompute every figure of a certificate from the records beside it; exit code 2 on any difference.

    This finds records that contradict themselves or the certificate. It cannot find records that somebody has rewritten
    consistently, with a certificate made from them: for that, compare the digest that was published when the settings
    were frozen (--frozen, --tracking-uri), or train some of the runs again (--rerun). The latter runs the environment
    that the study names: do it only for studies of people whom you trust with that.
    """
    from study.designs.holdup.certificate.making import verify as verify_certificate
    from study.evaluating.rerun import held_by_mlflow, train_again

    if seed is not None and not rerun:
        fix = "Add --rerun with a number of trials, such as --rerun 3, or leave out --seed."
        raise wrong_option("--seed", rule="needs --rerun", got=seed, fix=fix, code="seed-without-rerun")
    console = terminal()
    folder = verify_certificate(path, frozen=frozen)
    found = f"{path}: every figure follows from the records."
    if tracking_uri is not None:
        verify_certificate(path, frozen=held_by_mlflow(folder, tracking_uri))
        found += " MLflow holds the same digest of the records before the first test seed."
    say(console, found)
    agree = True
    for run in train_again(folder, rerun, seed=seed, tell=lambda text: say(console, text)) if rerun else ():
        say(console, run.sentence)
        agree = agree and run.agrees
    if not agree:
        raise typer.Exit(ExitCode.MISTAKE)
