"""What the models say beyond what was measured: other numbers of runners, bounds, the limit. Imports NumPy.

Nothing is predicted beyond `MOST_EXTRAPOLATED` times the largest measured scale, nor by a model that does not describe
its own runs. Intervals of predictions know the scatter of the runs, not what the model leaves out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from analysis.estimates.fits import ModelResults
from analysis.estimates.frame import Basis, Cell, Row, rows_of
from analysis.estimates.results import Results, attempt
from analysis.estimates.throughput import Names, engine_in
from analysis.models.derived import runner_limit
from analysis.models.iteration_time import IterationTimeFit
from study.errors import AnalysisError
from study.statistics import Estimate

MOST_EXTRAPOLATED = 2
"""Times the largest measured scale up to which a number of runners has a prediction."""
MOST_CLOSURE = 0.1
"""Median relative error on its own runs above which the iteration-time model predicts nothing; it aims at 0.02."""
ASKED = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of runners that are predicted where they lie between measured ones, or a little beyond."""


def prediction_rows(results: Results, names: Names) -> Iterator[Row]:
    """Yield bounds, and throughput at scales that nobody ran, of the workload that ran at most scales."""
    found = results.models
    if isinstance(attempt(lambda: found.observations), str):
        return
    place = _Place(results, found, names)
    yield from _bounds(found, place)
    yield from _laws(found, place)
    fit = fitted(found)
    if not isinstance(fit, str):
        yield from _scales(found, fit, place)
        yield from _limit(found, fit, place)


def fitted(found: ModelResults) -> IterationTimeFit | str:
    """Return the iteration-time model where it describes its own runs; else the sentence that says why not."""
    fit = attempt(lambda: found.fit)
    if isinstance(fit, str) or fit.closure <= MOST_CLOSURE:
        return fit
    return (
        f"The iteration-time model does not describe these runs (off by {fit.closure:.0%} at their median, more than "
        f"{MOST_CLOSURE:.0%}): nothing is predicted from it."
    )


class _Place:
    """The workload of the models, and the CPUs of its numbers of runners."""

    def __init__(self, results: Results, found: ModelResults, names: Names) -> None:
        fingerprints = found.fingerprints
        ((most_frequent, _),) = fingerprints.most_common(1)
        self._workload, self.engine = names[most_frequent], engine_in(most_frequent)
        self._batch = int(found.cell.train_batch_size[0])
        runs = results.measured.dropna(subset=["num_cpus"])
        here = runs[runs["fingerprint"].isin(fingerprints.keys())]
        self.measured = found.scales
        fewest = here.groupby("num_env_runners")["num_cpus"].min()
        self._cpus = {int(n): int(p) for n, p in zip(fewest.index, fewest, strict=True)}

    def cell(self, num_env_runners: int) -> Cell:
        """Return the cell of a number of runners, at the batch of the models."""
        cpus = self._cpus.get(num_env_runners)
        if cpus is None and self._cpus:
            (n1, p1), (n2, p2) = min(self._cpus.items()), max(self._cpus.items())
            per_runner = (p2 - p1) / (n2 - n1) if n2 > n1 else 1.0
            cpus = round(p1 + per_runner * (num_env_runners - n1))
        return Cell(
            workload=self._workload,
            num_env_runners=num_env_runners,
            num_cpus=cpus,
            train_batch_size=self._batch,
        )

    def basis(self, num_env_runners: float) -> Basis:
        """Return whether a prediction lies between measured scales."""
        return "predicted" if min(self.measured) <= num_env_runners <= max(self.measured) else "extrapolated"

    def near(self, num_env_runners: float) -> bool:
        """Return whether a prediction is not too far beyond the measured scales."""
        return num_env_runners <= MOST_EXTRAPOLATED * max(self.measured)


def _bounds(found: ModelResults, place: _Place) -> Iterator[Row]:
    verdict = attempt(lambda: found.verdict)
    if isinstance(verdict, str):
        return
    cell = place.cell(verdict.num_env_runners)
    yield from rows_of(cell, {"fixed_share": verdict.fixed_share}, engine=place.engine)
    bounds = {"most_speed_up": verdict.most_gain, "ceiling_env_steps_per_s": verdict.most_env_steps_per_s}
    yield from rows_of(cell, bounds, basis="extrapolated", engine=place.engine)


def rows_at(results: Results, names: Names, num_env_runners: int) -> list[Row]:
    """Return the predicted throughput at a number of runners of the workload that ran at most scales.

    Raises:
        AnalysisError: The runs allow no model, the model does not describe them, or the number is too far away.
    """
    found = results.models
    fit = fitted(found) if not isinstance(why := attempt(lambda: found.observations), str) else why
    if isinstance(fit, str):
        raise AnalysisError(
            where="predict",
            rule="the runs must allow a model that describes them",
            got=fit,
            fix="Measure two scales or more in equal workloads: python run_study.py --space throughput.yaml",
        )
    place = _Place(results, found, names)
    if not 1 <= num_env_runners <= MOST_EXTRAPOLATED * max(place.measured):
        raise AnalysisError(
            where="num_env_runners",
            rule=f"must be from 1 to {MOST_EXTRAPOLATED * max(place.measured)}, twice the largest measured",
            got=num_env_runners,
            fix="Measure larger scales first.",
        )
    return list(_at(found, fit, place, [num_env_runners]))


def _laws(found: ModelResults, place: _Place) -> Iterator[Row]:
    """Yield the unknowns of Amdahl's law and of the USL, where they can be fitted."""
    amdahl, usl = attempt(lambda: found.amdahl), attempt(lambda: found.usl)
    unknowns = {} if isinstance(amdahl, str) else {"amdahl_serial_fraction": amdahl.serial_fraction}
    if not isinstance(usl, str):
        unknowns |= {"usl_contention": usl.contention, "usl_coherency": usl.coherency}
    yield from rows_of(place.cell(max(place.measured)), unknowns, basis="predicted", engine=place.engine)


def _scales(found: ModelResults, fit: IterationTimeFit, place: _Place) -> Iterator[Row]:
    least, most = min(place.measured), MOST_EXTRAPOLATED * max(place.measured)
    yield from _at(found, fit, place, sorted({n for n in (*ASKED, most) if least < n <= most} - set(place.measured)))


def _at(found: ModelResults, fit: IterationTimeFit, place: _Place, scales: Sequence[int]) -> Iterator[Row]:
    for n, rate in zip(scales, predicted(found, fit, scales), strict=True):
        yield from rows_of(place.cell(n), {"env_steps_per_s": rate}, basis=place.basis(n), engine=place.engine)


def predicted(found: ModelResults, fit: IterationTimeFit, scales: Sequence[int]) -> list[Estimate]:
    """Return the throughput at each number of runners by the iteration-time model, in the models' setting."""
    if not scales:
        return []
    one = found.cell.take(np.zeros(len(scales), dtype=np.int64))
    cells = replace(one, num_env_runners=np.array(scales, dtype=np.float64))
    return [replace(each, method="iteration-time model") for each in fit.predict(cells)]


def _limit(found: ModelResults, fit: IterationTimeFit, place: _Place) -> Iterator[Row]:
    limit = runner_limit(fit, found.cell)
    if limit is not None and place.near(limit.value):
        estimates, basis = {"limit_num_env_runners": limit}, place.basis(limit.value)
        yield from rows_of(place.cell(max(place.measured)), estimates, basis=basis, engine=place.engine)
