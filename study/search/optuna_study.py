"""The Optuna study of a study: one Optuna trial per planned trial, reconciled with the records. May import Optuna.

The records are the truth. A planned trial enters Optuna by one atomic write, complete and with its number, so that a
kill at any moment leaves either nothing or a trial that can be found again; it is told only after its end is on record.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from study.errors import RecordError
from study.planning.plan import Slot
from study.search import proposals
from study.search.constraints import constraint_attributes, constraints_of
from study.search.distributions import distributions, fixed_by
from study.search.merit import merit
from study.space.parameters import SCALE, Value
from study.space.spec import StudySpec
from study.tracking.ledger import TrialRow

TRIAL = "trial"
"""User attribute that holds the number in the plan."""


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
        self._spec, self._distributions, self._rows = spec, distributions(spec), rows
        self._study = _open(journal, study_id, directions_of(spec))
        self._trials: dict[int, Trial] = {}
        self._reconcile(rows, journal)

    def _reconcile(self, rows: Mapping[int, TrialRow], journal: Path) -> None:
        seen: set[int] = set()
        for frozen in self._study.get_trials(deepcopy=False):
            number = frozen.user_attrs.get(TRIAL)
            row = rows.get(number) if isinstance(number, int) else None
            ended = row is not None and row.ended
            if not isinstance(number, int) or number in seen:
                if not frozen.state.is_finished():  # nobody's: as RUNNING it would repel the sampler for ever
                    self._study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)
                continue
            seen.add(number)
            if frozen.state.is_finished():
                if not ended:
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
            if row.ended and number not in seen and row.optuna_number is not None:
                self._study.add_trial(self._from_record(row))

    def _from_record(self, row: TrialRow) -> FrozenTrial:
        """Return a finished Optuna trial rebuilt from a record (the journal was lost)."""
        known: dict[str, Value] = {**row.proposed, SCALE: int(row.setting[SCALE])}
        if "iterations" in self._distributions and row.iterations is not None:
            known["iterations"] = row.iterations
        distributions = {name: self._distributions[name] for name in known if name in self._distributions}
        state, values = self._outcome(row)
        return create_trial(
            state=state,
            values=values,
            params={name: known[name] for name in distributions},
            distributions=distributions,
            user_attrs={TRIAL: row.trial, **_attributes(row)},
            system_attrs=constraint_attributes(constraints_of(self._spec, row)),
        )

    def forget(self, trials: Iterable[int]) -> None:
        """Give up trials that will not be run: as RUNNING they would repel the sampler for ever."""
        for number in trials:
            if (trial := self._trials.pop(number, None)) is not None:
                self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def propose(self, slot: Slot) -> tuple[int, dict[str, Value]]:
        """Return Optuna's trial number and all values for `slot`; the same values when it was proposed before."""
        trial = self._trials.get(slot.trial)
        if trial is None:
            values = self._values(slot)
            attributes = {TRIAL: slot.trial, "seed": slot.seed, "anchor": slot.anchor}
            self._study.add_trial(
                create_trial(
                    state=TrialState.RUNNING,
                    params=values,
                    distributions=self._distributions,
                    user_attrs=attributes,
                )
            )
            frozen = self._study.get_trials(deepcopy=False)[-1]
            trial = self._trials[slot.trial] = Trial(self._study, frozen._trial_id)
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
            looks=self._looks(list(tuned)),
            index=slot.index_at_scale,
            seed=self._spec.search.sampler_seed,
            directions=directions_of(self._spec),
        )

    def _looks(self, names: list[str]) -> list[proposals.Look]:
        return [
            proposals.Look(
                num_env_runners=trial.params[SCALE],
                params={name: trial.params[name] for name in names},
                values=None if trial.state == TrialState.RUNNING else tuple(trial.values or self._failed),
                constraints=trial.constraints,
            )
            for trial in self._study.get_trials(deepcopy=False)
            if TRIAL in trial.user_attrs and {SCALE, *names} <= trial.params.keys()
        ]

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
        for name, value in _attributes(row).items():
            trial.set_user_attr(name, value)
        for name, value in constraints_of(self._spec, row).items():
            trial.set_constraint(name, value)
        state, values = self._outcome(row)
        self._study.tell(trial, values, state=state, skip_if_finished=True)

    def _outcome(self, row: TrialRow) -> tuple[TrialState, list[float] | None]:
        """Return what a trial's end is to Optuna: values that are numbers, or a failure; never a silence.

        In a hold-up study the value is a lower confidence bound over the looks at the setting so far, so that a lucky
        first look does not draw the search to it.
        """
        score = row.summary.get("score")
        if row.status != "finished" or score is None or not math.isfinite(score):
            return TrialState.FAIL, None
        value = merit(self._spec, row)
        if row.stage is not None:
            value = self._lower_bound(row)
        if self._spec.search.objective == "return_and_cpu_s":
            return TrialState.COMPLETE, [value, row.summary.get("cpu_s_spent") or 0.0]
        return TrialState.COMPLETE, [value]

    def _lower_bound(self, row: TrialRow) -> float:
        """Return the bound after this look: of the numbers up to its own, so that a rebuilt study is told the same."""
        from analysis.statistics import lower_bound, pooled_sd  # SciPy: only hold-up studies need it

        past = [each for trial, each in sorted(self._rows.items()) if trial <= row.trial and each.ended]
        noise: dict[str, list[float]] = {}
        for each in past:
            if each.stage == "calibrate" and each.iterations is None:
                noise.setdefault(each.digest, []).append(merit(self._spec, each))
        looks = [
            merit(self._spec, each)
            for each in past
            if (each.digest, each.num_env_runners, each.stage) == (row.digest, row.num_env_runners, "search")
        ]
        return lower_bound(looks, pooled_sd(list(noise.values())))


def directions_of(spec: StudySpec) -> list[proposals.Direction]:
    """Return Optuna's directions of the space's objective."""
    return ["maximize", "minimize"] if spec.search.objective == "return_and_cpu_s" else ["maximize"]


def _attributes(row: TrialRow) -> dict[str, Any]:
    if row.status == "finished":
        return {"final_return": row.summary.get("final_return")}
    return {"reason": row.reason}


def _open(journal: Path, study_id: str, directions: list[proposals.Direction]) -> optuna.Study:
    """Open the journal as its only user (the study folder is locked) and mend what a kill left in it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with contextlib.suppress(FileNotFoundError):
        # A driver killed while it held the journal's own lock would make us wait for half a minute.
        journal.with_name(journal.name + ".lock").unlink()
    _cut_torn_line(journal)
    try:
        storage = JournalStorage(JournalFileBackend(str(journal)))
        return optuna.create_study(storage=storage, study_name=study_id, load_if_exists=True, directions=directions)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise RecordError(
            f"{journal}: must be Optuna's journal, got a damaged file ({error}). "
            "Fix: remove it; --resume rebuilds it from the records."
        ) from error


def _cut_torn_line(journal: Path) -> None:
    """Cut off a last line without an end: appending to it would damage the journal for good."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    end = content.rfind(b"\n") + 1
    if end != len(content):
        with journal.open("r+b") as file:
            file.truncate(end)
