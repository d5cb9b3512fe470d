"""Any trial of any study for use elsewhere: as a plain RLlib script, or a space file. Reads records; no engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from study.engine import OWN
from study.errors import AnalysisError, RecordError, SpaceError
from study.exporting.script import comment, extensions_of, plain_script, space_file, values_set
from study.records.folder import StudyFolder
from study.records.ledger import TrialRow, ledger_of
from study.records.records import TrialBuilt, read_lines
from study.space.parameters import FRAGMENT, Value
from study.space.sections import LEARNERS
from study.space.settings import spec_of
from study.space.spec import StudySpec
from study.text import count, spans


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTrial:
    """A trial that somebody wants elsewhere.

    Attributes:
        study: Its folder.
        spec: What it ran under.
        row: What is known of it.
        setting: Every parameter with its value, the scale included.
    """

    study: StudyFolder
    spec: StudySpec
    row: TrialRow
    setting: dict[str, Value]

    @property
    def header(self) -> Iterator[str]:
        """What a reader must know of where the numbers come from, line by line."""
        identity, row = self.study.identity(), self.row
        runners = count(row.num_env_runners, "environment runner")
        yield f"Trial {row.trial} of the study '{identity.name}' ({identity.study_id}) at {runners}, seed {row.seed}."
        if row.status != "finished":
            yield f"WARNING: this trial is {row.status}{f': {row.reason}' if row.reason else ''}."
        if row.last_evaluation is not None:
            returns, steps = row.last_evaluation.returns, row.last_evaluation.env_steps
            mean = sum(returns) / len(returns)
            yield f"Last evaluation: mean return {mean:.6g} over {count(len(returns), 'episode')}, {steps:,} env steps."


def trial_of(study: StudyFolder, trial: int) -> ExportedTrial:
    """Return a trial of a study.

    Raises:
        RecordError: The study cannot be read, or has no trial yet.
        SpaceError: There is no such trial.
    """
    spec, rows = study.identity().parse(), ledger_of(study.records).rows
    if not rows:
        rule, fix = "must have a trial", "Wait for one, or resume the study."
        raise RecordError(where=str(study.path), rule=rule, got="none yet", fix=fix)
    if (row := rows.get(trial)) is None:
        rule = f"must be a trial of {study.path} ({spans(sorted(rows))})"
        raise SpaceError.of("command line", where="--trial", rule=rule, got=str(trial), fix="Name one.")
    learners = row.setting.get(LEARNERS)
    ran = spec_of(spec_of(spec, row.variant), "study", num_learners=None if learners is None else int(learners))
    setting = {name: value for name, value in row.setting.items() if name != LEARNERS}
    return ExportedTrial(study=study, spec=ran, row=row, setting=setting)


def trial_as_script(trial: ExportedTrial, *, fast: bool = False) -> str:
    """Return what trains the trial's setting with RLlib alone, or with `study.fast` too.

    A script; of a study of a person's own script the calls that give its configuration what the trial had and the
    script has not.

    Raises:
        AnalysisError: The training needs more than Gymnasium and RLlib.
    """
    spec, row, header = trial.spec, trial.row, [*trial.header]
    if spec.script is None:
        if not fast and row.engine not in (None, OWN):
            header.append(f"The study trained with {row.engine}; RLlib's own runner and learner differ in detail.")
        return plain_script(spec, trial.setting, header=header, seed=row.seed, iterations=row.iterations, fast=fast)
    own = {name: value for name, value in spec.script.defaults.items() if name not in spec.script.searched}
    given = values_set(
        trial.setting,
        learners=spec.script.num_learners,
        env_steps=spec.budget.env_steps,
        own=own,
        has_kl_term=own.get("kl_coeff") != 0,
    )
    if _has_automatic_fragment(trial):
        given["env_runners"][FRAGMENT] = "auto"
    calls = [
        f"config.{method}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
        for method, arguments in given.items()
        if arguments
    ]
    if (extensions := "" if fast else extensions_of(given["learners"])) != "":
        calls = [extensions, "", *calls, "install(config)"]
    calls += ["import study", "config = study.fast(config)"] if fast else []
    where = f"Add to {spec.script.source.file} where its configuration is complete:"
    none = "The script has all values of the trial."
    return "\n".join([comment([*header, where if calls else none]), *calls, ""])


def trial_as_space(trial: ExportedTrial, seeds: Sequence[int] = ()) -> str:
    """Return a space file that trains the trial's setting on its seed, or on these.

    Raises:
        AnalysisError: The trial is one of a throughput study, which has neither evaluations nor a budget to learn.
    """
    row = trial.row
    if not trial.spec.learns:
        rule, got = "a space of one trial must learn", "a throughput study"
        raise AnalysisError(where="--format yaml", rule=rule, got=got, fix="Use `export --format python`.")
    budget = trial.spec.budget.model_copy(update={"iterations": row.iterations})
    name = trial.study.identity().name
    return space_file(
        trial.spec.model_copy(update={"budget": budget}),
        trial.setting,
        header=comment(trial.header),
        description=f"Trial {row.trial} of the study {name}",
        seeds=seeds or [row.seed],
    )


def _has_automatic_fragment(trial: ExportedTrial) -> bool:
    """Return whether a trial of a script let RLlib choose the fragments, where the script gives their length."""
    row, changed = trial.row, {}
    for line in read_lines(trial.study.records):
        if isinstance(line.record, TrialBuilt) and (line.record.trial, line.record.attempt) == (row.trial, row.attempt):
            changed = line.record.effective.get("differs_from_script", {})
    return bool(changed.get(FRAGMENT, [""])[-1] == "auto")
