"""Which policy is meant, and what is known of it: a trial's, or a random one. Imports no engine."""

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
from study.space.space_file import find_space, read_space
from study.space.spec import StudySpec
from study.text import count, spans
from study.trial.weights import STATE_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPolicy:
    """A policy that a person chose to play.

    Attributes:
        title: What it is, for people.
        spec: The space that its trial ran under, or in whose environment a random policy plays.
        study: The study; None where a random policy plays in a space.
        row: The trial; None for a random policy: actions are drawn from the action space, nothing was learnt.
        chosen_among: Finished trials that it is the best of; 0 where a person named it.
    """

    title: str
    spec: StudySpec
    study: StudyFolder | None = None
    row: TrialRow | None = None
    chosen_among: int = 0

    @property
    def checkpoint(self) -> Path | None:
        """Folder of its numbers; None for a random policy, which needs none."""
        return None if self.study is None or self.row is None else self.study.checkpoint(self.row.trial)

    @property
    def recorded(self) -> tuple[float, ...] | None:
        """Return of each episode of the trial's final evaluation; None where that is not known."""
        last = None if self.row is None else self.row.last_evaluation
        return tuple(last.returns) if last is not None and last.progress >= 1 else None

    @property
    def first_episode(self) -> int:
        """Number of the first evaluation episode that its trial played."""
        return 0 if self.row is None else self.row.first_episode

    def check_owner(self) -> None:
        """Refuse a policy that is not there, or that somebody else could have put there.

        Raises:
            RecordError: It, or the study's folder, belongs to another user, or others may write to it.
        """
        if self.study is None or self.checkpoint is None:
            return
        if not (self.checkpoint / STATE_FILE).exists():
            rule, got = f"must hold the policy ({STATE_FILE})", "none, as in a packed study and one of before 0.16"
            fix = "Evaluate the study that it was packed from, or restore the folder from a backup."
            raise RecordError(where=str(self.checkpoint), rule=rule, got=got, fix=fix)
        check_plain(self.checkpoint)
        for folder in (self.study.path, self.checkpoint):
            way_out = "Ask its owner to evaluate it, or train the setting again: `export --format yaml`."
            check_own(folder, way_out=way_out)


def find_policy(path: Path, trial: int | None) -> ChosenPolicy:
    """Return the policy of a trial of a study, by default of its best.

    Raises:
        RecordError: There is no study that learns, or the trial has no policy.
        SpaceError: There is no such trial.
    """
    study, where = StudyFolder(path), str(path)
    if not study.exists():
        fix = "Name one, such as studies/quickstart, or add --random for a random policy in a space."
        raise RecordError(where=where, rule="must be the folder of a study", got="another path", fix=fix)
    spec, ledger = study.identity().parse(), ledger_of(study.records)
    if not spec.learns:
        rule, got = "must be a study that learns", "a throughput study"
        raise RecordError(where=where, rule=rule, got=got, fix="Name another one.")
    row, among = best_policy(spec, ledger) if trial is None else (ledger.rows.get(trial), 0)
    if trial is None and row is None:
        rule, fix = "must hold a finished trial with its policy", "Wait for one, or resume the study."
        raise RecordError(where=where, rule=rule, got="none yet", fix=fix)
    if row is None or row.checkpoint is None:
        have = spans(sorted(each.trial for each in ledger.rows.values() if each.checkpoint is not None))
        got = str(trial) if row is None else f"{trial}, {row.status}{f': {row.reason}' if row.reason else ''}"
        rule = f"must be a trial of {study.path} with a policy ({have})"
        raise wrong_option("--trial", rule=rule, got=got, fix="Name one.")
    runners = count(row.num_env_runners, "runner")
    title = f"{study.identity().name}: trial {row.trial} ({runners}, seed {row.seed})"
    return ChosenPolicy(title=title, spec=spec_of(spec, row.variant), study=study, row=row, chosen_among=among)


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
        return ChosenPolicy(title=f"{identity.name}: random policy", spec=identity.parse(), study=study)
    if path.is_dir():
        rule = "with --random it must be a space or the folder of a study (with study.json)"
        raise RecordError(where=str(path), rule=rule, got="another folder", fix="Name one, such as quickstart.yaml.")
    source = read_space(find_space(path, place="SPACE"))
    if isinstance(script := source.content.get("config"), str):
        say_that_it_runs(script)
    # Its script has as long as that of a study that was started; a space whose floor is measured needs none yet.
    spec = parse_space(with_script(source, timeout_s=PATIENCE_S), scored=False)
    return ChosenPolicy(title=f"{path}: random policy", spec=spec)


def best_policy(spec: StudySpec, ledger: Ledger) -> tuple[TrialRow | None, int]:
    """Return the trial whose policy is the study's best, and among how many it was chosen.

    The best by `merit`, as in the answer; of a hold-up study whose settings are frozen, among the winner's
    confirmations at the target scale.
    """
    with_policy = (row for row in ledger.rows.values() if row.checkpoint is not None and row.status == "finished")
    # In a hold-up study trials with a limit of iterations have not had their whole budget.
    rows = [row for row in with_policy if not row.stage or row.iterations is None]
    rows = design_of(spec).final_trials(spec, ledger, rows)
    return max(best_per_scale(rows).values(), key=merit, default=None), len(rows)
