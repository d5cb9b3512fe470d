"""The Optuna study of a study: one Optuna trial per planned trial, reconciled with the records. May import Optuna.

The records are the truth. A planned trial enters Optuna by one atomic write, complete and with its number, so that a
kill at any moment leaves either nothing or a trial that can be found again; it is told only after its end is on record.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from study.designs.search import proposals
from study.designs.search.constraints import constraints_of
from study.designs.search.distributions import fixed_by
from study.designs.search.outcome import CANCELLED, TRIAL, Outcomes, attributes, directions_of
from study.errors import RecordError
from study.mirrors.journal import SoleWriterBackend
from study.planning.plan import Slot
from study.records.ledger import TrialRow
from study.space.parameters import SCALE, Value
from study.space.spec import StudySpec


class OptunaStudy:
    """The Optuna side of a study, by numbers of the plan."""

    def __init__(self, spec: StudySpec, *, study_id: str, journal: Path, rows: Mapping[int, TrialRow]) -> None:
        """Open or create the study and reconcile it with what is on record.

        Args:
            spec: The space.
            study_id: Name of the Optuna study.
            journal: Journal file.
            rows: Every trial on record, by its number; new ones appear in it as the study goes on.

        Raises:
            RecordError: The journal is damaged, or knows an end that the records do not.
        """
        self._spec, self._rows, self._outcomes = spec, rows, Outcomes(spec, rows)
        self._distributions = self._outcomes.distributions
        self._study = _open(journal, study_id, directions_of(spec))
        self._trials: dict[int, Trial] = {}
        self.num_rebuilt = 0
        """Trials on record that the journal lacked: it was lost, whole or in part, and has them again."""
        self._reconcile(rows, journal)

    def _reconcile(self, rows: Mapping[int, TrialRow], journal: Path) -> None:
        seen: set[int] = set()
        entered = self._study.get_trials(deepcopy=False)
        self._num_entered = len(entered)
        for frozen in entered:
            number = frozen.user_attrs.get(TRIAL)
            row = rows.get(number) if isinstance(number, int) else None
            ended = row is not None and row.ended
            if not isinstance(number, int) or number in seen:
                if not frozen.state.is_finished():  # nobody's: as RUNNING it would repel the sampler for ever
                    self._study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)
                continue
            seen.add(number)
            self._check(frozen, row, journal)
            if frozen.state.is_finished():
                if not ended and CANCELLED not in frozen.user_attrs:
                    raise RecordError(
                        f"{journal.parent}: trial {number} has ended in optuna.journal but not in records.jsonl: the "
                        "records were cut. Fix: restore records.jsonl from a backup, or start a new study with --name."
                    )
            elif ended and row is not None and frozen.state == TrialState.RUNNING:
                self._trials[number] = Trial(self._study, frozen._trial_id)
                self.tell(row)
            elif frozen.state == TrialState.RUNNING:
                self._trials[number] = Trial(self._study, frozen._trial_id)
        for number, row in rows.items():
            if number not in seen and row.optuna_number is not None:
                self._add(number, self._outcomes.trial(row))
                self.num_rebuilt += 1

    def _check(self, frozen: FrozenTrial, row: TrialRow | None, journal: Path) -> None:
        """Refuse a journal whose lines are Optuna's and whose values are not those of the study."""
        known = {} if row is None else {**row.proposed, SCALE: row.num_env_runners}
        if any(frozen.params.get(name) != value for name, value in known.items()) or not all(
            isinstance(value, (int, float)) for value in (*frozen.params.values(), *(frozen.values or ()))
        ):
            raise RecordError(
                f"{journal}: must propose what ran, got other values for trial {frozen.user_attrs[TRIAL]}. "
                "Fix: remove it; --resume rebuilds it from the records."
            )

    def _add(self, number: int, frozen: FrozenTrial) -> None:
        """Enter a trial by one atomic write."""
        self._study.add_trial(frozen)
        if not frozen.state.is_finished():
            # By its number: to read all trials for the last one would cost more with each of them.
            storage, study = self._study._storage, self._study._study_id
            self._trials[number] = Trial(
                self._study, storage.get_trial_id_from_study_id_trial_number(study, self._num_entered)
            )
        self._num_entered += 1

    def forget(self, trials: Iterable[int]) -> None:
        """Give up trials that will not be run: as RUNNING they would repel the sampler for ever."""
        for number in trials:
            if (trial := self._trials.pop(number, None)) is not None:
                trial.set_user_attr(CANCELLED, True)
                self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def propose(self, slot: Slot) -> tuple[int, dict[str, Value]]:
        """Return Optuna's trial number and all values for `slot`; the same values when it was proposed before."""
        trial = self._trials.get(slot.trial)
        if trial is None:
            frozen = create_trial(
                state=TrialState.RUNNING,
                params=self._values(slot),
                distributions=self._distributions,
                user_attrs={TRIAL: slot.trial, "seed": slot.seed, "anchor": slot.anchor},
            )
            self._add(slot.trial, frozen)
            trial = self._trials[slot.trial]
        return trial.number, dict(trial.params)

    def _values(self, slot: Slot) -> dict[str, Value]:
        """Return what was dealt and given, and the proposal for the rest."""
        values = fixed_by(slot, self._spec)
        tuned = {name: self._distributions[name] for name in self._spec.tuned}
        return values | proposals.propose(
            self._spec.search.sampler,
            num_env_runners=slot.num_env_runners,
            given={name: value for name, value in values.items() if name in tuned},
            space=tuned,
            looks=self._looks(list(tuned)) if self._spec.search.sampler in proposals.MODELLING else [],
            index=slot.index_at_scale,
            seed=self._spec.search.sampler_seed,
            directions=directions_of(self._spec),
        )

    def _looks(self, names: list[str]) -> list[proposals.Look]:
        """Return what is known at each scale of the latest trials, oldest first; the sampler looks at no more.

        A setting of a hold-up study with several looks is there once, as its last look leaves it: its first one alone
        was its luck. One that runs again is as it was.
        """
        failed, wanted = self._failed, {SCALE, *names}
        looks: list[proposals.Look] = []
        at_scale: Counter[int] = Counter()
        staged = self._rows.values() if self._spec.holdup is not None else ()
        settled = {self._setting(row) for row in staged if row.ended}
        seen: set[tuple[int, str]] = set()
        for trial in reversed(self._study.get_trials(deepcopy=False)):
            if TRIAL not in trial.user_attrs or not wanted <= trial.params.keys() or CANCELLED in trial.user_attrs:
                continue
            setting = self._setting(self._rows.get(trial.user_attrs[TRIAL]))
            if setting is not None:
                if setting in seen or (trial.state == TrialState.RUNNING and setting in settled):
                    continue
                seen.add(setting)
            at_scale[trial.params[SCALE]] += 1
            if at_scale[trial.params[SCALE]] <= proposals.AT_MOST:
                values = None if trial.state == TrialState.RUNNING else tuple(trial.values or failed)
                params = {name: trial.params[name] for name in names}
                look = proposals.Look(
                    num_env_runners=trial.params[SCALE], params=params, values=values, constraints=trial.constraints
                )
                looks.append(look)
        return looks[::-1]

    @staticmethod
    def _setting(row: TrialRow | None) -> tuple[int, str] | None:
        """Return the scale and the digest of a trial of a hold-up study; None for others, whose trials stand alone."""
        return None if row is None or row.stage is None else (row.num_env_runners, row.digest)

    @property
    def _failed(self) -> tuple[float, ...]:
        """What the model is given for a trial that has no values of its own: at most 0, at twice the highest price."""
        if self._spec.search.objective != "return_and_cpu_s":
            told = (trial.values for trial in self._study.get_trials(deepcopy=False) if trial.values)
            return (min([0.0, *(values[0] for values in told)]),)
        prices = [row.summary.get("cpu_s_spent") or 0.0 for row in self._rows.values() if row.ended]
        return 0.0, 2 * max(prices, default=1.0)

    def tell(self, row: TrialRow) -> None:
        """Tell Optuna the end of a trial, once."""
        trial = self._trials.pop(row.trial, None)
        if trial is None:
            return
        for name, value in attributes(row).items():
            trial.set_user_attr(name, value)
        for name, value in constraints_of(self._spec, row).items():
            trial.set_constraint(name, value)
        state, values = self._outcomes.of(row)
        self._study.tell(trial, values, state=state, skip_if_finished=True)


