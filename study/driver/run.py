"""`run_study`: folder, records, Ray, Tune and MLflow wired together. Ray is imported only after every cheap check."""

import contextlib
import secrets
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from study.adopted.loading import Brought, adopted_by
from study.designs.registry import design_of, make_plan, private_shape
from study.driver import opening
from study.driver.conductor import Conductor
from study.driver.opening import RunOptions
from study.driver.signals import StopSignals
from study.errors import ExitCode, RecordError, SpaceError
from study.jax_private import jax_obstacle
from study.machine.cluster import environment, joined_ray, private_ray, resolve_address, servers_of_ray, watching_ray
from study.machine.host import own_folder
from study.machine.shape import ClusterShape
from study.machine.shipping import own_modules, runtime_env
from study.mirrors.process import MirrorProcess
from study.planning import remarks
from study.records.files import held
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow
from study.records.records import RecordLog, StudyClosed, read_lines
from study.space.parsing import written
from study.space.rules import tables
from study.space.sections import MOST_STUDIES
from study.space.spec import StudySpec
from study.text import count
from study.trial.engine.envs.probing import Sharing, probe_study, sharing_of, speeds_of

if TYPE_CHECKING:
    from study.cli.display import Display

DRAIN_TIMEOUT_S = 30.0
"""How long the end of a study waits for MLflow to catch up; `study sync` does the rest."""
ABANDON_TIMEOUT_S = 5.0
"""How long a study that was stopped, or an error on the way out, waits for MLflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """What a driver's session came to."""

    folder: StudyFolder
    rows: tuple[TrialRow, ...]
    """Every trial on record, by its number."""
    closed: StudyClosed
    is_broken: bool = False
    """Whether it ended because its first trials all failed in the same way."""

    @property
    def exit_code(self) -> ExitCode:
        """0 all trials ended well, 1 some failed, 75 stopped and resumable."""
        if self.is_broken:
            return ExitCode.SOME_FAILED  # a job that is queued again would fail again
        if self.closed.reason not in ("complete", "until"):
            return ExitCode.STOPPED
        return ExitCode.SOME_FAILED if any(row.status == "failed" for row in self.rows) else ExitCode.FINISHED


def run_study(spec: StudySpec, options: RunOptions, *, display: "Display") -> StudyResult:
    """Run or resume a study until its plan is complete, it is stopped, or its time is up.

    Must be called from the main thread: SIGINT, SIGTERM and SIGUSR1 end the study cleanly, within ten seconds.

    Raises:
        KeyboardInterrupt: A signal came before the first trial: there is nothing to show.
        SpaceError: The environment cannot be made, or the name is taken.
        ClusterError: Ray, or at a first start MLflow, does not answer; or a trial can never fit.
        RecordError: The folder cannot be resumed.
    """
    return _Session(spec, options, display).open()


