"""What a trial reports, from plain fields with their `kind`: for tests of what the driver makes of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from study.driver.conductor import Conductor
from study.hosts.load import NodeLoad
from study.records.records import Evaluation, Iteration
from study.trial.messages import BuiltTrial, TrialResult

Content = Mapping[str, Any]


def value_of(content: Content, *, trial: int, attempt: int) -> BuiltTrial | Iteration | Evaluation:
    """Return the value that a trial would report."""
    fields = {name: value for name, value in content.items() if name != "kind"}
    if content["kind"] == "trial_built":
        return BuiltTrial(**{"placement": [], **fields})
    kind = {"iteration": Iteration, "evaluation": Evaluation}[content["kind"]]
    return kind(**{**fields, "trial": trial, "attempt": attempt})


def report(conductor: Conductor, trial: int, contents: Sequence[Content], *, progress: float) -> None:
    """Let a conductor hear of it."""
    attempt = conductor.ledger.rows[trial].attempt
    values = [value_of(content, trial=trial, attempt=attempt) for content in contents]
    conductor.report(trial, values, progress=progress)


def packed(
    contents: Sequence[Content],
    *,
    trial: int,
    attempt: int,
    progress: float,
    done: bool,
    policy: bytes | None,
    loads: Sequence[Content] = (),
) -> dict[str, Any]:
    """Return it as Tune gets it."""
    return TrialResult(
        records=tuple(value_of(content, trial=trial, attempt=attempt) for content in contents),
        progress=progress,
        done=done,
        policy=policy,
        node_loads=tuple(NodeLoad(**load) for load in loads),
    ).packed()