def _open(journal: Path, study_id: str, directions: list[proposals.Direction]) -> optuna.Study:
    """Open the journal as its only user (the study folder is locked) and mend what a kill left in it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with contextlib.suppress(FileNotFoundError):
            # A driver killed while it held the journal's own lock would make us wait for half a minute.
            journal.with_name(journal.name + ".lock").unlink()
        _cut_torn_line(journal)
        storage = JournalStorage(SoleWriterBackend(str(journal)))
        study = optuna.create_study(storage=storage, study_name=study_id, load_if_exists=True, directions=directions)
        study.get_trials(deepcopy=False)
    except OSError as error:
        raise RecordError(
            f"{journal}: must be a file that can be written, and so must the folder, got none ({error.strerror}). "
            "Fix: free some space, check the permissions, or remove what is in the file's place or in that of "
            f"{journal.name}.lock; --resume rebuilds the journal from the records."
        ) from error
    except _DAMAGE as error:
        raise RecordError(
            f"{journal}: must be Optuna's journal, got a damaged file ({type(error).__name__}: {error}). "
            "Fix: remove it; --resume rebuilds it from the records."
        ) from error
    return study


_DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    optuna.exceptions.OptunaError,
)
"""What Optuna raises on lines that it did not write."""


def _cut_torn_line(journal: Path) -> None:
    """Cut off a last line without an end: appending to it would damage the journal for good."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    end = content.rfind(b"\n") + 1
    if end != len(content):
        with journal.open("r+b") as file:
            file.truncate(end)
