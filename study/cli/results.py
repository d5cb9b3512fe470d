"""`export`, `importance` and `replay`: what a study of one kind answers. Thin calls into the designs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from study.console import terminal, write
from study.options import Command, Study, command_app, examples
from study.records.folder import StudyFolder

app = command_app()


@app.command(cls=Command, epilog=examples("python -m study export studies/acrobot_holdup --scale 46"))
def export(
    study: Study,
    scale: Annotated[int, typer.Option(min=1, help="Environment runners to export the setting for.")],
    format_: Annotated[
        Literal["python", "yaml"], typer.Option("--format", help="A plain RLlib script, or values and the rule.")
    ] = "python",
) -> None:
    """Print the chosen setting of a hold-up study for use without this project, and the rule behind it."""
    from study.designs.holdup.certificate.export import export_python, export_yaml

    writer = export_python if format_ == "python" else export_yaml
    write(writer(StudyFolder(study), scale))


@app.command(cls=Command, epilog=examples("python -m study importance studies/quickstart"))
def importance(study: Study) -> None:
    """Print which parameters mattered at each scale (PED-ANOVA)."""
    from study.cli.tables import print_importance
    from study.designs.search.importance import FEWEST, importance_per_scale
    from study.records.state import ledger_of

    folder = StudyFolder(study)
    rows = ledger_of(folder.records).rows.values()
    print_importance(terminal(), importance_per_scale(folder.identity().parse(), rows), fewest=FEWEST)


@app.command(cls=Command, epilog=examples("python -m study replay analysis/example_study --target 46 --small 10"))
def replay(
    records: Annotated[Path, typer.Argument(help="Study folder with a complete table: settings x seeds x scales.")],
    target: Annotated[int, typer.Option(help="The scale that settings are chosen for.")] = 46,
    small: Annotated[int, typer.Option(help="The small scale.")] = 10,
    replays: Annotated[int, typer.Option(min=100, help="Studies to replay.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers of the replay.")] = 0,
    complete_seeds_only: Annotated[
        bool, typer.Option("--complete-seeds-only", help="Leave out seeds that were not run with every setting.")
    ] = False,
) -> None:
    """Replay the protocol and its rivals on a recorded table at equal CPU-seconds: how often does the pick hold up?"""
    from study.designs.holdup.replay import replay as replay_study
    from study.designs.holdup.replay import to_markdown

    result = replay_study(
        records, target=target, small=small, num_replays=replays, seed=seed, complete_seeds_only=complete_seeds_only
    )
    write(to_markdown(result))
