"""Efficiency, marginal efficiency and the serial fraction from a speed-up, and what they mean. Imports pure parts."""

from collections.abc import Sequence

import numpy as np

from analysis.scaling.blocks import Logs, contrast, mean_of, scaled, transformed
from study.statistics import Estimate
from study.text import listed

STEADY = 0.05
"""A change of the serial fraction e that moves 1 / E_n = 1 + e (p - 1) by less than this at the largest scale is none
that anybody would act on."""


def efficiency(speed_up: Estimate, *, resources: float, reference: float) -> Estimate:
    """Return S b / r: the speed-up over the growth of the resources, 1 at the reference; may exceed 1, not clipped."""
    return scaled(speed_up, reference / resources)


def serial_fraction(speed_up: float, p: float) -> float:
    """Return the experimentally determined serial fraction (1/S - 1/p) / (1 - 1/p), of Karp and Flatt.

    Constant over p it is a serial part, rising with p an overhead; negative says that S > p, which the added
    processors alone cannot give: the comparison is invalid, or something else changed with them.

    Args:
        speed_up: S, > 0.
        p: How many times the resources, > 1.

    Source:
        Karp and Flatt, Communications of the ACM 33 (1990), equation 1.
    """
    return (1 / speed_up - 1 / p) / (1 - 1 / p)


def karp_flatt(speed_up: Estimate, p: float) -> Estimate | None:
    """Return (1/S - 1/p) / (1 - 1/p), the experimentally determined serial fraction; None where p <= 1.

    It falls as S grows, so the ends of the interval change places; coverage is that of the speed-up.

    Source:
        Karp and Flatt, Communications of the ACM 33 (1990).
    """
    if p <= 1:
        return None
    return transformed(speed_up, lambda value: serial_fraction(value, p), method=f"Karp-Flatt of {speed_up.method}")


def marginal(
    rates: Logs, rates_before: Logs, *, num_cpus: int | None, num_cpus_before: int | None, level: float
) -> Estimate | None:
    """Return d ln X / d ln P between neighbours: 1 when a CPU more gives its full share, 0 when it gives nothing.

    None where the CPUs are not known or did not grow.

    Args:
        rates: Mean ln of env steps per second by block.
        rates_before: The same at the scale before.
        num_cpus: CPUs allocated.
        num_cpus_before: CPUs allocated at the scale before.
        level: Nominal coverage of the interval.
    """
    if num_cpus is None or num_cpus_before is None or num_cpus <= num_cpus_before:
        return None
    growth = float(np.log(num_cpus / num_cpus_before))
    return scaled(contrast((rates, rates_before), (1.0, -1.0), level=level), 1 / growth)


def karp_flatt_trend(times: Sequence[Logs], scales: Sequence[int], *, level: float) -> Estimate | None:
    """Return the serial fraction at the largest scale less that at the smallest above the reference.

    Taken within each block that has all three cells; None below three distinct scales or without such a block.

    Args:
        times: Mean ln of seconds per iteration by block, one mapping per scale, the reference first.
        scales: Environment runners, ascending, in the same order.
        level: Nominal coverage of the interval.
    """
    above = [index for index, scale in enumerate(scales) if scale > scales[0]]
    if len(above) < 2 or scales[above[0]] == scales[above[-1]]:
        return None
    reference, small, large = times[0], times[above[0]], times[above[-1]]
    common = [block for block in reference if block in small and block in large]
    if not common:
        return None

    def fraction(cell: Logs, scale: int, block: object) -> float:
        return serial_fraction(float(np.exp(reference[block] - cell[block])), scale / scales[0])

    differences = [
        fraction(large, scales[above[-1]], block) - fraction(small, scales[above[0]], block) for block in common
    ]
    return mean_of(np.array(differences), level=level, method="paired t")


def reading(fractions: Sequence[tuple[int, Estimate]], trend: Estimate | None, *, reference: int) -> str:
    """Return what the serial fractions of a group say, in a sentence.

    Args:
        fractions: (environment runners, Karp-Flatt fraction), ascending.
        trend: `karp_flatt_trend` of the same group.
        reference: n_ref, environment runners.
    """
    if not fractions:
        return ""
    negative = [scale for scale, fraction in fractions if fraction.high < 0]
    if negative:
        return (
            f"The Karp-Flatt fraction is negative at {listed(negative)} runners: faster than the added runners can "
            "explain, so something else changed too, or a cache began to fit; as a speed-up the comparison is invalid."
        )
    last, fraction = fractions[-1]
    serial = f"{fraction:.3f}"
    if not fraction.has_interval:
        return f"Karp-Flatt fraction {serial} at {last} runners: one block cannot tell a serial part from noise."
    if fraction.low <= 0 <= fraction.high:
        return f"Karp-Flatt fraction {serial} at {last} runners: no serial part is shown, its interval holds 0."
    if trend is None:
        return f"Karp-Flatt fraction {serial} at {last} runners; a trend needs a third scale."
    change = (
        f"{trend.value:+.3f} [{trend.low:+.3f}, {trend.high:+.3f}]" if trend.has_interval else f"{trend.value:+.3f}"
    )
    if trend.has_interval and max(abs(trend.low), abs(trend.high)) * (last / reference - 1) <= STEADY:
        return (
            f"Karp-Flatt fraction {serial} at {last} runners and constant ({change}): a serial part, no growing cost."
        )
    if trend.has_interval and trend.low > 0:
        return f"Karp-Flatt fraction {serial} at {last} runners, rising by {change}: overhead grows with the runners."
    if trend.has_interval and trend.high < 0:
        return (
            f"Karp-Flatt fraction {serial} at {last} runners, falling by {change}: the smallest scales carry a cost "
            "that more runners share, such as an imbalance or a reference that was slowed down."
        )
    return (
        f"Karp-Flatt fraction {serial} at {last} runners; its change over the scales ({change}) tells a serial part "
        "and a growing overhead not apart."
    )
