"""What a decision may rest on: the trials that have ended, as scores, means and costs of settings. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from study.designs.holdup.phases import holdup_of
from study.designs.search.worth import merit
from study.records.ledger import TrialRow
from study.records.records import SettingsFrozen, StageDecided
from study.records.request import TrialRequest
from study.space.parameters import Value
from study.space.settings import STAGES
from study.space.spec import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a decision: settings kept, trials to run next."""

    requests: Sequence[TrialRequest] = ()
    """The trials that follow."""
    kept: Sequence[str] = ()
    """Digests of the settings that go on, best first."""
    dropped: Sequence[str] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind it, JSON values."""
    frozen: SettingsFrozen | None = None


class Evidence:
    """The trials of a study up to a decision.

    Attributes:
        spec: The space.
        holdup: Its section on stages.
        decisions: The decisions so far.
        settings: Digest -> complete setting, of everything that was run.
        large: The searched scales above the small one: those at which a setting has to hold up.
    """

    def __init__(self, spec: StudySpec, rows: Mapping[int, TrialRow], decisions: Sequence[StageDecided]) -> None:
        """Take the trials, by their numbers, that all have ended."""
        self.spec, self.holdup, self.decisions = spec, holdup_of(spec), decisions
        self._rows = rows
        self.settings: dict[str, dict[str, Value]] = {row.digest: row.rule for row in rows.values()}
        self.large = [scale for scale in spec.scales if scale != self.holdup.small_scale]

    def rows(self, numbers: Iterable[int] | None = None) -> list[TrialRow]:
        """Return the trials with the given numbers that were run; all of them by default."""
        wanted = sorted(self._rows) if numbers is None else numbers
        return [self._rows[number] for number in wanted if number in self._rows]

    def whole(self, stages: Sequence[str] = STAGES) -> Iterator[TrialRow]:
        """Yield the trials of the whole budget, run as the space says, in their order."""
        for row in self.rows():
            if row.variant == "study" and row.iterations is None and row.stage in stages:
                yield row

    def searched(self, scale: int) -> dict[str, float]:
        """Return setting -> mean merit of what was calibrated and searched at a scale.

        A setting that was proposed again on a seed on which it had run says nothing new: one run of them counts.
        """
        merits: dict[str, dict[int, float]] = defaultdict(dict)
        for row in self.whole(("calibrate", "search")):
            if row.num_env_runners == scale:
                merits[row.digest].setdefault(row.seed, merit(self.spec, row))
        return {digest: mean(each.values()) for digest, each in merits.items()}

    def costs(self, scales: Sequence[int]) -> dict[str, float]:
        """Return setting -> mean CPU-seconds of its trials at the given scales."""
        spent: dict[str, list[float]] = defaultdict(list)
        for row in self.whole():
            if row.num_env_runners in scales and (seconds := row.summary.get("cpu_s_spent")) is not None:
                spent[row.digest].append(seconds)
        return {digest: mean(seconds) for digest, seconds in spent.items()}

    def on_rank_seeds(self, digest: str, scale: int) -> dict[int, float]:
        """Return rank seed -> merit of a setting at a scale."""
        return {
            row.seed: merit(self.spec, row)
            for row in self.whole(("race", "stress"))
            if row.digest == digest and row.num_env_runners == scale
        }


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
