"""What a recorded trial is to Optuna: state, values, parameters, attributes. May import Optuna.

By records alone, so that a journal that was lost, and a storage that follows the records, are told the same as the
journal was when the trial ended.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from study.designs.search.constraints import constraint_attributes, constraints_of
from study.designs.search.distributions import distributions
from study.designs.search.merit import merit
from study.designs.search.proposals import Direction
from study.errors import RecordError
from study.records.ledger import TrialRow
from study.space.parameters import SCALE, Value
from study.space.settings import ITERATIONS
from study.space.spec import StudySpec

TRIAL = "trial"
"""User attribute that holds the number in the plan."""
CANCELLED = "cancelled"
"""User attribute of a trial that was proposed and will not be run."""


class Outcomes:
    """The trials of one study, as Optuna knows them."""

    def __init__(self, spec: StudySpec, rows: Mapping[int, TrialRow]) -> None:
        """Take up a study.

        Args:
            spec: The space.
            rows: Every trial on record, by its number; new ones appear in it as the study goes on.
        """
        self._spec, self._rows = spec, rows
        self.distributions: dict[str, BaseDistribution] = distributions(spec)

    def of(self, row: TrialRow) -> tuple[TrialState, list[float] | None]:
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

    def trial(self, row: TrialRow) -> FrozenTrial:
        """Return an Optuna trial that is whole: ended as on record, or else running with its parameters.

        Raises:
            RecordError: Its proposal does not lie in the space.
        """
        known: dict[str, Value] = {**row.proposed, SCALE: row.num_env_runners}
        if ITERATIONS in self.distributions and row.iterations is not None:
            known[ITERATIONS] = row.iterations
        state, values = self.of(row) if row.ended else (TrialState.RUNNING, None)
        try:
            trial = create_trial(
                state=state,
                values=values,
                params={name: known[name] for name in self.distributions if name in known},
                distributions={name: domain for name, domain in self.distributions.items() if name in known},
                user_attrs={TRIAL: row.trial, "seed": row.seed, "anchor": row.anchor, **attributes(row)},
                system_attrs=constraint_attributes(constraints_of(self._spec, row)),
            )
        except (ValueError, TypeError) as error:
            raise RecordError(
                f"trial {row.trial}: what was proposed must lie in the space, got another value ({error}). "
                "Fix: restore records.jsonl and study.json from a backup."
            ) from error
        trial.datetime_start = datetime.fromtimestamp(row.started)
        if row.ended and row.ended_at is not None:
            trial.datetime_complete = datetime.fromtimestamp(row.ended_at)
        return trial

    def _lower_bound(self, row: TrialRow) -> float:
        """Return the bound after this look: of the numbers up to its own that had ended, whenever it is asked for."""
        from study.statistics import lower_bound, pooled_sd  # SciPy: only hold-up studies need it

        end = row.ended_at or math.inf
        past = [
            each
            for trial, each in sorted(self._rows.items())
            if trial <= row.trial and each.ended and (each.ended_at or 0.0) <= end
        ]
        noise: dict[str, list[float]] = {}
        for each in past:
            if each.stage == "calibrate" and each.iterations is None:
                noise.setdefault(each.digest, []).append(merit(self._spec, each))
        # By seed: a setting that was proposed again on the same one has not been seen once more.
        looks = {
            each.seed: merit(self._spec, each)
            for each in past
            if (each.digest, each.num_env_runners, each.stage) == (row.digest, row.num_env_runners, "search")
        }
        return lower_bound(list(looks.values()), pooled_sd(list(noise.values())))


def attributes(row: TrialRow) -> dict[str, Any]:
    """Return what people want to see of an ended trial beside its value."""
    if not row.ended:
        return {}
    return {"final_return": row.summary.get("final_return")} if row.status == "finished" else {"reason": row.reason}


def directions_of(spec: StudySpec) -> list[Direction]:
    """Return Optuna's directions of the space's objective."""
    return ["maximize", "minimize"] if spec.search.objective == "return_and_cpu_s" else ["maximize"]
