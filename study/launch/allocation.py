"""What a scheduler has given to a job. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine of an allocation."""

    name: str
    """As remote commands know it."""
    num_cpus: int | None
    """CPUs that the scheduler has given there; None where nobody says: then the host looks at itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The machines of a job, the head first."""

    hosts: tuple[Host, ...]
    job: str
    """The scheduler's name for it, short enough for a folder."""
    ends_at: float | None
    """When the scheduler will end it, seconds since the epoch; None without a limit."""

    @property
    def head(self) -> Host:
        """The host of Ray's head and of the study's driver."""
        return self.hosts[0]

    @property
    def workers(self) -> tuple[Host, ...]:
        """The other hosts."""
        return self.hosts[1:]


def hosts_of_lines(lines: Iterable[str]) -> tuple[Host, ...]:
    """Return the hosts of a node file that has one line for each CPU, in its order."""
    counts: dict[str, int] = {}
    for line in lines:
        if name := line.strip():
            counts[name] = counts.get(name, 0) + 1
    return tuple(Host(name=name, num_cpus=count) for name, count in counts.items())
