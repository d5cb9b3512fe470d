"""What a person sees of a study: its plan, a line for each change while it runs, where it stands, its answer."""

import contextlib
import shlex
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.status import Status, TimeLeft, read_status, time_left
from study.console import line_width, say, table
from study.engine import engine_of_space
from study.errors import StudyError
from study.machine.shape import UNKNOWN
from study.planning import Plan
from study.records.ledger import PRESSURE_LIMIT, TrialRow
from study.space.spec import StudySpec
from study.text import MISSING, count, cpu_hours, duration, gigabytes, mask_credentials, number, one_line, significant

if TYPE_CHECKING:
    from analysis.answers import Answer
    from study.designs.base import Design
    from study.driver.conductor import Conductor
    from study.driver.run import StudyResult
    from study.evaluating.playing import Evaluated

INTERVAL_S = 30.0
"""Seconds between two lines on how far a study is."""
MOST_RUNNING = 12
"""Trials under way that are listed; the rest are counted."""
_DRIVERS = {"working": "at work", "ended": "has ended", "gone": "gone", "packed": "none, a packed copy"}


def plan_text(plan: Plan, spec: StudySpec, *, name: str) -> str:
    """Return what a study would run, what each trial needs, and about how long all of it takes."""
    from study.designs.registry import design_of  # with SciPy, which `status` need not wait for

    stages, cells = design_of(spec).stages, any(kind.cell for kind in plan.kinds)
    hours, time_ = cpu_hours(plan.hours * plan.cluster.capacity), duration(plan.hours * 3600)
    trials = f"{'up to ' if stages else ''}{count(plan.num_trials, 'trial')}"
    environment = spec.environment.id if spec.script is None else spec.script.environment
    nodes = (
        f"{node.address} ({count(node.num_cpus, 'CPU')} in Ray, {count(node.physical_cpus, 'core')}"
        f"{f', {gigabytes(node.memory_mb)}' if node.memory_mb < UNKNOWN else ''})"
        for node in plan.cluster.nodes
    )
    headings = ["runners", "trials", "execution", "CPUs each", "memory each", "time each", "timing will say"]
    rows = [
        (
            *((kind.cell or MISSING,) if cells else ()),
            f"{kind.num_env_runners}" if kind.variant == "study" else f"{kind.num_env_runners} (RLlib's own)",
            str(kind.num_trials),
            kind.execution,
            str(kind.total.num_cpus),
            gigabytes(kind.total.memory_mb),
            f"~{duration(kind.seconds)}",
            f"{kind.label.timing}{'*' if kind.label.provisional else ''}",
        )
        for kind in plan.kinds
    ]
    lines = [
        f"{name}: {trials}, about {time_}, {hours} (guesses, good to a factor of five)",
        f"Environment: {environment}. Engine: {engine_of_space(spec)}."
        + (f" Stages: {', '.join(stages)}." if stages else ""),
        f"Cluster: {', '.join(nodes)}",
        table(["cell", *headings] if cells else headings, rows, words=("cell", "execution", "timing will say")),
    ]
    if any(kind.label.provisional for kind in plan.kinds):
        lines.append(f"measured*: environments wait; oversubscribed if CPU pressure reaches {PRESSURE_LIMIT:.0%}.")
    return "\n".join(lines)


# --- while it runs ----------------------------------------------------------------------------------------------------


class Display:
    """One line for each change of a trial, and for how far the study is now and then."""

    def __init__(self, *, error: bool = True) -> None:
        """Write to standard error, or to standard output."""
        self._error = error
        self._conductor: Conductor | None = None
        self._seen: dict[int, tuple[int, str]] = {}
        """Trial -> its attempt and status, as they were last told."""
        self._last = 0.0
        self.said: Answer | str | None = None
        """What the study says, or why that is not known; None before its end."""

    def note(self, text: str) -> None:
        """Print one line, if it can be: a study does not end because its log is full."""
        with contextlib.suppress(OSError):
            say(text, error=self._error)

    def watch(self, conductor: "Conductor") -> None:
        """Tell from now on what changes in a session."""
        self._conductor = conductor
        self._seen = {trial: (row.attempt, row.status) for trial, row in conductor.ledger.rows.items()}

    def update(self) -> None:
        """Print what has changed."""
        if self._conductor is None:
            return
        now = time.strftime("%H:%M:%S")
        for trial, row in self._conductor.ledger.rows.items():
            if self._seen.get(trial) != (state := (row.attempt, row.status)):
                self._seen[trial] = state
                self.note(f"{now} {trial_line(row, self._conductor.design)}")
        if time.monotonic() - self._last > INTERVAL_S:
            self._last = time.monotonic()
            self.note(f"{now} {headline(self._conductor)}")

    def answer(self, folder: Path) -> str:
        """Return what the study says as Markdown, and keep it in `said`."""
        self.said = answer_of(folder)
        return "" if isinstance(self.said, str) else self.said.to_markdown()


