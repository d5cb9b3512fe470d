"""What a single published number can and cannot say: no runs, no interval. Imports `study.errors` only."""

from dataclasses import dataclass

from study.errors import AnalysisError


def karp_flatt(speed_up: float, p: float) -> float:
    """Return the experimentally determined serial fraction (1/S - 1/p) / (1 - 1/p).

    Constant over p it is a serial part, rising with p an overhead; negative says that S > p, which the added
    processors alone cannot give: the comparison is invalid, or something else changed with them.

    Args:
        speed_up: S, > 0.
        p: How many times the resources, > 1.

    Raises:
        AnalysisError: `speed_up` or `p` is out of range.

    Source:
        Karp and Flatt, Communications of the ACM 33 (1990), equation 1.
    """
    _check(speed_up, p)
    return (1 / speed_up - 1 / p) / (1 - 1 / p)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A published speed-up and what follows from it alone."""

    speed_up: float
    p: float
    karp_flatt: float
    unexplained_factor: float
    """At least this factor is not the added resources; 1 where they could have done it all."""
    limit: float | None
    """Amdahl's limit relative to the reference; None where the fraction is negative."""
    sentence: str


def audit(speed_up: float, p: float, *, what: str = "nodes") -> Claim:
    """Return what a published speed-up on p times the resources says, without its runs.

    Args:
        speed_up: S, > 0.
        p: How many times the resources, > 1.
        what: The resource, in the plural.

    Raises:
        AnalysisError: `speed_up` or `p` is out of range.
    """
    fraction = karp_flatt(speed_up, p)
    # A lower bound: it grants the resources a perfect speed-up.
    rest = max(1.0, speed_up / p)
    start = f"{speed_up:g}x on {p:g}x the {what}, n=1, no interval: Karp-Flatt fraction {fraction:.3f}."
    limit = None if fraction < 0 else 1 / fraction if fraction > 0 else float("inf")
    if limit is None:
        sentence = (
            f"{start} It is negative: the {what} can give {p:g}x at most, so at least {rest:.2f}x is not the {what}."
        )
    elif fraction == 0:
        sentence = f"{start} Ideal; one pair of runs cannot tell it from a little less or more."
    else:
        sentence = f"{start} If it stayed constant, no number of {what} would give more than {limit:.1f}x."
    return Claim(speed_up=speed_up, p=p, karp_flatt=fraction, unexplained_factor=rest, limit=limit, sentence=sentence)


def _check(speed_up: float, p: float) -> None:
    rules = (
        ("speed_up", speed_up, 0, "Divide the reference's time by this time.", "speed-up-not-positive"),
        ("p", p, 1, "Divide the larger number of nodes by the smaller.", "ratio-not-above-one"),
    )
    for name, value, least, fix, code in rules:
        if not value > least:
            raise AnalysisError(where=name, rule=f"must be > {least}", got=value, fix=fix, code=code)
