"""What a person sees of a study: its plan, a line for each change while it runs, trials and answer at its end."""

import contextlib
import math
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from analysis.status import cautions, time_left
from study.console import say, table, terminal
from study.engine import engine_of_space, engines_in_words
from study.errors import StudyError
from study.harmless import mask_credentials, one_line
from study.planning.guess import is_evaluating
from study.planning.plan import Plan
from study.records.ledger import TrialRow
from study.records.timing import PRESSURE_LIMIT
from study.space.spec import StudySpec
from study.text import count, cpu_hours, duration, gigabytes, number, significant, spans

if TYPE_CHECKING:
    from analysis.answers import Answer
    from study.designs.base import Design
    from study.driver.conductor import Conductor
    from study.driver.run import StudyResult

WIDEST = 100
"""Columns of a line of text at most: longer ones are hard to read."""

# --- before: the plan -----------------------------------------------------------------------------------------------

_OF_A_CELL: Mapping[str, str] = {
    "envs": "num_envs_per_env_runner",
    "batch": "train_batch_size",
    "minibatch": "minibatch_size",
    "epochs": "num_epochs",
}
"""Columns of a plan of cells, besides runners and learners -> parameter."""


def print_plan(console: Console, plan: Plan, spec: StudySpec, *, name: str) -> None:
    """Print what a study would run, what each trial needs, and how long all of it takes."""
    from study.designs.registry import design_of  # with SciPy, which `status` need not wait for

    stages, cells = design_of(spec).stages, [kind.cell for kind in plan.kinds if kind.cell is not None]
    about = "up to " if stages else ""
    blocks = f", {len(cells)} cells in {max(request.seed for request in plan.requests)} blocks" if cells else ""
    hours, time_ = cpu_hours(plan.hours * plan.cluster.capacity), duration(plan.hours * 3600)
    say(console, f": {about}{count(plan.num_trials, 'trial')}{blocks}, about {time_} here, {hours}", title=name)
    environment = spec.environment.id if spec.script is None else spec.script.environment
    say(console, f"Environment: {environment}" + (f". Stages: {', '.join(stages)}" if stages else ""))
    nodes = ", ".join(
        f"{node.address} ({count(node.num_cpus, 'CPU')} in Ray, {count(node.physical_cpus, 'core')}, "
        f"{node.memory_mb / 1024:.0f} GB)"
        for node in plan.cluster.nodes
    )
    say(console, f"Cluster: {nodes}")
    varying = {name: at for name, at in _OF_A_CELL.items() if len({cell.setting[at] for cell in cells}) > 1}
    equal = [f"{name} {cells[0].setting[at]}" for name, at in _OF_A_CELL.items() if cells and name not in varying]
    if equal:
        say(console, f"Equal in all cells: {', '.join(equal)}")
    learners = any(cell.num_learners for cell in cells)
    headings = ("runners", *varying, *(["learners"] if learners else []))
    headings += ("trials", "execution", "CPUs each", "memory each", "time each", "timing will say")
    rows = []
    for kind in plan.kinds:
        words = [f"{kind.num_env_runners}" if kind.variant == "study" else f"{kind.num_env_runners} (RLlib's own)"]
        if (cell := kind.cell) is not None:
            words += [str(cell.setting[at]) for at in varying.values()]
            words += [str(cell.num_learners)] if learners else []
        each = (str(kind.num_cpus), gigabytes(kind.memory_mb), f"~{duration(kind.hours * 3600)}")
        timing = kind.label.timing + ("*" if kind.label.provisional else "")
        rows.append((*words, str(kind.num_trials), kind.execution, *each, timing))
    console.print(table(headings, rows, words=("execution", "timing will say"), width=console.width))
    if any(kind.label.provisional for kind in plan.kinds):
        say(console, f"measured*: environments wait; oversubscribed if CPU pressure reaches {PRESSURE_LIMIT:.0%}.")
    if cells:
        say(console, f"Engine: {engine_of_space(spec)}.")
    say(console, _basis_of(plan))


def _basis_of(plan: Plan) -> str:
    """Return what the times of a plan rest on."""
    speeds, basis = plan.cluster.speeds, "figures of a 2-core machine"
    if speeds is not None:
        episodes = f", episodes of {speeds.episode_steps:,.0f} steps" if speeds.episode_steps else ""
        step = f"{speeds.step_s * 1e3:.2g} ms a step{episodes}"
        basis = f"{speeds.seconds:.1f} s of random play of the environment ({step}) and {basis}"
    return f"Times are guesses, good to a factor of three, from {basis}."


# --- meanwhile: progress --------------------------------------------------------------------------------------------


