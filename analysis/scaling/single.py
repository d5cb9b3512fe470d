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


def amdahl_speed_up(serial_fraction: float, p: float) -> float:
    """Return 1 / (f + (1 - f) / p), the speed-up that a serial fraction allows at p times the resources.

    Args:
        serial_fraction: f, in [0, 1].
        p: How many times the resources, >= 1.

    Raises:
        AnalysisError: An argument is out of range.

    Source:
        Amdahl, AFIPS Spring Joint Computer Conference (1967).
    """
    _check_fraction(serial_fraction)
    if not p >= 1:
        raise AnalysisError(
            where="p",
            rule="must be >= 1",
            got=p,
            fix="Divide the larger number of nodes by the smaller.",
            code="ratio-below-one",
        )
    return 1 / (serial_fraction + (1 - serial_fraction) / p)


def amdahl_limit(serial_fraction: float) -> float:
    """Return 1 / f, the speed-up that no number of processors passes; inf without a serial part.

    Raises:
        AnalysisError: `serial_fraction` is out of [0, 1].
    """
    _check_fraction(serial_fraction)
    return float("inf") if serial_fraction == 0 else 1 / serial_fraction


def unexplained_factor(speed_up: float, p: float) -> float:
    """Return S / p where it is above 1, else 1: what p times the resources cannot account for.

    A lower bound: it grants the resources a perfect speed-up. With a serial fraction f they gave less, and the rest is
    S / `amdahl_speed_up(f, p)`.

    Raises:
        AnalysisError: `speed_up` or `p` is out of range.
    """
    _check(speed_up, p)
    return max(1.0, speed_up / p)


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
    fraction, rest = karp_flatt(speed_up, p), unexplained_factor(speed_up, p)
    start = f"{speed_up:g}x on {p:g}x the {what}, n=1, no interval: Karp-Flatt fraction {fraction:.3f}."
    limit = amdahl_limit(fraction) if fraction >= 0 else None
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
    if not speed_up > 0:
        raise AnalysisError(
            where="speed_up",
            rule="must be > 0",
            got=speed_up,
            fix="Divide the reference's time by this time.",
            code="speed-up-not-positive",
        )
    if not p > 1:
        raise AnalysisError(
            where="p",
            rule="must be > 1",
            got=p,
            fix="Divide the larger number of nodes by the smaller.",
            code="ratio-not-above-one",
        )


def _check_fraction(serial_fraction: float) -> None:
    if not 0 <= serial_fraction <= 1:
        raise AnalysisError(
            where="serial_fraction",
            rule="must lie in [0, 1]",
            got=serial_fraction,
            fix="A negative Karp-Flatt fraction is no serial part; look for what else changed.",
            code="serial-fraction-outside-unit-interval",
        )
