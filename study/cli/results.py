"""Commands for a study that has results: its report, its policies and its certificate."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from study.console import say
from study.errors import wrong_option
from study.options import Study, Trial, command_app, examples
from study.records.folder import StudyFolder

app = command_app("")


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
    out: Annotated[Path | None, typer.Option(help="Folder; by default `report` in the study's, or here.")] = None,
    name: Annotated[str | None, typer.Option("--study", help="Study in MLflow, by name or id.")] = None,
    price_per_cpu_hour: Annotated[
        float | None,
        typer.Option(min=0, help="What a CPU-hour costs, in any currency: the price list then has costs."),
    ] = None,
) -> None:
    """Write the report of a study: one page, tables and figures.

    The page is HTML; `sync` brings it to MLflow.
    """
    import analysis
    from analysis.report import PAGE, make_report, parse_formats, write
    from study.cli.display import print_answer

    chosen = parse_formats(format_)
    made = make_report(analysis.open(study, name), price_per_cpu_hour=price_per_cpu_hour)
    out = out or (Path("report") if "://" in study else StudyFolder(Path(study)).report)
    files = write(made, out, chosen)
    print_answer(made.answer)
    say(f"\nThe page: {out / PAGE}" if out / PAGE in files else f"\nThe files: {out}")


@app.command(
    epilog=examples(
        "python -m study evaluate studies/quickstart",
        "python -m study evaluate studies/quickstart --seed 1 --episodes 200 --video film.mp4",
        "python -m study evaluate my_space.yaml --random --episodes 200",
    ),
)
def evaluate(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY|SPACE", help="Folder of a study: its best policy. With --random a space or a study."
        ),
    ],
    trial: Trial = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes to play; by default as the space says.")] = None,
    stochastic: Annotated[
        bool | None,
        typer.Option(
            "--stochastic/--deterministic",
            help="Draw actions as in the training, or take the most probable ones; by default as the space says.",
        ),
    ] = None,
    random: Annotated[
        bool,
        typer.Option("--random", help="Uniformly random actions in place of a policy: what a space's floor should be."),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**28 - 1,
            help="Seed of the episodes, and of actions that are drawn; the same seed gives the same episodes. By "
            "default that of the study's own evaluations.",
        ),
    ] = None,
    video: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Film it from the first episode on, 20 s at most, as .mp4 (needs imageio-ffmpeg). In the study's "
            "clips/ it goes to MLflow with the next `sync`.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")] = False,
) -> None:
    """Play a recorded policy, or a random one; film it.

    With defaults it plays the trial's final evaluation again, which must give the returns on record.
    """
    from study.cli.display import evaluated_text
    from study.evaluating.playing import evaluate_policy, find_policy, random_policy

    if random and (trial is not None or stochastic is not None):
        rule, got = "belong to a recorded policy", "--random too"
        raise wrong_option("--trial, --stochastic/--deterministic", rule=rule, got=got, fix="Drop one.")
    policy = random_policy(path) if random else find_policy(path, trial)
    evaluated = evaluate_policy(policy, episodes=episodes, seed=seed, stochastic=stochastic, video=video)
    say(json.dumps(evaluated.to_json(), indent=1, default=str) if as_json else evaluated_text(evaluated))


# --- what a study chose -----------------------------------------------------------------------------------------------


@app.command()
def export(
    study: Study,
    trial: Trial = None,
    scale: Annotated[
        int | None, typer.Option(min=1, help="Environment runners, where they are others than the trial had.")
    ] = None,
    format_: Annotated[
        Literal["python", "yaml"], typer.Option("--format", help="A plain RLlib script, or a space file.")
    ] = "python",
) -> None:
    """Print a trial's setting as a plain RLlib script.

    By default that of the best trial; of a hold-up study, which must be confirmed, that of the chosen setting. A study
    of your own script gives the calls that set the trial's values in it.
    """
    from study.exporting.script import at_scale, trial_as_script, trial_as_space, trial_of

    folder = StudyFolder(study)
    chosen = trial_of(folder, best_trial(folder) if trial is None else trial)
    if trial is None and chosen.spec.holdup is not None:
        from study.designs.holdup.certificate import make_certificate

        chosen.header.append(f"The study chose this setting, which {make_certificate(folder)['sentence']}.")
    if scale is not None:
        chosen = at_scale(chosen, scale)
    say((trial_as_space if format_ == "yaml" else trial_as_script)(chosen).rstrip())


def best_trial(folder: StudyFolder) -> int:
    """Return the trial with the best score; raise what asks for `--trial` where none has one."""
    from study.evaluating.playing import best_policy
    from study.records.ledger import ledger_of

    best, _ = best_policy(folder.identity().parse(), ledger_of(folder.records))
    if best is None:
        rule, fix = "must be given where no trial has a score", "Add --trial 0."
        raise wrong_option("--trial", rule=rule, got="none", fix=fix)
    return best.trial


certificate = command_app("Certificate of a hold-up study: write FOLDER, verify FOLDER.")
app.add_typer(certificate, name="certificate")


@certificate.command("write")
def write_certificate_files(study: Study) -> None:
    """Write certificate.json and certificate.md from the study's records, as the end of a study does."""
    from study.designs.holdup.certificate import write_certificate
    from study.designs.holdup.page import page

    say(page(write_certificate(StudyFolder(study))))


@certificate.command()
def verify(
    path: Annotated[Path, typer.Argument(help="certificate.json, or the study folder that holds it.")],
) -> None:
    """Make every decision and figure of a certificate again from the records beside it; exit code 2 on a difference.

    This shows that the arithmetic is right, and that the decisions follow from the records. It does not show that the
    records are those of a training.
    """
    from study.designs.holdup.certificate import verify as verify_certificate

    verify_certificate(path)
    say(f"{path}: every decision and every figure follows from the records.")
