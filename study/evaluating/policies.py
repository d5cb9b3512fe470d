"""Which policy is meant, and what is known of it: a study's, a checkpoint's, a random one. Imports no engine."""

from dataclasses import dataclass
from pathlib import Path

from study.adopted.loading import PATIENCE_S, with_script
from study.designs.registry import design_of
from study.errors import RecordError
from study.options import say_that_it_runs, wrong_option
from study.records.files import check_own, check_plain
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow, best_per_scale, ledger_of, merit
from study.space.parsing import parse_space
from study.space.settings import spec_of
from study.space.space_file import Source, find_space, read_space
from study.space.spec import StudySpec
from study.text import count, spans
from study.trial.weights import STATE_FILE

_SPACE_SUFFIXES = (".yaml", ".yml")
_WAY_OUT = "Copy the checkpoint into a folder of your own, and evaluate it there with --space."


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPolicy:
    """A policy that a person chose to play.

    Attributes:
        title: What it is, for people.
        checkpoint: Folder of its RLModule checkpoint; None for a random policy, which needs none.
        spec: The space that its trial ran under.
        study: The study that it is from; None for a checkpoint with a space of its own, and for a random policy.
        trial: Its number in the study.
        num_env_runners: Of the trial.
        chosen_among: Finished trials that it is the best of; 0 where a person named it.
        recorded: Return of each episode of the trial's final evaluation; None where that is not known.
        first_episode: Number of the first evaluation episode that its trial played.
    """

    title: str
    checkpoint: Path | None
    spec: StudySpec
    study: StudyFolder | None = None
    trial: int | None = None
    num_env_runners: int = 0
    chosen_among: int = 0
    recorded: tuple[float, ...] | None = None
    first_episode: int = 0

    @property
    def random(self) -> bool:
        """Whether actions are drawn from the action space: nothing was learnt."""
        return self.checkpoint is None

    def check_owner(self) -> None:
        """Refuse a policy that is not there, or that somebody else could have put there.

        Raises:
            RecordError: It, or the study's folder, belongs to another user, or others may write to it.
        """
        if self.checkpoint is None:
            return
        if not _holds_policy(self.checkpoint):
            rule, got = f"must hold the policy ({STATE_FILE})", "none; a packed study has no policies"
            fix = "Evaluate the study that it was packed from, or restore the folder from a backup."
            raise RecordError(where=str(self.checkpoint), rule=rule, got=got, fix=fix)
        check_plain(self.checkpoint)
        for folder in (*((self.study.path,) if self.study else ()), self.checkpoint):
            check_own(folder, way_out=_WAY_OUT)


def find_policy(path: Path, *, trial: int | None = None, space: str | None = None) -> ChosenPolicy:
    """Return the policy that a person names.

    Args:
        path: Folder of a study, or of a checkpoint inside or outside of one.
        trial: Number of the trial, where `path` is a study's.
        space: Space of a checkpoint; not needed inside of a study.

    Raises:
        RecordError: There is neither a study nor a checkpoint, or the trial has no policy.
        SpaceError: The options do not belong together, or the space is wrong.
    """
    if _holds_policy(path):
        if trial is not None:
            got, fix = f"{trial} with a checkpoint", "Drop it, or name the study."
            raise wrong_option("--trial", rule="belongs to a study", got=got, fix=fix)
        return _of_checkpoint(path, space)
    study = StudyFolder(path)
    if not study.exists():
        got, fix = "another folder" if path.is_dir() else "no folder", "Name one, such as studies/quickstart"
        if path.suffix in _SPACE_SUFFIXES:
            got, fix = "a space", f"{fix}, or add --random for a random policy in that space"
        rule = f"must be the folder of a study (with study.json) or of a checkpoint (with {STATE_FILE})"
        raise RecordError(where=str(path), rule=rule, got=got, fix=f"{fix}.")
    if space is not None:
        got, fix = f"'{space}' with a study", "Drop it: the study knows its space."
        raise wrong_option("--space", rule="belongs to a checkpoint outside of a study", got=got, fix=fix)
    spec, ledger = _read(study)
    if trial is not None:
        if (row := ledger.rows.get(trial)) is None:
            have = spans(sorted(each.trial for each in ledger.rows.values() if each.checkpoint is not None))
            rule = f"must be a trial of {study.path} with a policy ({have})"
            raise wrong_option("--trial", rule=rule, got=trial, fix="Name one.")
        return _of_trial(study, spec, _with_policy(study, row))
    best, among = best_policy(spec, ledger)
    if best is None:
        rule, fix = "must hold a finished trial with its policy", "Wait for one, or resume the study."
        raise RecordError(where=str(path), rule=rule, got="none yet", fix=fix)
    return _of_trial(study, spec, best, chosen_among=among)


