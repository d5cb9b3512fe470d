"""What must be said beside the returns of a study: at its end, in `status`, wherever something is called best. Pure."""

from collections.abc import Iterable, Iterator

from study.records.ledger import TrialRow
from study.space.spec import StudySpec
from study.text import count

AT_THE_FLOOR = 0.05
"""Share of the way from floor to reference below which a trial has learnt nothing: the floor is the mean of random
episodes, around which the means of a few others scatter."""
FEWEST = 2
"""Finished trials from which on it is the study, and not one setting, that learnt nothing."""


def cautions(spec: StudySpec, rows: Iterable[TrialRow]) -> Iterator[str]:
    """Yield a sentence for each reason not to take the returns of finished trials as they stand."""
    if not spec.learns:
        return
    finished = [row for row in rows if row.status == "finished" and row.summary.get("final_return") is not None]
    if cut := [row for row in finished if row.all_cut]:
        yield (
            f"Episodes that never end: in {len(cut)} of {count(len(finished), 'finished trial')} every episode of the "
            f"last evaluation was cut at evaluation.max_episode_steps={spec.evaluation.max_episode_steps}, and its "
            "return is that of an unfinished episode. Fix: raise the limit, or give the environment one of its own."
        )
    # Before 0.12.0 policies that EnvPool trained were judged by EnvPool.
    if len(judges := {row.evaluation_backend or spec.environment.backend for row in finished}) > 1:
        yield (
            "Judged by two implementations: evaluations were played in environments of "
            f"{' and of '.join(sorted(judges))}, whose returns are not to be compared. "
            "Fix: start a new study, with the same packages on every node."
        )
    # Short trials of a hold-up study are for the clock.
    full = [row for row in finished if not row.stage or row.iterations is None]
    shares = [share for row in full if (share := _share(spec, row.summary["final_return"])) is not None]
    if len(shares) >= FEWEST and max(shares) < AT_THE_FLOOR:
        yield (
            f"Nothing was learnt: no return of {count(len(shares), 'finished trial')} is further than "
            f"{AT_THE_FLOOR:.0%} of the way from the floor ({spec.environment.floor:g}) to the reference "
            f"({spec.environment.reference:g}), and to call one best means nothing. "
            "Fix: raise the budget, widen lr and batch, or check the floor: `python -m study evaluate SPACE --random`."
        )


def _share(spec: StudySpec, final_return: float | None) -> float | None:
    """Return how far a return lies on the way from the floor to the reference, not clipped."""
    floor, reference = spec.environment.floor, spec.environment.reference
    if final_return is None or floor is None or reference is None:
        return None
    return (final_return - floor) / (reference - floor)
