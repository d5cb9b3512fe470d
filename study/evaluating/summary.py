"""What the episodes of one policy came to: mean with its interval, spread, solved share. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from statistics import median
from typing import Any

from study.statistics import Estimate, mean_interval, rate_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The episodes of one policy.

    Attributes:
        returns: Undiscounted return of each episode, in the order of the seeds.
        mean: With Student's 95 % interval over episodes: about this one policy, not about another training.
        median: Of the returns.
        solved: Share of episodes at or above the target, with its interval; None where there is no target.
        target: Return from which an episode counts as solved.
        num_cut: Episodes that did not end and were cut.
    """

    returns: tuple[float, ...]
    mean: Estimate
    median: float
    solved: Estimate | None
    target: float | None
    num_cut: int

    @property
    def num_solved(self) -> int:
        """Episodes at or above the target."""
        return sum(self.target is not None and value >= self.target for value in self.returns)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; an interval that nobody knows is null."""
        return {
            "n": len(self.returns),
            "mean": _estimate(self.mean),
            "median": self.median,
            "min": min(self.returns),
            "max": max(self.returns),
            "target": self.target,
            "num_solved": self.num_solved if self.target is not None else None,
            "solved": None if self.solved is None else _estimate(self.solved),
            "num_cut": self.num_cut,
            "returns": list(self.returns),
        }


def summarise(returns: Sequence[float], *, num_cut: int, target: float | None) -> Summary:
    """Return what the episodes of one policy came to.

    Args:
        returns: Undiscounted return of each episode, at least one, finite.
        num_cut: Episodes that were cut.
        target: Return from which an episode counts as solved, if the space says one.
    """
    solved = None
    if target is not None:
        solved = rate_interval(sum(value >= target for value in returns), len(returns))
    return Summary(
        returns=tuple(returns),
        mean=mean_interval(returns),
        median=float(median(returns)),
        solved=solved,
        target=target,
        num_cut=num_cut,
    )


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {name: None if value in (-inf, inf) else value for name, value in asdict(estimate).items()}
