"""The certificate of a hold-up study as JSON values, and its estimates. Reads one file of the study's folder."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.load import StudyData
from analysis.quantity import declare
from study.errors import StudyError
from study.records.folder import StudyFolder
from study.statistics import Estimate

DAMAGE = (AttributeError, LookupError, TypeError, ValueError)
"""What looking into a damaged certificate raises."""


def certificate_of(data: StudyData) -> dict[str, Any] | str:
    """Return the certificate: the written one, else one made from the records; or why there is none."""
    if data.kind != "holdup":
        return (
            "No certificate: this study asks for no setting that holds up. A space with a `holdup` section does: "
            "python run_study.py --space holdup_small.yaml"
        )
    folder = data.folder or StudyFolder(Path(data.source))
    from study.designs.holdup.certificate import make_certificate  # SciPy's, for a second

    try:
        if folder.certificate.exists():
            content: dict[str, Any] = json.loads(folder.certificate.read_text())
            return content
        return make_certificate(folder)
    except (json.JSONDecodeError, RecursionError) as error:
        write = f"python -m study certificate write {shlex.quote(str(folder.path))}"
        return f"No certificate. {folder.certificate} must be JSON, got a damaged file ({error}). Run: {write}"
    except (StudyError, OSError, ValueError) as error:
        return f"No certificate. {error}"


def estimate_of(content: Mapping[str, Any] | None) -> Estimate | None:
    """Return an estimate as it was before it became JSON: an open end is null there."""
    if content is None:
        return None
    ends = {"low": float("-inf"), "high": float("inf")} | {k: v for k, v in content.items() if v is not None}
    return Estimate(**ends)


declare(
    "certificate",
    "solved_last",
    "1",
    "solved",
    "Share of runs at the target at the worst of the last three evaluations.",
)
