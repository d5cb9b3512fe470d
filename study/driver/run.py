"""`run_study`: folder, records, Ray, Tune and MLflow wired together. Ray is imported only after every cheap check."""

import contextlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from study.adopted.loading import adopted_by
from study.adopted.reading import Adopted
from study.designs.registry import design_of, make_plan, private_shape
from study.driver.conductor import Conductor, Display
from study.driver.opening import (
    RunOptions,
    continuing,
    forget_unstarted,
    is_resumed,
    name_taken,
    new_identity,
    resumed_identity,
    with_lasting_learner,
    with_lasting_process,
    write_identity,
)
from study.driver.signals import StopSignals
from study.errors import ExitCode, RecordError, SpaceError, TrackingError
from study.jax_private import jax_obstacle
from study.machine.cluster import (
    RayWatch,
    environment,
    joined_ray,
    private_ray,
    resolve_address,
    servers_of_ray,
    tune_storage,
)
from study.machine.shape import ClusterShape
from study.machine.shipping import own_modules, runtime_env
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.process import READY_TIMEOUT_S, MirrorProcess, MirrorReport
from study.mirrors.tracking_uri import is_uri
from study.planning.needs import execution_of
from study.planning.plan import remarks
from study.records.folder import StudyFolder, StudyIdentity, check_not_cut
from study.records.ledger import Ledger, TrialRow, best_per_scale, ledger_of
from study.records.log import RecordLog
from study.records.packing import unpacked
from study.records.provenance import provenance
from study.records.records import StudyClosed, TrialStarted, read_lines
from study.space.domains import smallest
from study.space.parameters import SCALE
from study.space.sections import LEARNERS
from study.space.settings import Variant, runnable, spec_of
from study.space.spec import Execution, StudySpec
from study.text import count
from study.trial.engine.envs.probing import Spaces, probe_study
from study.trial.messages import STARTED, packed_config

DRAIN_TIMEOUT_S = 30.0
"""How long the end of a study waits for MLflow to catch up; `study sync` does the rest."""
RESUME_READY_TIMEOUT_S = 5.0
"""How long a resume waits for a mirror, to be able to say that its place is down."""
ABANDON_TIMEOUT_S = 5.0
"""How long a study that was stopped, or an error on the way out, waits for MLflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """What a driver's session came to."""

    folder: StudyFolder
    identity: StudyIdentity
    rows: tuple[TrialRow, ...]
    """Every trial on record, by its number."""
    best: dict[int, TrialRow]
    """The best trial of each scale."""
    closed: StudyClosed
    mirrors: tuple[MirrorReport, ...]
    """How each place that shows the study caught up."""
    is_broken: bool = False
    """Whether it ended because its first trials all failed in the same way."""
    certificate: Mapping[str, Any] | None = None
    """Of a hold-up study that has come to its end."""

    @property
    def exit_code(self) -> ExitCode:
        """0 all trials ended well, 1 some failed, 75 stopped and resumable."""
        if self.is_broken:
            return ExitCode.SOME_FAILED  # a job that is queued again would fail again
        if self.closed.reason not in ("complete", "until"):
            return ExitCode.STOPPED
        return ExitCode.SOME_FAILED if any(row.status == "failed" for row in self.rows) else ExitCode.FINISHED


