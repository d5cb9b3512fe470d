"""The certificate of a hold-up study as JSON values, and the estimates in it. Reads one file of the study's folder."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.estimates.settings import arm_in_words, basis_of, small_scale
from analysis.load import StudyData
from analysis.quantity import Row, declare, row
from study.errors import StudyError
from study.records.folder import StudyFolder
from study.space.settings import WINNER, WINNER_RLLIB
from study.statistics import Estimate

CHECKS: Mapping[str, str] = {"score_kept": "score_difference", "steps_saved": "steps_saved"}
"""Rule of the verdict -> the quantity that it judges; the share of solved runs is that of the runs."""
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


def certificate_rows(data: StudyData, content: dict[str, Any] | str) -> list[Row]:
    """Return what the winner is compared by: with the best setting of few runners, and with every baseline.

    Differences are of mean scores at the target scale, the winner's less the other's; the arm is the other one. Without
    a certificate, and of a damaged one, there is no row: T11 and the answer say why.
    """
    try:
        return [] if isinstance(content, str) else [*_rows(content, small_scale(data))]
    except DAMAGE:
        return []


def _rows(content: Mapping[str, Any], small: int | None) -> Iterator[Row]:
    environment, target = str(content["environment"]["id"]), int(content["scales"]["target"])

    def place(name: str, scale: int) -> Row:
        """Return the columns of a comparison; its basis is by the clocks of the arms at this and at the small scale."""
        compared = {scale, int(content["scales"]["small"])}
        arms = [arm for arm in content["arms"].values() if arm["scale"] in compared and arm["variant"] == "study"]
        emulated = any("emulated" in arm["execution"] for arm in arms)
        basis = "emulated" if emulated else basis_of(label for arm in arms for label in arm["timing"])
        arm = arm_in_words(name, small)
        return {"workload": environment, "arm": arm, "num_env_runners": scale, "basis": basis}

    for arm in content["arms"].values():
        if (value := estimate_of(arm["solve_rate"])) is not None:
            yield row("solved_last", value, place(arm["name"], arm["scale"]))
    for winner, verdict in ((WINNER, content["verdict"]), (WINNER_RLLIB, content["rllib"])):
        for check in verdict["checks"].values() if verdict is not None else ():
            rule, _, scale = check["name"].partition("@")
            if rule in CHECKS and (value := estimate_of(check["value"])) is not None:
                yield row(CHECKS[rule], value, place(winner, int(scale)))
    if content["rllib"] is not None and (value := estimate_of(content["rllib"]["difference"])) is not None:
        yield row("engine_difference", value, place(WINNER_RLLIB, target))
    for name, found in content["search"]["rivals"].items():
        if (value := estimate_of(found["difference"])) is not None:
            yield row("score_lead", value, place(name, target))


for _name, _label, _definition in (
    ("score_difference", "score kept", "Mean score of the winner less that of the best small setting."),
    ("solved_last", "solved", "Share of runs at the target at the worst of the last three evaluations."),
    (
        "engine_difference",
        "RLlib's own",
        "Mean score of the winner under RLlib's own engine less that under the study's.",
    ),
    ("score_lead", "lead", "Mean score of the winner less that of a baseline at the same number of runners."),
    ("steps_saved", "steps saved", "Env steps to the target of the baseline over those of the winner."),
):
    declare("certificate", _name, "1", _label, _definition)