def headline(conductor: "Conductor") -> str:
    """Return in one line how far a session is: what ended, the best, what runs, how long the rest should take."""
    rows, total = [*conductor.ledger.rows.values()], conductor.plan.num_trials
    running = [row for row in rows if row.status == "running"]
    known = [final for row in rows if (final := _final_return(row)) is not None]
    best = f"best return {significant(max(known))}" if known else ""
    phase, stop = conductor.phase, conductor.stop
    left = time_left(rows, running, total, time.time()) if stop is None else None
    counts = conductor.ledger.counts()
    how_far = _how_far(counts, f"{'about ' if phase else ''}{total:,}", running, left=left, best=best)
    return f"{f'{phase}: ' if phase else ''}{how_far}{f' · stopping: {stop.detail}' if stop else ''}"


def _how_far(
    counts: Mapping[str, int], total: str, running: Collection[TrialRow], *, left: TimeLeft | None, best: str = ""
) -> str:
    """Return what has ended of `total` trials, what runs, how long the rest should take."""
    starting = sum(row.timing is None for row in running)
    parts = [
        f"{counts['finished'] + counts['failed']:,} of {total} trials ended",
        f"{counts['failed']} failed" if counts["failed"] else "",
        best,
        f"{len(running)} running{f' ({starting} starting)' if starting else ''}" if running else "",
        f"about {duration(left.seconds)} left, by the median of n={left.n} trials"
        if left is not None and left.seconds >= 1
        else "",
    ]
    return " · ".join(filter(None, parts))


def _final_return(row: TrialRow) -> float | None:
    return row.summary.get("final_return") if row.status == "finished" else None


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


# --- where it stands --------------------------------------------------------------------------------------------------


def status_text(status: Status, *, at_end: bool = False) -> str:
    """Return how far a study is, what runs now, and what a person should know or type; `at_end` of its own driver."""
    return "\n".join(_status_lines(status, at_end))


def _status_lines(status: Status, at_end: bool) -> Iterator[str]:
    stage = f" · stage {status.stage}" if status.stage else ""
    session = f" · session {status.sessions}" if status.sessions > 1 else ""
    yield f"{status.name}: {status.state}{stage}{session}"
    total = f"{'about ' if status.guessed else ''}{status.num_trials:,}"
    yield _how_far(status.counts, total, status.running, left=status.left)
    yield from (f"! {problem}" for problem in status.problems)
    yield from (f"trial {row.trial}: {_under_way(row, status.moment)}" for row in status.running[:MOST_RUNNING])
    if len(status.running) > MOST_RUNNING:
        yield f"… and {len(status.running) - MOST_RUNNING} more"
    since = "nothing recorded yet"
    if status.silence_s is not None:
        last = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.moment - status.silence_s))
        since = f"last record {f'{duration(status.silence_s)} ago' if status.silence_s < 86_400 else last}"
    if not at_end:
        yield f"Driver: {_DRIVERS[status.driver]}; {since}"
    for each in status.advice:
        yield f"! {each.text}"
        if each.command:
            yield f"  {each.command}"


def _under_way(row: TrialRow, moment: float) -> str:
    """Return what a trial under way runs and how far it is, in one line."""
    again = f", attempt {row.attempt}" if row.attempt > 1 else ""
    what = f"{count(row.num_env_runners, 'runner')}, seed {row.seed}{again}"
    since = duration(max(moment - row.started, 0.0))
    if row.startup_time_s is None:
        return f"{what}: starting for {since}"
    rate, timing = number(row.env_steps_per_s(), ",.0f"), "not settled" if row.provisional else row.timing
    return f"{what}: {row.progress:.0%} done in {since}, {rate} env steps/s ({timing})"


# --- at the end -------------------------------------------------------------------------------------------------------