def run_study(spec: StudySpec, options: RunOptions, *, display: Display) -> StudyResult:
    """Run or resume a study until its plan is complete, it is stopped, or its time is up.

    Must be called from the main thread: SIGINT, SIGTERM and SIGUSR1 end the study cleanly, within ten seconds.

    Raises:
        KeyboardInterrupt: A signal came before the first trial: there is nothing to show.
        SpaceError: The environment cannot be made, or the name is taken.
        ClusterError: Ray cannot be reached, or a trial can never fit.
        TrackingError: MLflow, or Optuna's storage, does not answer at a first start.
        RecordError: The folder cannot be resumed.
    """
    folder = StudyFolder(options.out / options.name)
    resumed = is_resumed(folder, options)
    begun = unpacked(folder) if resumed else None
    adopted, spaces = None, None
    if spec.script is not None:
        adopted = _adopted(spec)  # its environment was made when it was read
    else:
        with display.busy(f"Trying the environment {spec.environment.id}"):
            spaces = probe_study(spec, options.space)
            spec = with_lasting_process(spec, begun.identity() if begun else None, note=display.note)
    spec = with_lasting_learner(
        spec,
        begun.identity() if begun else None,
        jax_obstacle=(jax_obstacle() or "") if adopted is None else adopted.jax_obstacle,
        source=options.space,
        note=display.note,
    )
    identity = resumed_identity(begun, spec, options) if begun else new_identity(spec, options)
    address = resolve_address(options.address)
    shape = private_shape(spec) if address is None else None
    if address is not None:
        brought_by(spec, adopted)  # refuse before anything is written
    if shape is not None:
        make_plan(spec, shape)  # refuse before anything is written
    if spec.rllib and spaces is not None:
        for fallback in check_overrides(spec, spaces, shape):
            display.note(fallback)
    if not resumed:
        folder.prepare()
    with StopSignals(_close) as signals, folder.locked(take_over=options.take_over), contextlib.ExitStack() as stack:
        if not resumed:
            if folder.exists():  # somebody was faster
                raise name_taken(folder, options)
            stack.push(lambda kind, error, trace: forget_unstarted(folder, error))
        if options.tensorboard:
            folder.make_tensorboard()  # before the identity: what was asked for outlives a kill in between
        write_identity(folder, identity, options, resumed=resumed)
        session = _Session(spec, folder, identity, options, display, address, spaces, adopted, signals)
        return session.run(stack, insist_on_mlflow=not resumed)


def _adopted(spec: StudySpec) -> Adopted:
    """Return the script of a space, which must be the one that the space was read with.

    Raises:
        SpaceError: It cannot be read, or has changed.
    """
    adopted = adopted_by(spec)
    assert adopted is not None
    if adopted.facts != spec.script:
        rule, fix = "the script must stay as it was when the space was read", "Start again."
        raise SpaceError.of(adopted.facts.source.file, where="config", rule=rule, fix=fix)
    return adopted


def brought_by(spec: StudySpec, adopted: Adopted | None) -> dict[str, Any] | None:
    """Return the runtime environment that the trials of a study need on the nodes of a joined cluster.

    Raises:
        ClusterError: Something cannot travel.
    """
    if adopted is None:
        return runtime_env(own_modules(spec.environment))
    return runtime_env(adopted.modules, adopted.variables, folder=adopted.folder)


def take_up(spec: StudySpec, folder: StudyFolder) -> tuple[StudySpec, Ledger]:
    """Return the spec with at least the trials that were planned before, and the state of a locked study.

    Raises:
        RecordError: The records cannot be trusted.
    """
    ledger = ledger_of(folder.records)
    check_not_cut(folder, ledger, num_mirrored=MlflowMirror(folder, folder.identity().tracking_uri).state.seq)
    if spec.search.num_trials is not None and spec.search.num_trials < ledger.num_trials:
        search = spec.search.model_copy(update={"num_trials": ledger.num_trials})
        spec = spec.model_copy(update={"search": search})
    return spec, ledger


def check_overrides(spec: StudySpec, spaces: Spaces, cluster: ClusterShape | None) -> list[str]:
    """Let RLlib check `rllib:` here, once, instead of in every trial; only then does the driver import RLlib.

    Returns one line for each of our components that RLlib's own will have to stand in for.
    A cluster that is not joined yet says nothing: then `execution: auto` is checked as if it were real.
    """
    from study.trial.configuration import apply
    from study.trial.experiment import experiment_of

    typical = design_of(spec).typical(spec)
    asked: Execution = "real" if spec.execution == "auto" else spec.execution
    ways = {asked if cluster is None else execution_of(spec, scale, cluster): scale for scale in spec.scales}
    fallbacks: list[str] = []
    for execution, scale in ways.items():
        lowest = {name: smallest(domain) for name, domain in spec.tuned.items()}
        lowest |= dict(typical[scale].given) if typical else {}
        setting = runnable(spec, {**lowest, SCALE: scale})
        seed = typical[scale].seed if typical else 0
        config = apply(experiment_of(spec, spaces=spaces), spec, setting=setting, seed=seed, execution=execution)
        fallbacks += config.fallbacks
    return list(dict.fromkeys(fallbacks))


