"""A driver's session without Ray: the conductor over a study folder, and trials that a test makes up."""

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from study.designs.registry import make_plan
from study.driver.conductor import Conductor
from study.machine.shape import ClusterShape
from study.records.folder import StudyFolder
from study.records.ledger import TrialRow, ledger_of
from study.records.records import Record, RecordLog, StageDecided, StudyClosed, TrialEnded, TrialStarted, read_lines
from study.space.spec import StudySpec
from tests.reported import built, evaluation, iteration, report
from tests.spaces import cluster
from tests.spaces import spec as small_spec

CLUSTER, ROOMY = cluster(local=(5, 2)), cluster(local=32)
Outcome = Callable[[TrialRow], float | None]
"""Final return of a trial by what it is to run; None where it fails."""


class Driven:
    """One session; leaving it without `close` is a kill."""

    def __init__(self, path: Path, spec: StudySpec, *, cluster: ClusterShape = CLUSTER, **options: Any) -> None:
        self.folder, self.spec = StudyFolder(path), spec
        path.mkdir(exist_ok=True)
        ledger = ledger_of(self.folder.records)
        self.log = RecordLog(self.folder.records)
        self.conductor = Conductor(
            spec=spec,
            plan=make_plan(spec, cluster, ledger.decisions),
            folder=self.folder,
            log=self.log,
            ledger=ledger,
            **{"provenance": {}, **options},
        )

    def groups(self) -> Iterator[list[TrialStarted]]:
        """Yield the trials that start together, to the end of the study; the caller ends them."""
        while not self.conductor.exhausted:
            if self.conductor.queue.part_ended:
                self.conductor.queue.begin_part()
                continue
            started = []
            while (one := self.conductor.next_trial()) is not None:
                started.append(one)
            assert started
            assert not self.conductor.exhausted  # else Tune would end, and Ray with it, at every phase
            yield started

    def finish(self, trial: int, final: float | None) -> None:
        """Let a trial come to its end with a final return; None: it fails."""
        raise NotImplementedError

    def run(self, outcome: Outcome = lambda row: 250.0, *, most: int | None = None) -> StudyClosed | None:
        """End the trials of each group, the last one first, until `most` have ended (then as a kill leaves it)."""
        ended = 0
        for started in self.groups():
            for one in reversed(started):
                if ended == most:
                    self.log.close()
                    return None
                self.finish(one.trial, outcome(self.rows[one.trial]))
                ended += 1
        closed = self.conductor.close()
        self.log.close()
        return closed

    @property
    def rows(self) -> dict[int, TrialRow]:
        """The trials as this session knows them."""
        return self.conductor.ledger.rows


class Session(Driven):
    """A session whose trials have two iterations."""

    def __init__(self, path: Path, space: StudySpec | None = None, **options: Any) -> None:
        super().__init__(path, space or small_spec(execution="real"), **options)

    def iterate(self, trial: int, number: int = 1, **metrics: float) -> None:
        told = [built()] if number == 1 else []
        report(self.conductor, trial, *told, iteration(number, cpu_time_s=1.0, **metrics), progress=number / 4)

    def evaluate(self, trial: int, *returns: float, progress: float = 1.0) -> None:
        report(self.conductor, trial, evaluation(iteration(2), *returns, progress=progress), progress=progress)

    def finish(self, trial: int, final: float | None = 250.0, policy: bytes | None = None) -> None:
        if final is None:
            self.conductor.end(trial, "failed", "planted")
            return
        self.iterate(trial, 1)
        self.iterate(trial, 2)
        self.evaluate(trial, final)
        self.conductor.finish(trial, policy)


def policy(files: Mapping[str, bytes]) -> bytes:
    """Return a policy as a trial packs it, with these files."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, mode="w") as content:
        for name, raw in files.items():
            content.writestr(name, raw)
    return archive.getvalue()


def records(path: Path) -> list[Record]:
    """Return the records of a study's folder."""
    return [line.record for line in read_lines(path / "records.jsonl")]


def rows(path: Path) -> dict[int, TrialRow]:
    """Return the trials of a study's folder, by number."""
    return ledger_of(path / "records.jsonl").rows


def essence(path: Path) -> tuple[list[Any], dict[int, Any], Counter[int]]:
    """Return what a study decided, what it ran, and how often each trial ended, without when and in how many sessions.

    Raises:
        AssertionError: An attempt had another setting than the first one of its trial.
    """
    written, started = records(path), dict[int, Any]()
    decided = [each for each in written if isinstance(each, StageDecided)]
    taken = [(each.phase, each.kept, each.dropped, each.evidence, each.requests) for each in decided]
    for each in written:
        if isinstance(each, TrialStarted):
            own = (each.seed, each.digest, each.setting, each.stage)
            assert started.setdefault(each.trial, own) == own
    ended = [each for each in written if isinstance(each, TrialEnded) and each.status != "interrupted"]
    return taken, started, Counter(each.trial for each in ended)
