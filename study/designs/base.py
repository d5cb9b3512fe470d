"""The interface of a kind of study, and of what steers its sessions.

No other part of `study/` tests for a kind, but commands that are for one kind alone.

A new kind of study is a class of its own like `Design` with an entry in `DESIGNS` (`study.designs.registry`) and its
name in `study.space.spec`; its trials are `TrialRequest`s, and what they need is a `Plan`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from study.machine.shape import ClusterShape
from study.planning import Plan, TrialKind, TrialNeeds
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow
from study.records.records import Record, StageDecided, TrialRequest, TrialStarted, digest_of
from study.space.parameters import Value
from study.space.sections import LEARNERS
from study.space.settings import fitted, rounded
from study.space.spec import Execution, StudySpec
from study.text import count


class Course:
    """What is decided when trials of a session end. As it is, nothing: all trials are known.

    A kind of study whose later trials depend on the earlier ones overrides it.
    """

    decides = False
    """Whether trials follow from decisions on earlier ones."""

    @property
    def phase_name(self) -> str:
        """What the study is at, for people; empty where it has no phases, or has passed the last."""
        return ""

    @property
    def is_due(self) -> bool:
        """Whether a decision follows once the current trials have ended."""
        return False

    def decide(self) -> list[TrialRequest]:
        """Record the decision that is due, and return the trials that follow from it."""
        raise NotImplementedError

    def how_it_ended(self) -> tuple[str, str]:
        """Return reason and detail of a session that has nothing left to run."""
        return "complete", ""

    def check(self, started: TrialStarted) -> None:
        """Refuse a trial that the rules of the study forbid.

        Raises:
            RecordError: It must not run.
        """


class Design(Protocol):
    """A kind of study. An explicit subclass inherits the answers that most kinds share."""

    name: str
    """As `StudySpec.design` gives it."""
    stages: tuple[str, ...] = ()
    """Stages of the study, in their order; a session can be ended after each."""

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the trials that are known after these decisions, in their order, numbered from 0."""

    def kinds(self, spec: StudySpec) -> Sequence[TrialKind]:
        """Return the kinds of trials that the study has, with the number of trials of each."""

    def plan(self, spec: StudySpec, cluster: ClusterShape, decisions: Sequence[StageDecided] = ()) -> Plan:
        """Return what the study will run on a cluster, and what that needs.

        Raises:
            ClusterError: A trial can never fit; names the scale, what it needs, what there is, and the ways out.
        """
        kinds = tuple(TrialNeeds.of(kind, cluster) for kind in self.kinds(spec))
        return Plan(requests=self.requests(spec, decisions), kinds=kinds, cluster=cluster)

    def course(
        self,
        spec: StudySpec,
        ledger: Ledger,
        append: Callable[[Record], Any],
        until: str | None = None,
    ) -> Course:
        """Return what steers a session.

        `append` writes a record and applies it to the ledger; `until` is the last of `stages` to run, None runs all.
        """
        return Course()

    def certify(self, folder: StudyFolder) -> Mapping[str, Any] | None:
        """Write the certificate of a complete study; None where the kind has none.

        Raises:
            RecordError: The records do not allow one.
        """
        return None

    def final_trials(self, spec: StudySpec, ledger: Ledger, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the finished trials that the best policy is picked from."""
        return rows

    def words_of(self, row: TrialRow) -> str:
        """Return in words what a trial runs: that by which a person tells it from the others."""
        lr = f", lr {row.setting['lr']:.2g}" if "lr" in row.setting else ""  # a script may have a schedule
        return f"{count(row.num_env_runners, 'runner')}, batch {row.setting['train_batch_size']}{lr}, seed {row.seed}"


def start_of(
    spec: StudySpec,
    request: TrialRequest,
    proposed: Mapping[str, Value],
    optuna_number: int | None,
    *,
    attempt: int,
    num_cpus: int,
    execution: Execution,
) -> TrialStarted:
    """Return the record of the start of a trial, with RLlib's parameters, and of a stage the complete setting too.

    `proposed` and `optuna_number` are the sampler's: tuned parameters, and the number of the proposal from 0; nothing
    and None where the request has a setting.
    """
    rule = dict(request.setting or rounded(spec, proposed, request.num_env_runners))
    setting = fitted(spec, rule, request.num_env_runners)
    if request.setting is None and request.stage is None:
        rule = {}
    if request.num_learners is not None:
        setting[LEARNERS] = request.num_learners
    return TrialStarted(
        trial=request.trial,
        attempt=attempt,
        seed=request.seed,
        setting=setting,
        proposed=dict(proposed),
        iterations=request.iterations,
        anchor=request.name,
        optuna_number=optuna_number,
        num_cpus=num_cpus,
        execution=execution,
        stage=request.stage,
        rule=rule,
        digest=digest_of(rule) if rule else "",
        variant=request.variant,
        first_episode=request.first_episode,
    )