class _Session:
    """One driver's work on a study, from the lock to the tables."""

    def __init__(
        self,
        spec: StudySpec,
        folder: StudyFolder,
        identity: StudyIdentity,
        options: RunOptions,
        display: Display,
        address: str | None,
        spaces: Spaces | None,
        adopted: Adopted | None,
        signals: StopSignals,
    ) -> None:
        self._spec, self._folder, self._identity = spec, folder, identity
        self._options, self._display, self._address, self._spaces = options, display, address, spaces
        budget = options.time_budget_s
        self._deadline = None if budget is None else time.monotonic() + budget
        self._signals = signals
        self._mirrors: MirrorProcess | None = None
        self._adopted = adopted
        self._own_modules = own_modules(spec.environment) if adopted is None else adopted.modules

    def run(self, stack: contextlib.ExitStack, *, insist_on_mlflow: bool) -> StudyResult:
        """Run until the plan is complete or the study is stopped."""
        self._spec, ledger = take_up(self._spec, self._folder)
        if ledger.opened is not None:
            self._display.note(continuing(self._spec, ledger))
        stack.callback(self._abandon_mirrors)  # after a normal end there is nothing left to do
        self._mirrors = MirrorProcess.of_study(self._folder)
        log = stack.enter_context(RecordLog(self._folder.records))
        if insist_on_mlflow:
            self._await_mirrors(insist=True)  # before Ray starts: what is wrong with a place is known in seconds
        self._signals.check()
        with self._ray() as shape, RayWatch(servers_of_ray(), self._signals.lose_ray):
            self._signals.install()
            self._signals.check()
            plan = make_plan(self._spec, shape, ledger.decisions)
            for remark in remarks(self._spec, plan):
                self._display.note(remark)
            if self._spec.rllib and self._spaces is not None and self._address is not None:
                check_overrides(self._spec, self._spaces, shape)  # anew: only now is it known what is emulated
            if not insist_on_mlflow:
                self._await_mirrors(insist=False)
            conductor = Conductor(
                spec=self._spec,
                plan=plan,
                folder=self._folder,
                log=log,
                ledger=ledger,
                provenance=provenance(
                    {module.name: module.digest for module in self._own_modules},
                    {} if self._adopted is None else self._adopted.variables,
                ),
                deadline=self._deadline,
                until=self._options.until,
                keep_going=self._options.keep_going,
                announce=self._display.note,
            )
            self._signals.tell(conductor)
            alive = self._tune(conductor)
        while not alive:
            # Anew: the end of Ray's job freed all that the dead engine held.
            with self._ray(), RayWatch(servers_of_ray(), self._signals.lose_ray):
                self._signals.install()
                alive = self._tune(conductor)
        self._signals.install()  # Ray's own code has put the default action of SIGTERM back when it shut down
        closed = self._signals.close(conductor)
        with self._display.busy("Writing the end of the study"):
            return self._end(conductor, closed)

    def _end(self, conductor: Conductor, closed: StudyClosed) -> StudyResult:
        """Return the result, once the certificate is written and the mirrors have had their time."""
        certificate = self._certify() if closed.reason == "complete" else None
        rows = tuple(conductor.ledger.rows[number] for number in sorted(conductor.ledger.rows))
        patience = DRAIN_TIMEOUT_S if closed.reason in ("complete", "until") else ABANDON_TIMEOUT_S
        reports = self._finish_mirrors(patience)
        for report in reports:
            if not report.drained:
                self._display.note(
                    f"{report.name} lacks up to {report.behind} records ({report.reason or 'it is slow'}); "
                    f"catch up with: python -m study sync {shlex.quote(str(self._folder.path))}"
                )
        return StudyResult(
            folder=self._folder,
            identity=self._identity,
            rows=rows,
            best=best_per_scale(rows),
            closed=closed,
            is_broken=conductor.is_broken,
            certificate=certificate,
            mirrors=reports,
        )

    def _finish_mirrors(self, patience: float) -> tuple[MirrorReport, ...]:
        """Let all places catch up side by side, until `patience` seconds have passed or a signal wants an end."""
        if self._mirrors is None:
            return ()
        return self._mirrors.finish(patience, cut=lambda: self._signals.deadline)

    def _abandon_mirrors(self) -> None:
        """End the mirrors of a session that was broken off; where nothing was recorded, nothing waits to be sent."""
        anything = next(read_lines(self._folder.records), None) is not None
        self._finish_mirrors(ABANDON_TIMEOUT_S if anything else 0.0)

    def _certify(self) -> Mapping[str, Any] | None:
        """Write the certificate; where the records do not allow one, say why: they are whole all the same."""
        try:
            return design_of(self._spec).certify(self._folder)
        except RecordError as error:
            self._display.note(str(error))
            return None

    @contextlib.contextmanager
    def _ray(self) -> Iterator[ClusterShape]:
        """Start a private Ray or join one, show that while it lasts, and let go of it in the end."""
        verbose = self._options.verbose
        with contextlib.ExitStack() as stack:
            if self._address is None:
                num_cpus = private_shape(self._spec).num_cpus
                if self._adopted is not None:  # Ray's processes inherit it
                    stack.enter_context(environment(self._adopted.environment))
                with self._display.busy(f"Starting a private Ray with {count(num_cpus, 'CPU')}"):
                    shape = stack.enter_context(private_ray(num_cpus=num_cpus, verbose=verbose))
            else:
                with self._display.busy(f"Joining the Ray at {self._address}"):
                    brought = brought_by(self._spec, self._adopted)
                    ray = joined_ray(self._address, runtime_env=brought, verbose=verbose)
                    shape = stack.enter_context(ray)
            yield shape

    def _await_mirrors(self, *, insist: bool) -> None:
        """Let the places outside of the folder prove that they take the study: each is asked to show it."""
        assert self._mirrors is not None, "they are started first"
        for key, mirror in self._mirrors.mirrors.items():
            if not is_uri(mirror.address):
                continue
            try:
                with self._display.busy(f"Waiting for {mirror.name}"):
                    self._mirrors.wait_ready(key, READY_TIMEOUT_S if insist else RESUME_READY_TIMEOUT_S)
            except TrackingError as error:
                if insist:
                    raise
                self._display.note(
                    f"{mirror.name} does not answer; the study goes on and {mirror.name} will catch up. ({error})"
                )

    def _tune(self, conductor: Conductor) -> bool:
        """Run the conductor's trials under Ray Tune; return False when Tune died and trials are left to run.

        Tune gives up altogether when Ray kills a trial's process for lack of memory. The trials that ran then are
        taken back, and the caller starts Ray anew.
        """
        while not conductor.exhausted or conductor.part_ended:
            reuse = conductor.begin_part()
            script = None if self._adopted is None else self._adopted.pickled
            with self._display.live(conductor), tune_storage() as storage:
                try:
                    _tuner(conductor, storage, self._signals, self._display, reuse=reuse, script=script).fit()
                except Exception as error:  # noqa: BLE001 (whatever Tune dies of, the records are whole and go on)
                    reason = f"Ray Tune died: {next(iter(str(error).splitlines()), type(error).__name__)[:300]}."
                    self._display.note(reason)
                    conductor.tune_died(reason)
                    break
                if not conductor.exhausted:
                    conductor.tune_died("Ray Tune ended early.")
                    break
        return conductor.exhausted


