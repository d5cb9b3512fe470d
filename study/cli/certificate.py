"""`certificate write|verify`: the result of a hold-up study. Thin calls into the certificate."""

from pathlib import Path
from typing import Annotated

import typer

from study.console import say, terminal, write
from study.options import Study, command_app, examples

app = command_app("Certificate of a hold-up study: write FOLDER, verify FOLDER.")


@app.command("write", epilog=examples("python -m study certificate write studies/acrobot_holdup"))
def write_files(study: Study) -> None:
    """Write certificate.json and certificate.md from the study's records, as the end of a study does."""
    from study.designs.holdup.certificate import write_certificate
    from study.designs.holdup.page import page
    from study.records.folder import StudyFolder

    write(f"{page(write_certificate(StudyFolder(study)))}\n")


@app.command(epilog=examples("python -m study certificate verify studies/acrobot_holdup"))
def verify(
    path: Annotated[Path, typer.Argument(help="certificate.json, or the study folder that holds it.")],
) -> None:
    """Make every decision and figure of a certificate again from the records beside it; exit code 2 on a difference.

    This shows that the arithmetic is right, and that the decisions follow from the records. It does not show that the
    records are those of a training.
    """
    from study.designs.holdup.certificate import verify as verify_certificate

    verify_certificate(path)
    say(terminal(), f"{path}: every decision and every figure follows from the records.")
