"""Which trials of a study held CPUs beside another one, how many, and for how much of its timed part. Pure.

What they use is not foreign: it is reserved. Only trials that run at the same time are looked at, so that the work
for each trial does not grow with the study.
"""

import math
from collections.abc import Mapping

from study.records.ledger import TrialRow
from study.records.timing import Reserved


class Neighbours:
    """Remembers, for every running trial, which others ran beside it."""

    def __init__(self, rows: Mapping[int, TrialRow]) -> None:
        """Begin a session in which nothing runs.

        Args:
            rows: The trials on record, as they become.
        """
        self._rows = rows
        self._beside: dict[int, list[TrialRow]] = {}

    def began(self, trial: int) -> None:
        """Note that a trial runs beside all that run now; its row must be on record."""
        others = list(self._beside)
        for other in others:
            self._beside[other].append(self._rows[trial])
        self._beside[trial] = [self._rows[other] for other in others]

    def ended(self, trial: int) -> None:
        """Forget a trial's neighbours."""
        self._beside.pop(trial, None)

    def reserved(self, trial: int) -> dict[str, Reserved]:
        """Return, for every machine of a trial, what the study held there during the trial's timed part."""
        row = self._rows[trial]
        begin, end = row.timed_from, row.timed_to
        if begin is None or end is None or end <= begin:
            return {}
        shares = [(other, _overlap(other, begin, end)) for other in self._beside.get(trial, ())]
        result = {}
        for machine, own in row.cpus_per_machine.items():
            beside = [(other, _cpus_on(other, machine) * share) for other, share in shares]
            result[machine] = Reserved(
                num_cpus=own + math.fsum(cpus for _, cpus in beside),
                ended=math.fsum(cpus for other, cpus in beside if (other.ended_at or math.inf) < end),
            )
        return result


def _overlap(row: TrialRow, begin: float, end: float) -> float:
    """Return the share of an interval in which a trial held its CPUs."""
    until = math.inf if row.ended_at is None else row.ended_at
    return max(min(until, end) - max(row.started, begin), 0.0) / (end - begin)


def _cpus_on(row: TrialRow, machine: str) -> int:
    """Return the CPUs of a trial on a machine: one whose processes never came up may have begun them anywhere."""
    return row.cpus_per_machine.get(machine, 0) if row.cpus_per_machine else row.num_cpus