def make_display(console: Console) -> "PlainDisplay":
    """Return a display with a live line for a terminal, one of plain lines otherwise."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class PlainDisplay:
    """One line for each change of a trial, and for progress now and then: for files and batch jobs."""

    INTERVAL_S = 30.0
    """Seconds between two lines on how far the study is."""

    def __init__(self, console: Console | None = None) -> None:
        """Write to `console`, or to standard error."""
        self._console = console or terminal(error=True)
        self._conductor: Conductor | None = None
        self._seen: dict[int, tuple[int, str]] = {}
        """Trial -> its attempt and status, as they were last told."""
        self._last = 0.0
        self.said: Answer | str | None = None
        """What the study says, or why that is not known; None before its end."""

    def note(self, text: str) -> None:
        """Print one line, if it can be: a study does not end because its log is full."""
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Print what is being done."""
        self.note(f"{what} …")
        yield

    @contextlib.contextmanager
    def live(self, conductor: "Conductor") -> Iterator[None]:
        """Print lines while the context is open."""
        self._conductor = conductor
        self._seen = {trial: (row.attempt, row.status) for trial, row in conductor.ledger.rows.items()}
        yield
        self.update()

    def update(self) -> None:
        """Print what has changed."""
        if self._conductor is None:
            return
        now = time.strftime("%H:%M:%S")
        for trial, row in self._conductor.ledger.rows.items():
            if self._seen.get(trial) != (state := (row.attempt, row.status)):
                self._seen[trial] = state
                self.note(f"{now} {trial_line(row, self._conductor.design)}")
        if time.monotonic() - self._last > self.INTERVAL_S:
            self._last = time.monotonic()
            self.note(f"{now} {headline(self._conductor)}")

    def answer(self, folder: Path) -> str:
        """Return what the study says as Markdown, and keep it in `said`."""
        self.said = answer_of(folder)
        return "" if isinstance(self.said, str) else self.said.to_markdown()


class LiveDisplay(PlainDisplay):
    """The same lines, and below them how far the study is, in a line that is drawn anew."""

    INTERVAL_S = math.inf

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show what is being done while the context is open."""
        with self._console.status(f"{what} …"):
            yield

    @contextlib.contextmanager
    def live(self, conductor: "Conductor") -> Iterator[None]:
        """Show the study while the context is open."""
        with self._console.status("") as self._status, super().live(conductor):
            self._status.update(headline(conductor))
            yield

    def update(self) -> None:
        """Print what has changed, and draw the line anew."""
        super().update()
        if self._conductor is not None:
            self._status.update(headline(self._conductor))


def headline(conductor: "Conductor") -> str:
    """Return in one line how far the study is: what ended, the best, what runs, how long the rest should take."""
    rows = list(conductor.ledger.rows.values())
    running = [row for row in rows if row.status == "running"]
    counts, total, phase = conductor.ledger.counts(), conductor.plan.num_trials, conductor.phase
    ended = counts["finished"] + counts["failed"]
    parts = [f"{phase}: {ended} of about {total} trials ended" if phase else f"{ended} of {total} trials ended"]
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    if known := [(final, row) for row in rows if (final := _final_return(row)) is not None]:
        final, best = max(known, key=lambda pair: pair[0])
        parts.append(f"best return {significant(final)}{' (of episodes that did not end)' if best.all_cut else ''}")
    parts += _at_work(running, sum(is_evaluating(conductor.spec, row) for row in running))
    if conductor.stop is not None:
        parts.append(f"stopping: {conductor.stop.detail}")
    elif (left := time_left(rows, running, total, time.time())) is not None:
        parts.append(f"about {duration(left.seconds)} left")
    return " · ".join(parts)


def _final_return(row: TrialRow) -> float | None:
    return row.summary.get("final_return") if row.status == "finished" else None


def _at_work(running: Sequence[TrialRow], evaluating: int) -> Iterator[str]:
    """Yield what the running trials do; one that has no processes yet has no rate either."""
    training = [row for row in running if row.timing is not None]
    starting = [row for row in running if row.timing is None]
    if training:
        yield f"{len(training)} running" + (f" ({evaluating} evaluating)" if evaluating else "")
    if runners := sum(row.num_env_runners for row in starting if row.execution == "real"):
        yield f"waiting for {count(runners, 'runner')}"
    elif starting:
        yield f"starting {count(len(starting), 'trial')}"
    if rates := [rate for row in training if (rate := row.env_steps_per_s()) is not None]:
        yield f"{sum(rates):,.0f} env steps/s"


def trial_line(row: TrialRow, design: "Design") -> str:
    """Return how a trial stands, in one line."""
    what = f"trial {row.trial}: {design.words_of(row)}"
    match row.status:
        case "running":
            return f"{what}: started" + (f" again (attempt {row.attempt})" if row.attempt > 1 else "")
        case "finished":
            final, summary = _final_return(row), row.summary
            rate, wall = number(summary.get("env_steps_per_s"), ",.0f"), number(summary.get("wall_time_s"), ".1f")
            learnt = "" if final is None else f"return {significant(final)}, "
            return f"{what}: {learnt}{rate} env steps/s ({row.timing}), {wall} s of training"
        case _:
            return f"{what}: {row.status.upper()}, {one_line(row.reason)}"


# --- at the end: trials, answer, what to type next ------------------------------------------------------------------


def print_end(console: Console, result: "StudyResult", resume: str, answer: "Answer | str | None" = None) -> None:
    """Print what a session came to: its trials, the study's answer, and what to type next."""
    from study.mirrors.mlflow_mirror import MlflowMirror

    closed, identity, folder = result.closed, result.identity, result.folder
    say(console, f"\n{identity.name}: {closed.reason}" + (f" ({closed.detail})" if closed.detail else ""))
    print_trials(console, result.rows, table_file=folder.table, told=closed.detail)
    for caution in cautions(identity.parse(), result.rows):
        say(console, f"\n{caution}")
    if answer is not None:
        say(console, "")
        print_answer(console, answer)
    uri = mask_credentials(identity.tracking_uri)
    experiment = MlflowMirror(folder).state.experiment_id
    page = f"/#/experiments/{experiment}" if experiment else ""
    served = f"mlflow ui --backend-store-uri {shlex.quote(uri)}\n  then open http://127.0.0.1:5000{page}"
    following = {
        "Resume with": resume if closed.reason != "complete" else "",
        "Tables and figures on one page": f"python -m study report {shlex.quote(str(folder.path))}",
        "Certificate, with every rule and interval": str(folder.certificate_page) if result.certificate else "",
        "The trials in MLflow": f"{uri}{page}" if uri.startswith("http") else served,
    }
    if folder.tensorboard.is_dir():
        logs = shlex.quote(str(folder.tensorboard))
        following["Their curves in TensorBoard"] = f"pip install tensorboard && tensorboard --logdir {logs}"
    say(console, "")
    for title, text in following.items():
        if text:
            say(console, f" {text}", title=f"{title}:")


