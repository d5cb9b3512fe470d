"""What a planned trial is to run: given by the plan, proposed before, or proposed now. May import Optuna.

The records are the only truth: a proposal follows from the space, the trial's place in the plan and the trials on
record. A study that was killed and resumed therefore proposes what it would have proposed without the kill.
"""

from collections import Counter

import optuna

from study.designs.search import proposals
from study.designs.search.outcome import Outcomes, directions_of, distributions, fixed_by
from study.records.ledger import Ledger, TrialRow
from study.records.request import TrialRequest
from study.space.parameters import Value
from study.space.spec import StudySpec


class Proposer:
    """Proposes what the trials of one study run, by its space and its records."""

    def __init__(self, spec: StudySpec, ledger: Ledger) -> None:
        """Take up a study; `ledger` grows meanwhile.

        Raises:
            RecordError: A proposal on record does not lie in the space.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec, self._ledger = spec, ledger
        self._distributions = distributions(spec)
        self._outcomes = Outcomes(spec)
        for row in self._known():
            self._outcomes.trial(row)

    def ask(self, request: TrialRequest) -> tuple[dict[str, Value], int | None]:
        """Return the tuned parameters of a request's trial and their number among the proposals.

        They are those on record, where the trial was asked for before a kill; nothing where it needs no sampler.
        """
        if request.setting is not None:
            return {}, None
        known = self._known()
        earlier = self._ledger.rows.get(request.trial)
        if earlier is not None and earlier.optuna_number is not None:
            return dict(earlier.proposed), earlier.optuna_number
        sampler, fixed = self._spec.search.sampler, fixed_by(request, self._spec)
        tuned = {name: self._distributions[name] for name in self._spec.tuned}
        values = fixed | proposals.propose(
            sampler,
            num_env_runners=request.num_env_runners,
            given={name: value for name, value in fixed.items() if name in tuned},
            space=tuned,
            observations=self._observations(known, list(tuned)) if sampler in proposals.MODELLING else [],
            index=request.index_at_scale,
            seed=self._spec.search.sampler_seed,
            directions=directions_of(self._spec),
        )
        # Through Optuna's form of a value, so that 1 is 1.0 where the parameter is a float.
        proposed = {
            name: tuned[name].to_external_repr(tuned[name].to_internal_repr(value))
            for name, value in values.items()
            if name in tuned
        }
        return proposed, len(known)

    def _known(self) -> list[TrialRow]:
        """Return the trials that the sampler knows, in the order of their proposals."""
        return [row for row in self._ledger.rows.values() if row.optuna_number is not None]

    def _observations(self, known: list[TrialRow], names: list[str]) -> list[proposals.Observation]:
        """Return what is known of the latest trials of each scale, oldest first; the sampler uses no more of them.

        A trial that is to run again counts as running.
        """
        failed = self._value_of_failure(known)
        wanted = set(names)
        cancelled = {trial for decision in self._ledger.decisions for trial in decision.cancelled}
        observations: list[proposals.Observation] = []
        at_scale: Counter[int] = Counter()
        for row in reversed(known):
            if row.trial in cancelled or not row.proposed.keys() >= wanted:
                continue
            at_scale[row.num_env_runners] += 1
            if at_scale[row.num_env_runners] > proposals.AT_MOST:
                continue
            outcome = self._outcomes.of(row) if row.ended else None
            observations.append(
                proposals.Observation(
                    num_env_runners=row.num_env_runners,
                    params={name: row.proposed[name] for name in names},
                    values=None if outcome is None else outcome.values or failed,
                    constraints={} if outcome is None else outcome.constraints,
                )
            )
        return observations[::-1]

    def _value_of_failure(self, known: list[TrialRow]) -> tuple[float, ...]:
        """Return what the model is given for a trial without values: at most 0, at twice the highest price."""
        ended = [row for row in known if row.ended]
        if self._spec.search.objective != "return_and_cpu_s":
            values = (self._outcomes.of(row).values for row in ended)
            return (min([0.0, *(each[0] for each in values if each is not None)]),)
        prices = [row.summary.get("cpu_s_spent") or 0.0 for row in self._ledger.rows.values() if row.ended]
        return 0.0, 2 * max(prices, default=1.0)
