"""A hold-up study: stages that choose a setting, freeze it and judge it on seeds that it was not chosen by.

`HoldUp` is the kind of study, `StageKeeper` steers a session of one: it records decisions, guards the test seeds and
keeps the budget. The decisions are functions of the records, in `stages.py`.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from study.designs.base import Course, Design
from study.designs.holdup.known import CostModel, holdup_of, mean
from study.designs.holdup.stages import (
    STAGES,
    Stage,
    cancelled_by,
    check_version,
    current,
    decide,
    expected_trials,
    num_later,
    requests_of,
    stage_of,
)
from study.errors import ClusterError, RecordError
from study.machine.shape import ClusterShape
from study.planning.guess import GUESS_FACTOR
from study.planning.needs import check_fit, execution_of, label_at_start, num_cpus
from study.planning.plan import Plan, TrialNeeds, check_objective, total_hours, trial_needs
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow
from study.records.records import Record, StageDecided, TrialStarted
from study.records.request import TrialRequest, numbered
from study.space.parameters import Value
from study.space.sections import HoldUpSpec
from study.space.settings import Variant, resolve, spec_of
from study.space.spec import StudySpec
from study.text import cpu_hours as in_words

HOPELESS = 0.5
"""Share of the time that the later stages need. A session that has less left cannot finish them: it does not cut its
search short for them, and a resume goes on with the search."""


class HoldUp(Design):
    """Whether a setting of a small scale holds up at a large one."""

    name = "holdup"

    @property
    def stages(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the stages, in their order."""
        return tuple(STAGES)

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the trials that the stages have asked for so far."""
        return numbered(requests_of(spec, decisions))

    def plan(self, spec: StudySpec, cluster: ClusterShape, decisions: Sequence[StageDecided] = ()) -> Plan:
        """Return the trials so far, and what all of them need: their sizes are known before their settings are."""
        check_objective(spec, cluster, spec.scales)
        holdup, why_not = holdup_of(spec), why_not_measured(spec, cluster)
        counts = Counter({scale: 0 for scale in (*spec.scales, *holdup.unseen_scales)})
        others: dict[tuple[int, Variant], TrialNeeds] = {}
        left_out = 0
        for _, scale, variant, number in expected_trials(spec):
            if variant == "study":
                counts[scale] += number
            elif variant == "measured" and why_not:
                left_out += number
            else:
                limit = holdup.measure.iterations if variant == "measured" and holdup.measure else None
                own = spec_of(spec, variant)
                others[scale, variant] = trial_needs(own, scale, cluster, num_trials=number, iterations=limit)
        scales = tuple(trial_needs(spec, scale, cluster, num_trials=number) for scale, number in sorted(counts.items()))
        self._check_budget(spec, next(each for each in scales if each.num_env_runners == holdup.target_scale), cluster)
        most = sum(number for *_, number in expected_trials(spec))
        return Plan(
            requests=self.requests(spec, decisions),
            scales=scales,
            variants=others,
            cluster=cluster,
            num_trials=most - left_out,
            hours=total_hours([*scales, *others.values()], cluster),
            left_out=f"the stage measure ({left_out} of up to {most} trials): {why_not}" if left_out else "",
        )

    def _check_budget(self, spec: StudySpec, target: TrialNeeds, cluster: ClusterShape) -> None:
        """Refuse a budget that, by a guess, is far too small for the smallest search and the stages after it."""
        holdup = holdup_of(spec)
        least = num_later(spec) + holdup.race.num_settings + 1
        hours = least * target.hours * min(target.num_cpus, cluster.capacity)
        if holdup.cpu_hours is not None and holdup.cpu_hours < hours / GUESS_FACTOR:
            why = f"they take about {in_words(hours)}, by a guess good to a factor of three"
            fix = f"Set it to {hours:.1f} or more, or lower the sizes of the stages."
            raise too_few_cpu_hours(holdup, why, fix)

    def course(
        self,
        spec: StudySpec,
        plan: Plan,
        ledger: Ledger,
        append: Callable[[Record], Any],
        *,
        until: str | None = None,
        announce: Callable[[str], None] = lambda text: None,
    ) -> "StageKeeper":
        """Return what takes and records the decisions of the stages."""
        return StageKeeper(spec, plan, ledger, append, until=until, announce=announce)

    def num_cpus(self, spec: StudySpec, cluster: ClusterShape) -> int:
        """Return the CPUs of the largest trial of any stage, but of a clock that has no cores to be measured on."""
        holdup = holdup_of(spec)
        wanted: list[tuple[int, Variant]] = [(scale, "study") for scale in (*spec.scales, *holdup.unseen_scales)]
        wanted += [(scale, variant) for _, scale, variant, _ in expected_trials(spec) if variant == "stock"]
        if holdup.measure is not None and holdup.measure.step_wait_ms > 0:
            wanted.append((max(holdup.measure.scales), "measured"))  # runners that wait share the cores
        specs = ((spec_of(spec, variant), scale) for scale, variant in wanted)
        return max(num_cpus(own, scale, execution_of(own, scale, cluster)) for own, scale in specs)

    def replicate(self, spec: StudySpec, number: int) -> list[str]:
        """Return the overrides that move every set of seeds by as much, so that they stay apart."""
        sets = {name: getattr(holdup_of(spec), name) for name in ("tune_seeds", "rank_seeds", "test_seeds")}
        span = max(each.first + each.count for each in sets.values()) - min(each.first for each in sets.values())
        moved = {name: f"{{first: {each.first + number * span}, count: {each.count}}}" for name, each in sets.items()}
        sampler_seed = spec.search.sampler_seed + number
        return [f"search.sampler_seed={sampler_seed}", *(f"holdup.{name}={seeds}" for name, seeds in moved.items())]

    def certify(self, folder: StudyFolder) -> dict[str, Any]:
        """Write the certificate, and return it."""
        from study.designs.holdup.certificate import write_certificate

        return write_certificate(folder)

    def final_trials(self, spec: StudySpec, ledger: Ledger, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the winner's confirmations at the target scale, once there are any."""
        if ledger.frozen is None:
            return rows
        wanted = "confirm", ledger.frozen.winner, "study", holdup_of(spec).target_scale
        return [row for row in rows if (row.stage, row.digest, row.variant, row.num_env_runners) == wanted] or rows


