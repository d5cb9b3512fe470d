"""A hold-up study: stages that choose a setting, freeze it and judge it on seeds that it was not chosen by. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from study.designs.base import Design
from study.designs.holdup import phases
from study.machine.shape import ClusterShape
from study.planning.guess import GUESS_FACTOR
from study.planning.needs import execution_of, num_cpus
from study.planning.plan import Plan, TrialNeeds, check_objective, total_hours, trial_needs
from study.records.ledger import Ledger, TrialRow
from study.records.records import Record, StageDecided
from study.records.request import TrialRequest, numbered
from study.space.settings import STAGES, Variant, spec_of
from study.space.spec import StudySpec
from study.text import cpu_hours as in_words

if TYPE_CHECKING:
    from study.designs.holdup.certificate.making import Certificate
    from study.designs.holdup.stage_keeper import StageKeeper
    from study.records.folder import StudyFolder


class HoldUp(Design):
    """Whether a setting of a small scale holds up at a large one."""

    name = "holdup"
    stages = STAGES

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the trials that the stages have asked for so far."""
        from study.designs.holdup import machine  # with SciPy, which the plans of other studies need not import

        return numbered(machine.requests_of(spec, decisions))

    def plan(self, spec: StudySpec, cluster: ClusterShape, decisions: Sequence[StageDecided] = ()) -> Plan:
        """Return the trials so far, and what all of them need: their sizes are known before their settings are."""
        check_objective(spec, cluster, spec.scales)
        holdup, expected = phases.holdup_of(spec), phases.expected_trials(spec)
        counts = Counter({scale: 0 for scale in (*spec.scales, *holdup.unseen_scales)})
        for (_, scale, variant), count in expected.items():
            if variant == "study":
                counts[scale] += count
        scales = tuple(trial_needs(spec, scale, cluster, num_trials=count) for scale, count in sorted(counts.items()))
        target = next(scale for scale in scales if scale.num_env_runners == holdup.target_scale)
        least = phases.num_later(spec) + holdup.race.num_settings + 1
        hours = least * target.hours * min(target.num_cpus, cluster.capacity)
        if holdup.cpu_hours is not None and holdup.cpu_hours < hours / GUESS_FACTOR:
            why = f"they take about {in_words(hours)}, by a guess good to a factor of three"
            fix = f"Set it to {hours:.1f} or more, or lower the sizes of the stages."
            raise phases.too_few_cpu_hours(holdup, why, fix)
        variants: dict[tuple[int, Variant], TrialNeeds] = {}
        why_not = phases.why_not_measured(spec, cluster)
        left_out = sum(count for (_, _, variant), count in expected.items() if variant == "measured" and why_not)
        for (_, scale, variant), count in expected.items():
            if variant == "stock" or (variant == "measured" and not why_not):
                runners = phases.runners_of(spec, variant, scale, cluster)
                limit = holdup.measure.iterations if variant == "measured" and holdup.measure else None
                variants[scale, variant] = trial_needs(
                    spec_of(spec, variant), runners, cluster, num_trials=count, iterations=limit
                )
        return Plan(
            requests=self.requests(spec, decisions),
            scales=scales,
            variants=variants,
            cluster=cluster,
            num_trials=sum(expected.values()) - left_out,
            hours=total_hours([*scales, *variants.values()], cluster),
            left_out=f"the stage measure ({left_out} of up to {sum(expected.values())} trials): {why_not}"
            if left_out
            else "",
        )

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
        from study.designs.holdup.stage_keeper import StageKeeper

        return StageKeeper(spec, plan, ledger, append, until=until, announce=announce)

    def num_cpus(self, spec: StudySpec, cluster: ClusterShape) -> int:
        """Return the CPUs of the largest trial of any stage."""
        holdup = phases.holdup_of(spec)
        scales = (*spec.scales, *holdup.unseen_scales)
        sizes = [num_cpus(spec, scale, execution_of(spec, scale, cluster)) for scale in scales]
        if holdup.confirm.num_seeds_stock:
            sizes.append(num_cpus(spec, 1, "real"))
        if holdup.measure is not None and holdup.measure.step_wait_ms > 0:
            sizes.append(num_cpus(spec, max(holdup.measure.scales), "real"))  # runners that wait share the cores
        return max(sizes)

    def replicate(self, spec: StudySpec, number: int) -> list[str]:
        """Return the overrides that move every set of seeds by as much, so that they stay apart."""
        holdup = phases.holdup_of(spec)
        sets = {"tune_seeds": holdup.tune_seeds, "rank_seeds": holdup.rank_seeds, "test_seeds": holdup.test_seeds}
        span = max(each.first + each.count for each in sets.values()) - min(each.first for each in sets.values())
        moved = {name: f"{{first: {each.first + number * span}, count: {each.count}}}" for name, each in sets.items()}
        sampler_seed = spec.search.sampler_seed + number
        return [f"search.sampler_seed={sampler_seed}", *(f"holdup.{name}={seeds}" for name, seeds in moved.items())]

    def certify(self, folder: "StudyFolder") -> "Certificate":
        """Write the certificate."""
        from study.designs.holdup.certificate.making import make_certificate

        certificate = make_certificate(folder)
        certificate.write(folder)
        return certificate

    def final_trials(self, spec: StudySpec, ledger: Ledger, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the winner's confirmations at the target scale, once there are any."""
        if ledger.frozen is None:
            return rows
        wanted = "confirm", ledger.frozen.winner, "study", phases.holdup_of(spec).target_scale
        return [row for row in rows if (row.stage, row.digest, row.variant, row.num_env_runners) == wanted] or rows
