"""What would make a study fail here, or its numbers wrong. `diagnose` asks this machine, or a live Ray.

It changes nothing. Facts are gathered first (`asking`, `study.hosts.probe`), then judged, a module for each theme. A
check that crashes, hangs or cannot read its facts becomes a result that says so. Importing this imports no engine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from study.doctor.results import CheckResult
from study.space.spec import StudySpec

if TYPE_CHECKING:
    from study.doctor.checks import DoctorCheck
    from study.doctor.surroundings import Surroundings

__all__ = ["CheckResult", "diagnose"]


def diagnose(
    *,
    address: str | None = None,
    tracking_uri: str | None = None,
    out: Path = Path("studies"),
    spec: StudySpec | None = None,
) -> list[CheckResult]:
    """Return what was found, one result per check.

    Args:
        address: Ray to join, as of `run`; None for `RAY_ADDRESS` or this machine.
        tracking_uri: MLflow; None for what `run` uses by default.
        out: Folder that holds the studies.
        spec: A space: then its largest trial and its environment are looked at too.
    """
    return list(judge(gather(address=address, tracking_uri=tracking_uri, out=out, spec=spec)))


def gather(*, address: str | None, tracking_uri: str | None, out: Path, spec: StudySpec | None) -> "Surroundings":
    """Return the facts that `judge` rests on; arguments as of `diagnose`."""
    from study.doctor.asking import find_surroundings
    from study.mirrors.tracking_uri import DEFAULT_TRACKING_URI, asked_uri

    uri = asked_uri(tracking_uri) or DEFAULT_TRACKING_URI
    return find_surroundings(address=address, tracking_uri=uri, out=out, spec=spec)


def judge(around: "Surroundings") -> Iterator[CheckResult]:
    """Yield the results, each as soon as it is known."""
    for check in all_checks():
        if (result := check.run(around)) is not None:
            yield result


def all_checks() -> tuple["DoctorCheck", ...]:
    """Return every check, in the order in which they are shown."""
    from study.doctor import fit, nodes, packages, ray, storage, tracking

    themes = (ray, packages, nodes, storage, tracking, fit)
    return tuple(check for theme in themes for check in theme.CHECKS)