def print_end(result: "StudyResult", resume: str, answer: "Answer | str | None" = None) -> None:
    """Print what a session came to: its answer, where the study stands, and what to type next."""
    from study.mirrors.mlflow_mirror import MlflowMirror, page_of

    closed, folder, identity = result.closed, result.folder, result.folder.identity()
    if answer is not None:
        say()
        print_answer(answer)
    say()
    if closed.reason == "stopped":  # a signal gives ten seconds
        say(f"{identity.name}: {closed.reason}" + (f" ({closed.detail})" if closed.detail else ""))
    else:
        now = read_status(folder.path)
        shown = tuple(each for each in now.advice if not each.command.endswith("--resume"))
        say(status_text(replace(now, advice=shown), at_end=True))
    uri = mask_credentials(identity.tracking_uri)
    experiment = MlflowMirror(folder).state.experiment_id
    page = page_of(experiment, identity.study_id) if experiment else ""
    served = f"mlflow ui --backend-store-uri {shlex.quote(uri)}\n  then open http://127.0.0.1:5000{page}"
    logs, certified = shlex.quote(str(folder.tensorboard)), folder.certificate_page
    following = {
        "Resume with": resume if closed.reason != "complete" else "",
        "All columns": str(folder.table),
        "Tables and figures on one page": f"python -m study report {shlex.quote(str(folder.path))}",
        "Certificate, with every rule and interval": str(certified) if certified.exists() else "",
        "The trials in MLflow": f"{uri}{page}" if uri.startswith("http") else served,
        "Their curves in TensorBoard": f"tensorboard --logdir {logs}" if folder.tensorboard.is_dir() else "",
    }
    say("\n".join(["", *(f"{title}: {text}" for title, text in following.items() if text)]))


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


def print_answer(answer: "Answer | str") -> None:
    """Print what a study says, or why it says nothing."""
    say((answer if isinstance(answer, str) else answer.to_text(line_width())).rstrip())


# --- what a policy gets -----------------------------------------------------------------------------------------------


def evaluated_text(evaluated: "Evaluated") -> str:
    """Return what a policy got, and what that means and does not mean."""
    return "\n".join(_evaluated_lines(evaluated))


def _evaluated_lines(evaluated: "Evaluated") -> Iterator[str]:
    policy, spec, returns, mean = evaluated.policy, evaluated.spec, evaluated.returns, evaluated.mean
    n, is_random = len(returns), policy.row is None
    how = "random" if is_random else "drawn" if evaluated.stochastic else "greedy"
    first = f" from episode {policy.first_episode:,} on" if policy.first_episode else ""
    interval = f" [{significant(mean.low)}, {significant(mean.high)}], 95 % interval over {n:,} episodes"
    yield policy.title
    yield f"{count(n, f'{how} episode')} of {spec.environment.id}, seed {spec.evaluation.seed}{first}\n"
    yield f"mean return  {significant(mean.value)}{interval if mean.has_interval else ' (no interval)'}"
    yield f"range        {significant(min(returns))} to {significant(max(returns))}"
    if (solved := evaluated.solved) is not None:
        share, target = f"{solved.value:.0%} [{solved.low:.0%}, {solved.high:.0%}]", spec.environment.target
        yield f"solved       {evaluated.num_solved:,} of {n:,} at {target:,g} or above: {share}"
    if evaluated.num_cut:
        yield f"cut          {evaluated.num_cut:,} of {n:,} had not ended at evaluation.max_episode_steps"
    own = policy.spec.evaluation.seed
    if is_random and not mean.has_interval:
        yield "\nOne episode has no interval and is no floor. More: --episodes 200"
    elif is_random:
        yield "\nNothing was learnt: actions were drawn uniformly. Under `environment` in the space:"
        yield f"floor: {float(f'{mean.value:.3g}'):g}  # random policy: {significant(mean.value)}{interval}"
    elif evaluated.as_recorded:
        yield "\nThese are the returns of the trial's last evaluation on record, episode by episode."
    elif evaluated.as_recorded is False:
        other = "another CPU that rounds otherwise, or an environment that does not follow its seed"
        yield f"\nThese are not the returns on record: other versions, {other}."
    if policy.chosen_among > 1 and spec.evaluation.seed == own:
        chosen = f"The best of {policy.chosen_among:,} trials on these very episodes, which flatters it."
        yield f"{chosen} For episodes that nothing was chosen by: --seed {own + 1}"
    if evaluated.film is not None:
        yield f"Film: {evaluated.film}"
