"""What must be said beside the returns of a study: at its end, in `status`, wherever something is called best."""

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
    floor, reference = spec.environment.floor, spec.environment.reference
    # Short trials of a hold-up study are for the clock.
    returns = [row.summary["final_return"] or 0.0 for row in finished if not row.stage or row.iterations is None]
    if floor is None or reference is None or len(returns) < FEWEST:
        return
    if max((value - floor) / (reference - floor) for value in returns) < AT_THE_FLOOR:
        yield (
            f"Nothing was learnt: no return of {count(len(returns), 'finished trial')} is further than "
            f"{AT_THE_FLOOR:.0%} of the way from the floor ({floor:g}) to the reference ({reference:g}), and to call "
            "one best means nothing. Fix: raise the budget, widen lr and batch, or check the floor with "
            "`python -m study evaluate SPACE --random`."
        )