def _tuner(
    conductor: Conductor,
    storage: str,
    stopping: StopSignals,
    display: Display,
    *,
    reuse: bool,
    script: bytes | None,
) -> Any:
    from ray import tune

    from study.driver.searcher import StudyCallback, StudySearcher, StudyStopper
    from study.trial.trainable import StudyTrial

    specs = {variant: json.dumps(spec_of(conductor.spec, variant).to_json()) for variant in get_args(Variant)}

    def to_config(started: TrialStarted) -> dict[str, Any]:
        learners = started.setting.get(LEARNERS)
        varied = None if learners is None else spec_of(conductor.spec, "study", num_learners=int(learners))
        spec = json.dumps(varied.to_json()) if varied else specs[started.variant]
        return packed_config(started, spec, script=script)

    callback = StudyCallback(conductor, on_setup=stopping.install, on_change=display.update)
    return tune.Tuner(
        StudyTrial,
        tune_config=tune.TuneConfig(
            search_alg=StudySearcher(conductor, to_config),
            num_samples=-1,  # the searcher says when it has no more
            trial_dirname_creator=_trial_name,
            trial_name_creator=_trial_name,
            reuse_actors=reuse,
        ),
        run_config=tune.RunConfig(
            name="study",
            storage_path=storage,
            stop=StudyStopper(conductor, on_stop=callback.kill_trials),
            callbacks=[callback],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=0),
            verbose=0,
        ),
    )


def _close(conductor: Conductor) -> StudyClosed:
    """End the session; where even that cannot be written (a full disk), say so in the result."""
    try:
        closed = conductor.close()
        conductor.write_table()
    except (RecordError, OSError) as error:
        return StudyClosed(session=conductor.ledger.sessions, reason="error", detail=str(error))
    return closed


def _trial_name(trial: Any) -> str:
    started: TrialStarted = trial.config[STARTED]
    return f"trial_{started.trial:05d}_{started.attempt}"