class _Session:
    """One driver's work on a study, from what was asked for to the end."""

    def __init__(self, spec: StudySpec, options: RunOptions, display: "Display") -> None:
        self.options, self.display = options, display
        self.folder = StudyFolder(options.out / options.name)
        self.is_new = not opening.is_resumed(self.folder, options)
        if not self.is_new:
            spec = self.folder.identity().settle(spec)
        elif spec.holdup is not None:
            spec = spec.with_seed(spec.holdup.seed or 1 + secrets.randbelow(MOST_STUDIES))
        if spec.script is None:
            display.note(f"Trying the environment {spec.environment.id} …")
        spec, self.brought = tried(spec, source=options.space, is_new=self.is_new, note=display.note)
        self.spec = spec
        self.identity = (
            opening.new_identity(spec, options) if self.is_new else opening.resumed_identity(self.folder, spec, options)
        )
        self.address = resolve_address(options.address)
        self.signals = StopSignals()

    def open(self) -> StudyResult:
        """Refuse what cannot be before anything is written; then lock the folder and run."""
        if self.address is None:
            make_plan(self.spec, private_shape(self.spec))
        else:
            runtime_env(self.brought.modules, self.brought.variables)
        if self.is_new:
            self.folder.prepare()
        lock = held(self.folder.path, take_over=self.options.take_over)
        with self.signals, lock, contextlib.ExitStack() as stack:
            if self.is_new:
                if self.folder.exists():  # somebody was faster
                    raise opening.name_taken(self.folder, self.options)
                stack.push(lambda kind, error, trace: _forget_unstarted(self.folder, error))
            said = {key: value for key, value in self.spec.differing().items() if key != "script"}
            header = "# Written by a start from Python: what differs from the defaults."
            self.folder.write(self.identity, self.options.space_text or written(said, header=header))
            if self.options.tensorboard:
                self.folder.make_tensorboard()
            return self._run(stack)

    def _run(self, stack: contextlib.ExitStack) -> StudyResult:
        """Run until the plan is complete or the study is stopped."""
        budget, signals = self.options.time_budget_s, self.signals
        deadline = None if budget is None else time.monotonic() + budget
        self.spec, ledger = opening.take_up(self.spec, self.folder)
        if ledger.opened is not None:
            self.display.note(opening.continuing(self.spec, ledger))
        self.mirrors = MirrorProcess(self.folder)
        stack.callback(self._abandon_mirrors)  # after a normal end there is nothing left to do
        if ledger.closed is not None and opening.nothing_left(self.spec, ledger):
            return self._end(ledger, ledger.closed)
        log = stack.enter_context(RecordLog(self.folder.records))
        self._await_mirrors(file=False)  # before Ray starts: what is wrong with a server is known in seconds
        conductor: Conductor | None = None
        while conductor is None or not conductor.exhausted:
            signals.check()
            # Anew where the engine has died: the end of Ray's job frees all that it held.
            with self._ray() as shape, watching_ray(servers_of_ray(), signals.lose_ray):
                signals.install()
                if conductor is None:
                    signals.check()
                    conductor = self._conductor(shape, log, ledger, deadline)
                    signals.tell(conductor)
                self._tune(conductor)
        signals.install()  # Ray's own code has put the default action of SIGTERM back when it shut down
        closed = signals.close(conductor)
        return self._end(ledger, closed, is_broken=conductor.is_broken)

    def _conductor(self, shape: ClusterShape, log: RecordLog, ledger: Ledger, deadline: float | None) -> Conductor:
        """Return what deals out the trials on a cluster of this shape, once the study is planned for it."""
        plan = make_plan(self.spec, shape, ledger.decisions)
        for remark in remarks(self.spec, plan):
            self.display.note(remark)
        self._await_mirrors(file=True)
        conductor = Conductor(
            spec=self.spec,
            plan=plan,
            folder=self.folder,
            log=log,
            ledger=ledger,
            provenance=opening.provenance({module.name: module.digest for module in self.brought.modules}),
            deadline=deadline,
            until=self.options.until,
            keep_going=self.options.keep_going,
        )
        self.display.watch(conductor)
        return conductor

    def _end(self, ledger: Ledger, closed: StudyClosed, *, is_broken: bool = False) -> StudyResult:
        """Return the result, once the certificate is written and the mirrors have had their time."""
        if closed.reason == "complete":
            try:
                design_of(self.spec).certify(self.folder)
            except RecordError as error:  # the records do not allow one; they are whole all the same
                self.display.note(str(error))
        answer = ""
        if closed.reason != "stopped":  # a signal gives ten seconds, too few for an answer
            self.display.note("Working out the answer …")
            answer = self.display.answer(self.folder.path)
        patience = DRAIN_TIMEOUT_S if closed.reason in ("complete", "until") else ABANDON_TIMEOUT_S
        for lack in self.mirrors.finish(patience, cut=lambda: self.signals.deadline, answer=answer):
            self.display.note(f"{lack}; catch up with: python -m study sync {shlex.quote(str(self.folder.path))}")
        return StudyResult(
            folder=self.folder,
            rows=tuple(row for _, row in sorted(ledger.rows.items())),
            closed=closed,
            is_broken=is_broken,
        )

    def _abandon_mirrors(self) -> None:
        """End the mirrors of a session that was broken off; where nothing was recorded, nothing waits to be sent."""
        anything = next(read_lines(self.folder.records), None) is not None
        self.mirrors.finish(ABANDON_TIMEOUT_S if anything else 0.0, cut=lambda: self.signals.deadline)

    def _await_mirrors(self, *, file: bool) -> None:
        """Let the places prove that they take a new study, if MLflow is a `file`; a resume catches up in any case."""
        if self.is_new and self.identity.tracking_uri.startswith("sqlite:") == file:
            self.mirrors.wait_ready()

    @contextlib.contextmanager
    def _ray(self) -> Iterator[ClusterShape]:
        """Start a private Ray or join one, and let go of it in the end."""
        verbose = self.options.verbose
        with contextlib.ExitStack() as stack:
            if self.address is None:
                num_cpus = private_shape(self.spec).num_cpus
                stack.enter_context(environment(self.brought.environment))  # Ray's processes inherit it
                self.display.note(f"Starting a private Ray with {count(num_cpus, 'CPU')} …")
                shape = stack.enter_context(private_ray(num_cpus=num_cpus, verbose=verbose))
            else:
                self.display.note(f"Joining the Ray at {self.address} …")
                brought = runtime_env(self.brought.modules, self.brought.variables)
                shape = stack.enter_context(joined_ray(self.address, runtime_env=brought, verbose=verbose))
            yield replace(shape, speeds=self.brought.speeds)

    def _tune(self, conductor: Conductor) -> None:
        """Run the conductor's trials under Ray Tune, until they are over or Tune dies: the caller starts Ray anew."""
        from study.driver.searcher import tuner

        on = {"on_setup": self.signals.install, "on_change": self.display.update}
        while not conductor.exhausted:
            reuse, died = conductor.queue.begin_part(), ""
            with own_folder("rt") as storage:  # what Tune writes; nothing is read back
                try:
                    tuner(conductor, storage, reuse=reuse, script=self.brought.pickled, **on).fit()
                except Exception as error:  # noqa: BLE001 (whatever Tune dies of, the records are whole and go on)
                    died = f"Ray Tune died: {next(iter(str(error).splitlines()), type(error).__name__)[:300]}."
                    self.display.note(died)
            self.display.update()
            if died or not (conductor.exhausted or conductor.queue.part_ended):
                conductor.tune_died(died or "Ray Tune ended early.")
                return


