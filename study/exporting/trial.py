"""Any trial of any study for use elsewhere: as a plain RLlib script, or a space file. Reads records; no engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from study.engine import OWN
from study.errors import AnalysisError, RecordError, SpaceError
from study.exporting.script import comment, plain_script, space_file
from study.records.folder import StudyFolder
from study.records.ledger import TrialRow
from study.records.records import TrialBuilt, read_lines
from study.records.state import ledger_of
from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, SCALE, Value, attribute
from study.space.sections import LEARNERS
from study.space.settings import spec_of
from study.space.spec import StudySpec
from study.text import count, spans

_OF_RUNNERS = {SCALE: SCALE, "num_envs_per_env_runner": "num_envs_per_env_runner", FRAGMENT: "rollout_fragment_length"}
"""Our parameter -> argument of RLlib's `env_runners`."""
_OF_A_LEARNER = {"train_batch_size": "train_batch_size_per_learner", "minibatch_size": "minibatch_size"}
"""Our parameter -> argument of RLlib's `training`, which is for one learner."""


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
        if self.spec.script is None and row.engine not in (None, OWN):
            yield f"The study trained with {row.engine}; RLlib's own runner and learner differ in detail."


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


def trial_as_script(trial: ExportedTrial) -> str:
    """Return a script that trains the trial's setting with RLlib alone.

    Raises:
        AnalysisError: The training needs more than Gymnasium and RLlib.
    """
    row = trial.row
    return plain_script(trial.spec, trial.setting, header=trial.header, seed=row.seed, iterations=row.iterations)


def trial_as_space(trial: ExportedTrial) -> str:
    """Return a space file that trains the trial's setting on its seed.

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
        seeds=[row.seed],
    )


def calls_for_script(trial: ExportedTrial) -> str:
    """Return the calls that give the configuration of a person's script what the trial had and the script has not."""
    script = trial.spec.script
    if script is None:
        raise ValueError("the study is of no script")
    own = {name: value for name, value in script.defaults.items() if name not in script.searched}
    runners: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for name in [name for name in PARAMETERS if name in trial.setting and name != END_FRACTION]:
        value = trial.setting[name]
        if name in own and own[name] == value:
            continue
        if name in _OF_RUNNERS:
            runners[_OF_RUNNERS[name]] = value
        elif name in _OF_A_LEARNER:
            training[_OF_A_LEARNER[name]] = int(value) // script.num_learners
        else:
            training[attribute(name)] = value
    if _has_automatic_fragment(trial):
        runners[_OF_RUNNERS[FRAGMENT]] = "auto"
    if training.get("kl_coeff") and own.get("kl_coeff") == 0:
        training["use_kl_loss"] = True
    if (fraction := trial.setting.get(END_FRACTION, 1.0)) != 1:
        lr = trial.setting["lr"]
        training["lr"] = [[0, lr], [trial.spec.budget.env_steps, lr * fraction]]
    calls = [
        f"config.{method}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
        for method, given in (("env_runners", runners), ("training", training))
        if given
    ]
    where = f"Add to {script.source.file} where its configuration is complete:"
    none = "The script has all values of the trial."
    return "\n".join([comment([*trial.header, where if calls else none]), *calls, ""])


def _has_automatic_fragment(trial: ExportedTrial) -> bool:
    """Return whether a trial of a script let RLlib choose the fragments, where the script gives their length."""
    row, changed = trial.row, {}
    for line in read_lines(trial.study.records):
        if isinstance(line.record, TrialBuilt) and (line.record.trial, line.record.attempt) == (row.trial, row.attempt):
            changed = line.record.effective.get("differs_from_script", {})
    return bool(changed.get(FRAGMENT, [""])[-1] == "auto")
