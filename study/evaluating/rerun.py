"""Trains trials of the confirmation, drawn by chance, again: do they come out as recorded? Starts Ray for it.

On a machine of the same kind a trial repeats itself to the last digit. Elsewhere sums are rounded otherwise, and a
training goes its own way, as one on another seed would: then its score must lie where another run of its arm would.
"""

import json
import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from scipy import stats

from study.cluster.connection import private_ray
from study.cluster.environment import environment
from study.errors import RecordError, TrialError
from study.evaluating.playing import script_as_recorded
from study.mirrors.mlflow_content import FROZEN_CHAIN, study_key
from study.records.folder import StudyFolder
from study.records.ledger import TrialRow, fold
from study.records.provenance import provenance
from study.records.records import Evaluation, Iteration, Line, StudyOpened, TrialBuilt, TrialStarted, read_lines
from study.records.trust import check_modules
from study.space.spec import StudySpec
from study.space.variants import Variant, spec_of
from study.trial.messages import BuiltTrial, packed_config

FALSE_ALARM = 0.01
"""Chance that sound records are doubted on another kind of machine, over all trials of one call."""
LEAST_RUNS = 3
"""Runs of an arm that tell where another one would lie."""
LEAST_HALF = 0.05
"""Difference of scores that is allowed even where all runs of an arm are alike."""
SAME = 1e-9
"""Returns that differ by less, relatively, are equal."""
ENGINE = "ray"
"""What must have the version of the records: another engine is another experiment."""
_PACKAGES = ("runner-scaling-study", "torch", "numpy", "gymnasium", "python", "jax", "jaxlib")
"""What may have another version, on which the last digits depend; this program's is known since 0.12.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrained:
    """A trial that was trained again."""

    trial: int
    sentence: str
    agrees: bool
    """Whether it came out as recorded: equal, or by the test for other machines."""


def held_by_mlflow(folder: StudyFolder, tracking_uri: str) -> str:
    """Return the digest of the records before the first test seed that MLflow holds of a study.

    Raises:
        TrackingError: Nothing usable is there.
        RecordError: MLflow does not know the study, or holds no digest of it.
    """
    from analysis.load.mlflow_client import Store

    store, identity = Store(tracking_uri), folder.identity()
    text = " and ".join(f"tags.`{key}` = '{value}'" for key, value in study_key(identity).items())
    held = [
        run.tags.get(FROZEN_CHAIN)
        for each in store.experiments()
        if each.lifecycle_stage == "active"
        for run in store.runs(each, text)
    ]
    if known := [digest for digest in held if digest]:
        return known[0]
    rule, got = f"must hold a digest of study {identity.study_id}", "none" if held else "no such study"
    fix = "Name the MLflow that the study wrote to while it ran."
    raise RecordError(where=store.shown, rule=rule, got=got, fix=fix, code="rerun-of-another-study")


def train_again(
    folder: StudyFolder, count: int, *, seed: int | None = None, tell: Callable[[str], object] = lambda text: None
) -> Iterator[Retrained]:
    """Train trials of the confirmation again, and yield what came out, one by one.

    Args:
        folder: A study that was verified.
        count: How many trials, drawn by chance among those that finished.
        seed: Of the draw; None draws one.
        tell: Called with a sentence that names the trials, before the first.

    Raises:
        RecordError: There are not so many, Ray has another version than the one recorded, or the environment is in a
            module and the study was not started here.
        ClusterError: Ray does not start.
    """
    spec, lines = folder.identity().parse(), list(read_lines(folder.records))
    check_modules(folder.identity_file, spec.own_code, "run a study of your own with it, and compare the two")
    ledger = fold((line.record, line.time) for line in lines)
    finished = [row for row in ledger.rows.values() if row.stage == "confirm" and row.status == "finished"]
    if count > len(finished):
        rule = f"must be at most the trials of the confirmation that finished, {len(finished)}"
        raise RecordError(where="--rerun", rule=rule, got=count, fix="Lower it.", code="rerun-without-confirmation")
    here = provenance({})
    there = {row.trial: _provenance_of(row, lines) for row in finished}
    seed = secrets.randbelow(2**31) if seed is None else seed
    drawn = sorted(np.random.default_rng(seed).choice(len(finished), size=count, replace=False).tolist())
    rows = [finished[index] for index in drawn]
    for row in rows:
        recorded, got = ((each.get("versions") or {}).get(ENGINE) for each in (there[row.trial], here))
        if recorded != got:
            rule = f"{ENGINE} must have the version of the records, {recorded}"
            fix = f"Install {ENGINE}=={recorded} in another environment."
            raise RecordError(where="--rerun", rule=rule, got=got, fix=fix, code="rerun-with-another-version")
    listed = ", ".join(str(row.trial) for row in rows)
    tell(f"Training {count} of {len(finished)} trials of the confirmation again, drawn with --seed {seed}: {listed}.")
    starts = {line.record.trial: line.record for line in lines if isinstance(line.record, TrialStarted)}
    arms: dict[tuple[str | None, int], list[TrialRow]] = defaultdict(list)
    for row in finished:
        arms[row.anchor, row.num_env_runners].append(row)
    level = 1 - FALSE_ALARM / count
    on_record = [line.record for line in lines if isinstance(line.record, Evaluation | TrialBuilt)]
    for row, (records, failure) in zip(rows, train(spec, [starts[row.trial] for row in rows]), strict=True):
        own = [each for each in on_record if (each.trial, each.attempt) == (row.trial, row.attempt)]
        old, new = ([each for each in part if isinstance(each, Evaluation)] for part in (own, records))
        others = [each.summary["score"] for each in arms[row.anchor, row.num_env_runners] if each is not row]
        differing = _different(_made_by(own, there[row.trial]), _made_by(records, here))
        yield _compared(row, spec, old, new, failure, others, level, differing)


def train(
    spec: StudySpec, trials: list[TrialStarted]
) -> Iterator[tuple[list[BuiltTrial | Iteration | Evaluation], str]]:
    """Train trials one after another; yield the records of each, and why it failed, where it did.

    Raises:
        ClusterError: Ray does not start.
        SpaceError: The study has a script, which cannot be read.
        RecordError: That script is not the one that the study was started with.
    """
    from study.trial.trainable import results_of

    adopted = None
    if spec.config is not None:
        adopted = script_as_recorded(spec, way_out="or run a study of your own with it as it is now")
    script = None if adopted is None else adopted.pickled
    with (
        environment({} if adopted is None else adopted.environment),
        private_ray(num_cpus=max(started.num_cpus for started in trials)),
    ):
        for started in trials:
            records: list[BuiltTrial | Iteration | Evaluation] = []
            try:
                assert started.variant in get_args(Variant)
                text = json.dumps(spec_of(spec, started.variant).to_json())
                for result in results_of(packed_config(started, text, script=script)):
                    records += result.records
            except TrialError as error:
                yield records, str(error)
            else:
                yield records, ""


def _provenance_of(row: TrialRow, lines: Sequence[Line]) -> Mapping[str, Any]:
    """Return where the session ran that trained a trial."""
    opened = [line.record for line in lines if isinstance(line.record, StudyOpened) and line.time <= row.started]
    return opened[-1].provenance if opened else {}


def _made_by(records: Iterable[Any], driver: Mapping[str, Any]) -> dict[str, str | None]:
    """Return machine, libraries and learner of a trial, on which its last digits may depend.

    Args:
        records: Of the trial.
        driver: Provenance of the session that trained it.
    """
    built = next((each for each in records if isinstance(each, TrialBuilt | BuiltTrial)), None)
    versions, effective = driver.get("versions") or {}, built.effective if built else {}
    return {
        "CPU model": _cpu_models(built.placement if built else [], driver),
        **{name: versions.get(name) for name in _PACKAGES},
        "learner": effective.get("learner_class"),
    }


def _cpu_models(placement: Sequence[Mapping[str, Any]], driver: Mapping[str, Any]) -> str | None:
    """Return the CPU models of a trial's machines.

    Records before 0.12.1 name only the driver's, which counts if the trial ran on its host alone.
    """
    models = {place.get("cpu_model") for place in placement}
    if models and None not in models:
        return " and ".join(sorted(map(str, models)))
    others = sorted({place["host"] for place in placement} - {driver.get("hostname")})
    return f"of {', '.join(others)} not recorded" if others else driver.get("cpu_model")


def _different(there: Mapping[str, str | None], here: Mapping[str, str | None]) -> list[str]:
    """Return what differs here from the records. Learners are compared only where both are named."""
    compared = [name for name in there if name != "learner" or (there[name] and here[name])]
    return [f"{name} {there[name]}, here {here[name]}" for name in compared if there[name] != here[name]]


def _compared(
    row: TrialRow,
    spec: StudySpec,
    old: Sequence[Evaluation],
    new: Sequence[Evaluation],
    failure: str,
    others: Sequence[float | None],
    level: float,
    differing: Sequence[str],
) -> Retrained:
    where = f"trial {row.trial} ({row.anchor}@{row.num_env_runners}, seed {row.seed})"
    if failure:
        return Retrained(trial=row.trial, sentence=f"{where}: failed when trained again: {failure}", agrees=False)
    equal = sum(_equal(first.returns, second.returns) for first, second in zip(old, new, strict=False))
    if equal == len(old) == len(new):
        sentence = f"{where}: all {equal} evaluations, {len(old[0].returns)} episodes each, are equal to the records."
        return Retrained(trial=row.trial, sentence=sentence, agrees=True)
    score, recorded = _score(spec, new), row.summary["score"]
    shown = f"{equal} of {len(old)} evaluations are equal; score {score:.3f}, recorded {recorded:.3f}"
    if not differing:
        why = "provenance names the same CPU model and versions, so that all must be equal"
        return Retrained(trial=row.trial, sentence=f"{where}: DIFFERS: {shown}; {why}.", agrees=False)
    because = f"another machine ({'; '.join(differing)})"
    low, high = prediction([value for value in others if value is not None], level)
    interval = f"[{low:.3f}, {high:.3f}], where another run of the arm lies with {level:.2%}"
    agrees = low <= score <= high
    words = "lies in" if agrees else "LIES OUTSIDE"
    return Retrained(trial=row.trial, sentence=f"{where}: {shown}; {because}: it {words} {interval}.", agrees=agrees)


def _equal(first: Sequence[float], second: Sequence[float]) -> bool:
    return len(first) == len(second) and all(
        math.isclose(one, two, rel_tol=SAME, abs_tol=SAME) for one, two in zip(first, second, strict=True)
    )


def _score(spec: StudySpec, evaluations: Sequence[Evaluation]) -> float:
    """Return the score of the evaluations in the last tenth of the budget, as a trial's summary does."""
    from study.metrics import FINAL_SHARE

    final = [each.returns for each in evaluations if each.progress >= 1 - FINAL_SHARE - 1e-9]
    means = [sum(returns) / len(returns) for returns in final]
    return spec.score(sum(means) / len(means))


def prediction(scores: Sequence[float], level: float) -> tuple[float, float]:
    """Return the interval in which one more run of an arm lies, of Student's t; endless below `LEAST_RUNS` runs.

    Source: mean +- t(level, n - 1) * s * sqrt(1 + 1 / n), exact for normal scores. It reaches `LEAST_HALF` to both
    sides at least: scores are clipped to [0, 1.2], and runs of an arm that all reach a limit do not differ.
    """
    count = len(scores)
    if count < LEAST_RUNS:
        return -math.inf, math.inf
    half = float(stats.t.ppf((1 + level) / 2, count - 1)) * float(np.std(scores, ddof=1)) * math.sqrt(1 + 1 / count)
    half = max(half, LEAST_HALF)
    return float(np.mean(scores)) - half, float(np.mean(scores)) + half
