"""What would make a study fail or lie here: `diagnose` asks this machine, or a live Ray, and changes nothing.

Facts are gathered first (`asking`, `probe`), then judged, a module for each theme. A check that crashes, hangs or
cannot read its facts becomes a finding that says so. Importing this imports no engine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from study.doctor.finding import Check, Finding, Verdict, refused
from study.errors import StudyError
from study.space.spec import StudySpec

if TYPE_CHECKING:
    from study.doctor.surroundings import Surroundings

__all__ = ["Finding", "diagnose"]

TIMEOUT_S = 60.0
"""How long one check may take: a network file system that is away answers never."""


def diagnose(
    *,
    address: str | None = None,
    tracking_uri: str | None = None,
    out: Path = Path("studies"),
    spec: StudySpec | None = None,
) -> list[Finding]:
    """Return what was found, one line per check.

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


def judge(around: "Surroundings") -> Iterator[Finding]:
    """Yield the findings, each as soon as it is known."""
    for check in all_checks():
        verdict = _guarded(check, around)
        if verdict is not None:
            yield Finding(
                theme=check.theme, check=check.name, level=verdict.level, found=verdict.found, fix=verdict.fix
            )


def all_checks() -> tuple[Check, ...]:
    """Return every check, in the order in which they are shown."""
    from study.doctor import fit, limits, nodes, noise, packages, ray, storage, tracking

    themes = (ray, packages, nodes, limits, noise, storage, tracking, fit)
    return tuple(check for theme in themes for check in theme.CHECKS)


def _guarded(check: Check, around: "Surroundings") -> Verdict | None:
    """Run one check: whatever happens becomes a verdict."""
    from study.doctor.surroundings import crashed
    from study.trial.deadline import within

    slow = f"no answer within {TIMEOUT_S:.0f} s. Fix: look at what it asks by hand."
    try:
        return within(TIMEOUT_S, lambda: check.look(around), otherwise=slow)
    except StudyError as error:
        return refused(error)
    except Exception as error:  # noqa: BLE001 (a check that crashes is a finding)
        return crashed(error, around.here, *around.nodes)
