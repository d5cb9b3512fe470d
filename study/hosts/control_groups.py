"""The control groups (version 1 or 2) around this process, and reading one small file. Standard library."""

from collections.abc import Iterator
from pathlib import Path


def control_groups(
    controller: str, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[Path]:
    """Yield the folders of the control groups around this process that `controller` limits, innermost first.

    Inside a container the process may be named as the host sees it: then only the root of what is mounted is there.
    """
    for line in read_text(membership).splitlines():
        number, controllers, group = line.split(":", 2)
        unified = number == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        top = next((place for place in (root / "unified", root) if place.is_dir()), root) if unified else None
        top = top or next((place for place in (root / controllers, root / controller) if place.is_dir()), root)
        inner = top / group.lstrip("/")
        while True:
            if inner.is_dir():
                yield inner
            if inner in (top, inner.parent):
                break
            inner = inner.parent


def cpu_quota() -> float | None:
    """Return the CPUs of the tightest quota around this process; None where there is none."""
    quotas = []
    for group in control_groups("cpu"):
        words = read_text(group / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def read_number(file: Path) -> int | None:
    """Return the number in a file; None when there is no such file or it says `max`."""
    try:
        return int(read_text(file))
    except ValueError:
        return None


def read_text(file: Path) -> str:
    """Return the text of a file without blanks around it; empty when it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
