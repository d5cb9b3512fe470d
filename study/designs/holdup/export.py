"""The winner of a hold-up study for use elsewhere: a plain RLlib script, and a space file. Text; imports no engine."""

from collections.abc import Iterator, Mapping
from typing import Any

from study.designs.holdup.certificate import make_certificate
from study.designs.holdup.page import estimate
from study.engine import OWN
from study.exporting.script import plain_script, space_file
from study.records.folder import StudyFolder
from study.space.settings import WINNER, WINNER_RLLIB, fitted

SEEDS = (1, 2, 3)
"""Of the space file's trials."""


def export_python(folder: StudyFolder, scale: int) -> str:
    """Return a script that trains the winner at a scale with RLlib alone.

    Args:
        folder: A confirmed hold-up study.
        scale: Environment runners, at least 1; one that was not confirmed is said to be so.

    Raises:
        RecordError: The study has no certificate yet, or its records break a rule.
        AnalysisError: The training needs more than Gymnasium and RLlib.
    """
    content, spec = make_certificate(folder), folder.identity().parse()
    setting = fitted(spec, content["winner"]["rule"], scale)
    return plain_script(spec, setting, header=_header(content, scale), iterations=None)


def export_yaml(folder: StudyFolder, scale: int) -> str:
    """Return a space file that trains the winner at a scale; as `export_python` else."""
    content, spec = make_certificate(folder), folder.identity().parse()
    setting = fitted(spec, content["winner"]["rule"], scale)
    description = f"The winner of the hold-up study {content['study']['name']} at {scale} environment runners"
    header = _header(content, scale)
    return space_file(spec, setting, header=header, description=description, seeds=SEEDS)


def _header(content: Mapping[str, Any], scale: int) -> Iterator[str]:
    """Yield what a reader must know of where the numbers come from."""

    def found(arm: Mapping[str, Any]) -> str:
        return f"score {estimate(arm['score'], 3)}, solved {arm['solved']} of {arm['n']}"

    study, arms, scales = content["study"], content["arms"], content["scales"]
    confirmed = sorted({scales["target"], scales["small"], *scales["unseen"]})
    yield f"The winner of the hold-up study '{study['name']}' ({study['id']}) at {scale} environment runners."
    yield f"Setting {content['winner']['digest']}, space {study['space_digest']}."
    yield f"Verdict at {scales['target']} environment runners: {content['sentence']}."
    yield "At every scale: " + ", ".join(f"{name}: {value}" for name, value in content["winner"]["rule"].items())
    if scale not in confirmed:
        shown = ", ".join(map(str, confirmed))
        yield f"WARNING: this setting was not confirmed at {scale} environment runners, only at {shown}."
    for name, engine in ((WINNER, content["engine"]), (WINNER_RLLIB, OWN)):
        if arm := arms.get(f"{name}@{scale}"):
            yield f"Confirmed at {scale} under {engine}: {found(arm)} test seeds."
