"""What a study gave: `report`, `export`, `repeat`, `certificate`, `pack`; and `schema`. Thin calls."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from study.console import say, terminal, write
from study.options import Address, Study, command_app, examples, wrong_option
from study.records.folder import NAME, StudyFolder

app = command_app()
certificate = command_app("Certificate of a hold-up study: write FOLDER, verify FOLDER.")
app.add_typer(certificate, name="certificate")


@app.command(
    epilog=examples(
        "python -m study report studies/quickstart",
        "python -m study report studies/quickstart --format html,csv --out published",
        "python -m study report sqlite:///mlflow.db --study quickstart",
    ),
)
def report(
    study: Annotated[
        str,
        typer.Argument(help="Folder of the study, or a tracking URI: sqlite:///mlflow.db, http://…."),
    ],
    format_: Annotated[
        str, typer.Option("--format", help="Some of html, csv, tex; tex gives LaTeX tables and PDF figures.")
    ] = "html,csv",
    out: Annotated[Path | None, typer.Option(help="Folder; by default `report` in the study's folder.")] = None,
    name: Annotated[str | None, typer.Option("--study", help="Study in MLflow, by name or id.")] = None,
    price_per_cpu_hour: Annotated[
        float | None,
        typer.Option(min=0, help="What a CPU-hour costs, in any currency: the price list then has costs."),
    ] = None,
) -> None:
    """Write the report of a study: one HTML page, tables and figures. `sync` brings it to MLflow."""
    from analysis.load import open_study
    from analysis.opened import Study as Opened
    from analysis.report import PAGE, make_report, parse_formats
    from analysis.report import write as write_files
    from study.cli.display import print_answer

    chosen = parse_formats(format_)
    folder = None if "://" in study else StudyFolder(Path(study))
    data = open_study(study, study=name)
    if out is None:
        out = folder.report if folder else folder_of_experiment(data.name)
    made = make_report(Opened(data), price_per_cpu_hour=price_per_cpu_hour)
    files = write_files(made, out, chosen)
    console, page = terminal(), next((file for file in files if file.name == PAGE), None)
    print_answer(console, made.answer)
    say(console, f"\nThe page: {page}" if page else f"\nThe files: {out}")


def folder_of_experiment(name: str) -> Path:
    """Return `studies/<name>/report` for a study in MLflow, whose experiment may have any name, such as `..`."""
    return Path("studies") / ("_" + re.sub(r"[^\w.-]+", "_", name) if not NAME.fullmatch(name) else name) / "report"


@app.command(
    epilog=examples(
        "python -m study export studies/quickstart --trial 7",
        "python -m study export studies/acrobot_holdup --scale 46",
    ),
)
def export(
    study: Study,
    trial: Annotated[
        int | None, typer.Option(min=0, help="Trial whose setting is wanted; by default the best of the study.")
    ] = None,
    scale: Annotated[
        int | None, typer.Option(min=1, help="Environment runners, for the chosen setting of a hold-up study.")
    ] = None,
    format_: Annotated[
        Literal["python", "yaml"],
        typer.Option("--format", help="A plain RLlib script, or a space file, of a hold-up study with its rule."),
    ] = "python",
) -> None:
    """Print the setting of a trial, or the chosen one of a hold-up study, for use without this project.

    A study of your own script gives the calls that set the trial's values in it.
    """
    from study.exporting.script import trial_as_script, trial_as_space, trial_of

    folder = StudyFolder(study)
    if trial is not None and scale is not None:
        got, fix = f"{trial} with --scale {scale}", "Drop one of the two."
        raise wrong_option("--trial", rule="excludes --scale", got=got, fix=fix)
    spec = folder.identity().parse()
    if scale is not None or (trial is None and spec.holdup is not None):
        from study.designs.holdup.certificate import export_python, export_yaml

        if scale is None:
            rule, fix = "or --trial must be given for a hold-up study", "Add --scale 46, or another number of runners."
            raise wrong_option("--scale", rule=rule, got="neither", fix=fix)
        if spec.script is not None and format_ != "yaml":
            rule, fix = "gives a space where the study is of a script", "Use --format yaml, or --trial."
            raise wrong_option("--scale", rule=rule, got=f"--format {format_}", fix=fix)
        write(export_yaml(folder, scale) if format_ == "yaml" else export_python(folder, scale))
        return
    chosen = trial_of(folder, _best_trial(folder) if trial is None else trial)
    write(trial_as_space(chosen) if format_ == "yaml" else trial_as_script(chosen))


def _best_trial(folder: StudyFolder) -> int:
    from study.evaluating.playing import best_policy
    from study.records.ledger import ledger_of

    best, _ = best_policy(folder.identity().parse(), ledger_of(folder.records))
    if best is None:
        rule, fix = "must be given where no trial has a score", "Add --trial 0."
        raise wrong_option("--trial", rule=rule, got="none", fix=fix)
    return best.trial


@app.command(
    epilog=examples(
        "python -m study repeat studies/quickstart --seeds 5",
        "python -m study repeat studies/quickstart --trial 7 --seeds 10 --dry-run",
    )
)
def repeat(
    study: Study,
    trial: Annotated[int | None, typer.Option(min=0, help="Trial to repeat; by default the best of the study.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, none of which the study has used.")] = 5,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")] = False,
) -> None:
    """Train the setting of a trial again on new seeds: does its result hold?

    The runs are a study of their own beside the first one, with the same evaluation episodes and the same MLflow. The
    same line goes on with it where it was stopped.
    """
    from study.cli.run import run
    from study.exporting.script import trial_as_space, trial_of
    from study.records.files import check_own
    from study.records.ledger import ledger_of

    folder = StudyFolder(study)
    check_own(folder.path)  # it trains what the folder says, and sends to its MLflow
    number = _best_trial(folder) if trial is None else trial
    chosen = trial_of(folder, number)
    first = 1 + max(row.seed for row in ledger_of(folder.records).rows.values())
    name = f"{folder.identity().name}-trial-{number}"
    file = folder.path.parent / f"{name}.yaml"
    file.write_text(trial_as_space(chosen, range(first, first + seeds)), encoding="utf-8")
    uri, out = folder.identity().tracking_uri, folder.path.parent
    same = [f"execution={chosen.row.execution}"]
    run(str(file), tracking_uri=uri, out=out, address=address, resume_or_start=True, set_=same, dry_run=dry_run)


@certificate.command("write", epilog=examples("python -m study certificate write studies/acrobot_holdup"))
def write_certificate_files(study: Study) -> None:
    """Write certificate.json and certificate.md from the study's records, as the end of a study does."""
    from study.designs.holdup.certificate import write_certificate
    from study.designs.holdup.page import page

    write(f"{page(write_certificate(StudyFolder(study)))}\n")


@certificate.command(epilog=examples("python -m study certificate verify studies/acrobot_holdup"))
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


@app.command(epilog=examples("python -m study schema"))
def schema() -> None:
    """Print every field of a space file as Markdown: its default and its meaning."""
    from study.space.parsing import field_reference

    write(field_reference())


@app.command(epilog=examples("python -m study pack studies/acrobot_holdup published/acrobot"))
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