def random_policy(path: Path) -> ChosenPolicy:
    """Return a random policy in the environment of a space.

    Args:
        path: Space file, or the name of one in `search_spaces/`; or folder of a study, whose space is meant.

    Raises:
        RecordError: It is another folder, or the study cannot be read.
        SpaceError: There is no such space, or it is wrong.
    """
    study = StudyFolder(path)
    if study.exists():
        identity = study.identity()
        return ChosenPolicy(title=f"{identity.name}: random policy", checkpoint=None, spec=identity.parse())
    if path.is_dir():
        got = "a checkpoint" if _holds_policy(path) else "another folder"
        rule = "with --random it must be a space or the folder of a study (with study.json)"
        raise RecordError(where=str(path), rule=rule, got=got, fix="Name one, such as quickstart.yaml.")
    spec = parse_space(_with_script(read_space(find_space(path, place="SPACE"))), scored=False)
    return ChosenPolicy(title=f"{path}: random policy", checkpoint=None, spec=spec)


def _with_script(source: Source) -> Source:
    """Return a space with what is known of its script, which has as long as that of a study that was started."""
    if isinstance(script := source.content.get("config"), str):
        say_that_it_runs(script)
    return with_script(source, timeout_s=PATIENCE_S)


def best_policy(spec: StudySpec, ledger: Ledger) -> tuple[TrialRow | None, int]:
    """Return the trial whose policy is the study's best, and among how many it was chosen.

    The best by `merit`, as in the answer; of a hold-up study whose settings are frozen, among the winner's
    confirmations at the target scale.
    """
    with_policy = (row for row in ledger.rows.values() if row.checkpoint is not None and row.status == "finished")
    # In a hold-up study trials with a limit of iterations have not had their whole budget.
    rows = [row for row in with_policy if not row.stage or row.iterations is None]
    rows = design_of(spec).final_trials(spec, ledger, rows)
    best = best_per_scale(rows)
    return max(best.values(), key=merit, default=None), len(rows)


def _holds_policy(path: Path) -> bool:
    try:
        return (path / STATE_FILE).exists()
    except OSError as error:
        rule, fix = "must be a folder that you can read", "Check its permissions."
        raise RecordError(where=str(path), rule=rule, got=error.strerror, fix=fix) from error


def _of_checkpoint(path: Path, space: str | None) -> ChosenPolicy:
    """Return the policy of a checkpoint folder; the study around it knows its space, if there is one."""
    study = StudyFolder(path.resolve().parent.parent)
    if space is None and study.exists():
        spec, ledger = _read(study)
        for row in ledger.rows.values():
            if study.checkpoint(row.trial) == path.resolve():
                return _of_trial(study, spec, _with_policy(study, row))
    if space is None:
        rule, fix = "is needed for a checkpoint outside of a study", "Name the space file that it was trained in."
        raise wrong_option("--space", rule=rule, got=f"{path} alone", fix=fix)
    spec = parse_space(_with_script(read_space(space)))
    return ChosenPolicy(title=f"checkpoint {path}", checkpoint=path, spec=spec)


def _of_trial(study: StudyFolder, spec: StudySpec, row: TrialRow, *, chosen_among: int = 0) -> ChosenPolicy:
    last = row.last_evaluation
    runners = count(row.num_env_runners, "runner")
    return ChosenPolicy(
        title=f"{study.identity().name}: trial {row.trial} ({runners}, seed {row.seed})",
        checkpoint=study.checkpoint(row.trial),
        spec=spec_of(spec, row.variant),
        study=study,
        trial=row.trial,
        num_env_runners=row.num_env_runners,
        chosen_among=chosen_among,
        recorded=tuple(last.returns) if last is not None and last.progress >= 1 else None,
        first_episode=row.first_episode,
    )


def _read(study: StudyFolder) -> tuple[StudySpec, Ledger]:
    spec = study.identity().parse()
    if not spec.learns:
        rule, fix = "must be a study that learns", "Name another one."
        raise RecordError(where=str(study.path), rule=rule, got="a throughput study", fix=fix)
    return spec, ledger_of(study.records)


def _with_policy(study: StudyFolder, row: TrialRow) -> TrialRow:
    if row.checkpoint is None:
        got = f"{row.status}: {row.reason}" if row.reason else row.status
        rule = f"trial {row.trial} must have finished to leave a policy"
        raise RecordError(where=str(study.path), rule=rule, got=got, fix="Name another one with --trial.")
    return row