def why_not_measured(spec: StudySpec, cluster: ClusterShape) -> str:
    """Return why the clock cannot be measured on this cluster; empty when it can."""
    measure = holdup_of(spec).measure
    if measure is None:
        return "the space has no holdup.measure"
    real, largest = spec_of(spec, "measured"), max(measure.scales)
    try:
        check_fit(real, largest, cluster)
    except ClusterError as error:
        return error.problem.rstrip(".")
    label = label_at_start(real, cluster, num_env_runners=largest, execution="real")
    return "" if label.timing == "measured" else label.reason


def too_few_cpu_hours(holdup: HoldUpSpec, why: str, fix: str) -> ClusterError:
    """Return the refusal of a budget that cannot pay for the smallest search and the stages after it."""
    return ClusterError(
        where="holdup.cpu_hours",
        rule="must pay for the smallest search, race, stress and confirmation",
        got=f"{holdup.cpu_hours:g}; {why}",
        fix=fix,
    )


class StageKeeper(Course):
    """Keeps a session to the protocol. For the methods see `Course`."""

    decides = True

    def __init__(
        self,
        spec: StudySpec,
        plan: Plan,
        ledger: Ledger,
        append: Callable[[Record], Any],
        *,
        until: str | None = None,
        announce: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Take up a study where its records end; for the arguments see `Design.course`.

        Raises:
            RecordError: Its decisions are of another version of the protocol.
        """
        check_version(ledger.decisions)
        self._spec, self._holdup = spec, holdup_of(spec)
        self._plan, self._ledger, self._append = plan, ledger, append
        self._until, self._announce = until, announce

    @property
    def cancelled(self) -> set[int]:
        """Trials that were asked for and are not run."""
        return cancelled_by(self._ledger.decisions)

    @property
    def _current(self) -> tuple[Stage, str] | None:
        return current(self._holdup, self._ledger.decisions)

    @property
    def phase_name(self) -> str:
        """What runs now; empty at the end of the protocol."""
        return self._current[1] if self._current else ""

    @property
    def is_due(self) -> bool:
        """Whether a decision follows: not at the end, nor where the session is to end before the next stage."""
        stages, now = list(STAGES), self._current
        return now is not None and (self._until is None or stages.index(now[0].name) <= stages.index(self._until))

    def how_it_ended(self) -> tuple[str, str]:
        """Return reason and detail of a session that has nothing left to run."""
        if self._current is None:
            return "complete", ""
        return "until", f"the stages up to {self._until} are complete, {self._current[0].name} comes next"

    def decide(self, left: Sequence[int], reason: str) -> list[TrialRequest]:
        """Record the decision that closes the current phase, and return the trials that follow from it."""
        decisions = self._ledger.decisions
        first = len(requests_of(self._spec, decisions))
        decision, frozen = decide(self._spec, self._ledger.rows, decisions, cancelled=left, reason=reason)
        if frozen is not None and self._ledger.frozen is None:
            self._append(frozen)
        self._append(decision)
        if frozen is not None:
            self._announce(f"Settings frozen before the first test seed: winner {frozen.winner}.")
        return list(numbered(requests_of(self._spec, decisions))[first:])

    def check(self, started: TrialStarted) -> None:
        """Refuse a test seed for a setting that is not frozen: what it was chosen by must never judge it.

        Raises:
            RecordError: The seed belongs to the confirmation, and the setting is not on record as frozen; or the trial
                would play evaluation episodes of the confirmation that are not its own.
        """
        stage, frozen, first = stage_of(started.stage), self._ledger.frozen, started.first_episode
        broken = ""
        if started.seed in self._holdup.test_seeds.seeds:
            known = frozen is not None and (not stage.judges or started.digest in frozen.settings)
            if stage.seeds != "test_seeds" or not known:
                broken = f"test seed {started.seed} is for settings that are frozen"
        size = self._spec.evaluation.episodes
        others = (row.first_episode for row in self._ledger.rows.values() if row.trial != started.trial)
        if not stage.judges and first != 0:
            broken = "only runs of the confirmation play other episodes than the first ones"
        elif stage.judges and any(abs(first - each) < size for each in others):
            broken = "a run of the confirmation plays episodes that no other trial plays"
        if broken:
            got = f"{started.digest} in stage {started.stage}, episodes {first} to {first + size - 1}"
            fix = "This is a fault of this program; please report it."
            raise RecordError(where=f"trial {started.trial}", rule=broken, got=got, fix=fix)

    def predicted_cpu_s(self, request: TrialRequest, setting: Mapping[str, Value]) -> float | None:
        """Return what the cost model of the first decision says a whole trial will take; None where it says nothing."""
        decisions, steps = self._ledger.decisions, self._spec.budget.env_steps
        fitted = decisions[0].evidence.get("cost_model") if decisions else None
        if fitted is None or steps is None or request.variant != "study" or request.iterations is not None:
            return None
        return CostModel(**fitted).predict(setting, steps)

    def share_of_usual(self, request: TrialRequest) -> float:
        """Return how much longer than usual a trial should take, by the cost model; 1 where it cannot tell."""
        usual = self._usual_cpu_s()
        if request.setting is None or usual <= 0:
            return 1.0
        return (self.predicted_cpu_s(request, resolve(request.setting, request.num_env_runners)) or usual) / usual

    # --- the budget --------------------------------------------------------------------------------------------

    def why_skip(self, request: TrialRequest, *, num_running: int, left_s: float | None) -> str:
        """Return why not to run a trial: the clock needs cores, and the search leaves money and time for what follows.

        The search goes on until race and small scale have settings to choose from. Where twice as many trials do not
        come to enough settings, the space has no more.
        """
        if request.variant == "measured" and (request.num_env_runners, request.variant) not in self._plan.variants:
            return why_not_measured(self._spec, self._plan.cluster)
        if not stage_of(request.stage).is_shortened:
            return ""
        ended = [row for row in self._ledger.rows.values() if row.stage == request.stage and row.ended]
        at_small = any(row.num_env_runners == self._holdup.small_scale for row in ended)
        settings, wanted = {row.digest for row in ended}, self._holdup.race.num_settings
        if not at_small or (len(settings) < wanted and len(ended) < 2 * wanted):
            return ""
        return self._too_expensive(num_running) or self._too_late(request, num_running, left_s)

    def _too_expensive(self, num_running: int) -> str:
        if self._holdup.cpu_hours is None:
            return ""
        spent, each = self._spent(), self._usual_cpu_s()
        later = num_later(self._spec) * each
        if spent + (num_running + 1) * each + later <= self._holdup.cpu_hours * 3600:
            return ""
        return (
            f"of {self._holdup.cpu_hours:g} CPU-hours {spent / 3600:.2f} are spent, and {later / 3600:.2f} are kept "
            "for race, stress and confirmation"
        )

    def _too_late(self, request: TrialRequest, num_running: int, left_s: float | None) -> str:
        if left_s is None:
            return ""
        each = mean(seconds for row in self._whole() if (seconds := row.duration_s) is not None)
        side_by_side = max(self._plan.cluster.capacity // self._plan.needs(request).num_cpus, 1)
        later = num_later(self._spec) * each / side_by_side
        if left_s >= later + (num_running + 1) * each / side_by_side or left_s < HOPELESS * later:
            return ""
        return f"{left_s / 60:.0f} min are left, and race, stress and confirmation need {later / 60:.0f}"

    def shortfall(self, following: TrialRequest) -> str:
        """Return why the budget cannot pay for the confirmation, by what trials have cost; empty when it can.

        It is checked before the search: once it has begun to search, a study goes on, also after a kill.
        """
        begun = any(stage_of(row.stage).is_shortened for row in self._ledger.rows.values())
        if begun or following.stage == "calibrate" or self._holdup.cpu_hours is None or not self._whole():
            return ""
        each = self._usual_cpu_s()
        enough = (self._spent() + (self._holdup.race.num_settings + num_later(self._spec)) * each) / 3600
        if enough <= self._holdup.cpu_hours:
            return ""
        wanted = math.ceil(enough * 110) / 100
        fix = f"Resume with --set holdup.cpu_hours={wanted:g} or more, or smaller stages under another --name."
        return str(too_few_cpu_hours(self._holdup, f"a trial takes {each:.0f} CPU-seconds here", fix))

    def _spent(self) -> float:
        """Return the CPU-seconds of training so far, lost attempts included."""
        rows = self._ledger.rows.values()
        return sum(row.cpu_s_lost + (row.summary.get("cpu_s_spent") or 0.0) for row in rows)

    def _usual_cpu_s(self) -> float:
        """Return the mean CPU-seconds of a whole trial; 0 before the first has ended."""
        spent = (row.summary.get("cpu_s_spent") for row in self._whole())
        return mean(seconds for seconds in spent if seconds is not None)

    def _whole(self) -> list[TrialRow]:
        return [row for row in self._ledger.rows.values() if row.ended and row.iterations is None]
