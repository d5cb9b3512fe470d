"""Whether anything but a study would take CPU time or change the clock frequency. Judges facts."""

from study.doctor.finding import Check, Verdict, ok, warn
from study.doctor.surroundings import NodeReport, Surroundings, on_every_node
from study.records.timing import PRESSURE_LIMIT

FOREIGN_CPUS = 0.25
"""CPUs that foreign processes may use: more than a machine's own housekeeping."""
STEAL = 0.01
"""Share of the time that a hypervisor may take."""
STEADY = frozenset(("performance", "userspace"))
SELF_RULED = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers under which `powersave` is not a fixed low frequency: the CPU itself follows the load."""


@on_every_node
def neighbours(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether foreign processes are at work."""
    load = node.facts["load"]
    if load is None:
        return None
    over = f"over {load['sample_s']:.1f} s"
    if load["foreign_cpus"] > FOREIGN_CPUS:
        names = ", ".join(load["foreign"]) or "not visible from here"
        return warn(
            f"other processes use {load['foreign_cpus']:.1f} of {node.facts['cpus']['allowed']} CPUs {over} ({names})",
            "End them, or take an exclusive node: they slow trials down, and the times do not always show it.",
        )
    return ok("quiet: less than " + f"{FOREIGN_CPUS:g} CPUs used by others {over}")


@on_every_node
def steal(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether a hypervisor gives this machine's CPUs to others."""
    load = node.facts["load"]
    if load is None:
        return None
    if load["steal"] > STEAL:
        return warn(
            f"the hypervisor took {load['steal']:.0%} of the CPU time",
            "A shared virtual machine: repeat timings at other hours, or use dedicated hardware.",
        )
    return ok(f"the hypervisor took less than {STEAL:.0%} of the CPU time")


@on_every_node
def pressure(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether the kernel tells how long tasks wait for a CPU: trials that share cores are judged by it."""
    load = node.facts["load"]
    if load is None:
        return None
    if load["pressure"] is None:
        return warn(
            "the kernel does not tell how long tasks wait for a CPU (no /proc/pressure/cpu)",
            "Boot with psi=1. Without it, trials of waiting environments that share cores count as oversubscribed.",
        )
    if load["pressure"] > PRESSURE_LIMIT:
        return warn(
            f"tasks waited for a CPU in {load['pressure']:.0%} of the last ten seconds",
            "Find out who is busy (`top`), and wait or end it.",
        )
    return ok(f"tasks waited for a CPU in less than {PRESSURE_LIMIT:.0%} of the last ten seconds")


@on_every_node
def frequency(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether the clock frequency follows the load."""
    facts = node.facts["frequency"]
    governors = set(facts["governors"])
    if not governors:
        return ok("the clock frequency is not ours to see (a virtual machine)")
    turbo = "; turbo is on: few busy cores run faster than many" if facts["turbo"] else ""
    slow = governors - STEADY
    if facts["driver"].startswith(SELF_RULED):
        slow -= {"powersave"}
    if slow:
        return warn(
            f"CPU frequency governor {', '.join(sorted(slow))}: the clock follows the load{turbo}",
            "`cpupower frequency-set -g performance`, where you may; else leave out the first iterations of trials.",
        )
    return ok(f"CPU frequency governor {', '.join(sorted(governors))}{turbo}")


CHECKS = (
    Check("noise", "neighbours", neighbours),
    Check("noise", "steal", steal),
    Check("noise", "pressure", pressure),
    Check("noise", "frequency", frequency),
)
