"""Return against cost: the trials that no other trial beats in both. Pure."""

from collections.abc import Iterable

from study.records.ledger import TrialRow


def pareto_front(rows: Iterable[TrialRow]) -> dict[int, list[TrialRow]]:
    """Return scale -> its finished trials that no other one beats in score and CPU-seconds, the cheapest first."""
    by_scale: dict[int, list[TrialRow]] = {}
    for row in rows:
        if row.status == "finished" and row.iterations is None and row.variant == "study":
            by_scale.setdefault(row.num_env_runners, []).append(row)
    return {scale: _front(here) for scale, here in sorted(by_scale.items())}


def _front(rows: Iterable[TrialRow]) -> list[TrialRow]:
    front: list[TrialRow] = []
    for row in sorted(rows, key=lambda row: (_cost(row), -_score(row), row.trial)):
        if not front or _score(row) > _score(front[-1]):
            front.append(row)
    return front


def _score(row: TrialRow) -> float:
    return row.summary.get("score") or 0.0


def _cost(row: TrialRow) -> float:
    return row.summary.get("cpu_s_spent") or 0.0
