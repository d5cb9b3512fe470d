"""`export`, `importance` and `replay`: what a study of one kind answers. Thin calls into the designs."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from study.console import terminal, write
from study.errors import RecordError
from study.options import Study, command_app, examples, say_that_it_runs, wrong_option
from study.records.folder import StudyFolder

if TYPE_CHECKING:
    from study.exporting.trial import ExportedTrial

app = command_app()


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
        Literal["python", "yaml", "patch"],
        typer.Option(
            "--format",
            help="A plain RLlib script; a space file, of a hold-up study with its rule; or of a study of your own "
            "script the difference to it.",
        ),
    ] = "python",
) -> None:
    """Print the setting of a trial, or the chosen one of a hold-up study, for use without this project.

    A study of your own script gives that script with the trial's values.
    """
    from study.evaluating.policies import best_policy
    from study.exporting.trial import trial_as_space, trial_of
    from study.records.state import ledger_of

    folder = StudyFolder(study)
    if trial is not None and scale is not None:
        got, fix = f"{trial} with --scale {scale}", "Drop one of the two."
        raise wrong_option("--trial", rule="excludes --scale", got=got, fix=fix, code="export-of-both")
    spec = folder.identity().parse()
    if format_ == "patch" and spec.script is None:
        rule, fix = "`patch` needs a study of a script of your own", "Use --format python."
        raise wrong_option("--format", rule=rule, got="a space without `config`", fix=fix, code="patch-of-a-space")
    if scale is not None or (trial is None and spec.holdup is not None):
        from study.designs.holdup.certificate.export import export_python, export_yaml

        if scale is None:
            rule, fix = "or --trial must be given for a hold-up study", "Add --scale 46, or another number of runners."
            raise wrong_option("--scale", rule=rule, got="neither", fix=fix, code="export-of-nothing")
        if spec.script is not None and format_ != "yaml":
            rule, fix = "gives a space where the study is of a script", "Use --format yaml, or --trial."
            raise wrong_option("--scale", rule=rule, got=f"--format {format_}", fix=fix, code="scale-of-a-script")
        write((export_python if format_ == "python" else export_yaml)(folder, scale))
        return
    if trial is None:
        best, _ = best_policy(spec, ledger_of(folder.records))
        if best is None:
            rule, fix = "must be given where no trial has a score", "Add --trial 0."
            raise wrong_option("--trial", rule=rule, got="none", fix=fix, code="export-of-nothing")
        trial = best.trial
    chosen = trial_of(folder, trial)
    write(trial_as_space(chosen) if format_ == "yaml" else _as_script(chosen, patch=format_ == "patch"))


def _as_script(trial: "ExportedTrial", *, patch: bool) -> str:
    """Return a trial as a plain script; of a study of somebody's own script that one, or the difference to it."""
    from study.exporting.script import comment
    from study.exporting.trial import has_automatic_fragment, trial_as_script

    if trial.spec.script is None:
        return trial_as_script(trial)
    from study.adopted.patching import patched_script

    may_run = False
    with contextlib.suppress(RecordError):  # of somebody else's study a script is read, not run
        trial.study.check_owner()
        trial.study.check_code(trial.spec.own_code)
        may_run = True
        say_that_it_runs(str(trial.spec.config))
    fragment_is_auto = has_automatic_fragment(trial)
    patched = patched_script(trial.spec, trial.setting, fragment_is_auto=fragment_is_auto, may_run=may_run)
    header, file = comment(trial.header), patched.file.name
    if patched.after is None:
        added = comment([f"{file} cannot be patched: {patched.why}.", "Add where its configuration is complete:"])
        return f"{header}\n{added}\n{patched.lines}"
    note = comment([f"{file} with the trial's values{f'; {patched.why}' if patched.why else ''}."])
    if patch:
        return f"{header}\n{note}\n{patched.diff}"
    first, rest = "", patched.after
    if rest.startswith("#!"):
        first, rest = rest.split("\n", 1)[0] + "\n", rest.split("\n", 1)[1]
    return f"{first}{header}\n{note}\n\n{rest}"


@app.command(epilog=examples("python -m study importance studies/quickstart"))
def importance(study: Study) -> None:
    """Print which parameters mattered at each scale (PED-ANOVA)."""
    from study.cli.tables import print_importance
    from study.designs.search.importance import FEWEST, importance_per_scale
    from study.records.state import ledger_of

    folder = StudyFolder(study)
    rows = ledger_of(folder.records).rows.values()
    print_importance(terminal(), importance_per_scale(folder.identity().parse(), rows), fewest=FEWEST)


@app.command(epilog=examples("python -m study replay analysis/example_table --target 46 --small 10"))
def replay(
    records: Annotated[
        list[Path],
        typer.Argument(
            help="Studies with a complete table: settings x seeds x scales. Several: parts with other seeds."
        ),
    ],
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
        *records, target=target, small=small, num_replays=replays, seed=seed, complete_seeds_only=complete_seeds_only
    )
    write(to_markdown(result))