def print_trials(console: Console, rows: Sequence[TrialRow], *, table_file: Path, told: str = "") -> None:
    """Print why trials failed or have no clock, how many there are, by which engine, and where all of it is.

    A reason that is part of `told`, the end of the session as it stands above, is not printed again.
    """
    failed: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.reason and row.status != "finished" and one_line(row.reason).rstrip(".") not in one_line(told):
            failed[row.status.upper(), one_line(row.reason)].append(row.trial)
    for (status, reason), numbers in failed.items():
        say(console, f"{status}, trial{'s' if len(numbers) > 1 else ''} {spans(numbers)}: {reason}")
    for reason in dict.fromkeys(row.timing_reason for row in rows if row.timing in ("oversubscribed", "tainted")):
        say(console, f"not measured: {reason}")
    statuses = Counter(row.status for row in rows)
    also = f", {statuses['interrupted']} interrupted" if statuses["interrupted"] else ""
    engine = engines_in_words(row.engine for row in rows)
    say(console, f"\nn = {count(len(rows), 'trial')}, {statuses['failed']} failed{also}. Engine: {engine}.")
    say(console, f"All columns: {table_file}")


def answer_of(folder: Path) -> "Answer | str":
    """Return what the study says, or why that is not known: whatever goes wrong here, the study itself went well."""
    try:
        import analysis

        return analysis.open(folder).answer()
    except KeyboardInterrupt:
        return f"The answer was left out, as you wished. To get it: python -m study report {shlex.quote(str(folder))}"
    except Exception as error:  # noqa: BLE001 (see above)
        what = error if isinstance(error, StudyError) else f"{type(error).__name__}: {error}"
        return f"The answer cannot be given: {one_line(str(what))} The records are whole."


def print_answer(console: Console, answer: "Answer | str") -> None:
    """Print what a study says, the sentence in bold, then the rest; or why it says nothing."""
    if isinstance(answer, str):
        say(console, answer)
        return
    sentence, _, rest = answer.to_text(min(console.width, WIDEST)).partition("\n\n")
    console.print(Text(sentence.rstrip(), style="bold"), soft_wrap=True)
    if rest:
        console.print(Text(f"\n{rest.rstrip()}"), soft_wrap=True)