def _forget_unstarted(folder: StudyFolder, error: BaseException | None) -> bool:
    """Remove the folder of a first start that recorded nothing, so that the same command can be tried again."""
    if error is not None and next(read_lines(folder.records), None) is None:
        folder.forget()
    return False


# --- what is tried, and what `auto` then stands for -------------------------------------------------------------------


def tried(
    spec: StudySpec, *, source: str, is_new: bool = True, note: Callable[[str], None]
) -> tuple[StudySpec, Brought]:
    """Try the environment or the script of a study; return its spec, and what its trials need of this machine.

    Of a new study what the space, the `source`, leaves open is settled, so that all sessions and nodes keep it. `note`
    is called with each line that a person should know.

    Raises:
        SpaceError: The environment fails, or this machine cannot run the study.
        RecordError: The script is another one by now.
    """
    sharing: Sharing = "harmless"
    brought: Brought | None = adopted_by(spec)  # the environment of a script was made when it was read
    if brought is None:
        probe_study(spec, source)
        if is_new and spec.environment.process == "auto":
            sharing = sharing_of(spec.environment)
        modules, speeds = own_modules(spec.environment), speeds_of(spec.environment)
        brought = Brought(modules=modules, speeds=speeds, jax_obstacle=jax_obstacle() or "")
    if is_new:
        shape = () if brought.speeds is None else brought.speeds.observation_shape
        obstacle = brought.jax_obstacle or ("observations are images" if len(shape) == 3 else "")
        spec = settled(spec, sharing=sharing, fused_obstacle=obstacle, source=source, note=note)
    if spec.learner == "fused" and find_spec("jax") is None:
        rule, got = "this study learns with `fused`, which needs JAX", "none here"
        fix = "Run pip install jax, or start a new study with --name and --set learner=rllib."
        raise SpaceError.of(source, where="learner", rule=rule, got=got, fix=fix)
    return spec, brought


def settled(
    spec: StudySpec, *, sharing: Sharing, fused_obstacle: str, source: str, note: Callable[[str], None]
) -> StudySpec:
    """Return the spec with the processes and the learner that `auto` stands for.

    `sharing` is what its environments do to one another in one process; `fused_obstacle` says why the fused learner
    cannot serve here, whatever the space says.

    Raises:
        SpaceError: No two environments may share a process, or nothing but JAX can learn, and the space needs it.
    """
    name = f"'{spec.environment.id}'"
    if sharing == "unknown":
        note(
            f"{name} does not play the same episode twice with the same seed, so that nobody can see whether several "
            "in one process disturb each other. If it keeps state in its process, set environment.process=own."
        )
    if sharing == "wrong":
        spec = spec.having(environment={"process": "own"})
        if faults := [*tables(spec)]:
            raise SpaceError(source, faults)
        note(f"{name} plays another episode where a second one is in its process, so that no two share one.")
    if spec.learner != "auto" or spec.fused_obstacle:
        return spec
    if fused_obstacle and spec.algorithm == "A2C":
        rule = f"`A2C` needs the fused learner, and {fused_obstacle}"
        raise SpaceError.of(source, where="algorithm", rule=rule, fix="Remove it.")
    if fused_obstacle:
        note(f"Slower: RLlib's own learner instead of the fused one: {fused_obstacle}.")
    return spec.having(learner="rllib" if fused_obstacle else "fused")
