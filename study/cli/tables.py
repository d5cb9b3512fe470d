"""What a person sees of trials, answers and plans, the same for every kind of study and every command. No engine."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from study.console import say, table
from study.engine import engine_of_space, engines_in_words, other_engine
from study.errors import StudyError
from study.harmless import one_line
from study.planning.plan import Plan, TrialNeeds
from study.records.ledger import TrialRow
from study.records.timing import PRESSURE_LIMIT
from study.space.spec import StudySpec
from study.text import count, cpu_hours, duration, gigabytes, spans

if TYPE_CHECKING:
    from analysis.answers import Answer

PROVISIONAL = f"measured*: environments wait; oversubscribed if CPU pressure reaches {PRESSURE_LIMIT:.0%}."
WIDEST = 100
"""Columns of a line of text at most: longer ones are hard to read."""

# --- trials ---------------------------------------------------------------------------------------------------------


def print_trials(console: Console, rows: Sequence[TrialRow], *, table_file: Path) -> None:
    """Print why trials failed or have no clock, how many there are, by which engine, and where all of it is."""
    failed: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.reason and row.status != "finished":
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


# --- answers --------------------------------------------------------------------------------------------------------


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


# --- plans ----------------------------------------------------------------------------------------------------------

_OF_A_CELL: Mapping[str, str] = {
    "envs": "num_envs_per_env_runner",
    "batch": "train_batch_size",
    "minibatch": "minibatch_size",
    "epochs": "num_epochs",
}
"""Columns of a plan of cells, besides runners and learners -> parameter."""


def _basis_of(plan: Plan) -> str:
    """Return what the times of a plan rest on."""
    speeds, rest = plan.cluster.speeds, "figures of a 2-core machine"
    if speeds is None:
        return f"Times are guesses, good to a factor of three, from {rest}."
    episodes = f", episodes of {speeds.episode_steps:,.0f} steps" if speeds.episode_steps else ""
    played = f"{speeds.seconds:.1f} s of random play of the environment ({speeds.step_s * 1e3:.2g} ms a step{episodes})"
    if speeds.product_s:
        played += f", {1 / speeds.product_s:.1e} multiplications a second in products as large as its network's"
    return f"Times are guesses, good to a factor of three, from {played} and {rest}."


def print_plan(console: Console, plan: Plan, spec: StudySpec, *, name: str) -> None:
    """Print what a study would run, what each trial needs, and how long all of it takes."""
    cells = [each.cell for each in plan.kinds if each.cell is not None]
    about = "up to " if not cells and any(request.stage for request in plan.requests) else ""
    blocks = f", {len(cells)} cells in {max(request.seed for request in plan.requests)} blocks" if cells else ""
    hours, time = cpu_hours(plan.hours * plan.cluster.capacity), duration(plan.hours * 3600)
    say(console, f": {about}{count(plan.num_trials, 'trial')}{blocks}, about {time} here, {hours}", title=name)
    nodes = ", ".join(
        f"{node.address} ({count(node.num_cpus, 'CPU')} in Ray, {count(node.physical_cpus, 'core')}, "
        f"{node.memory_mb / 1024:.0f} GB)"
        for node in plan.cluster.nodes
    )
    say(console, f"Cluster: {nodes}")
    varying = [name for name, at in _OF_A_CELL.items() if len({cell.setting[at] for cell in cells}) > 1]
    learners = ["learners"] if any(cell.num_learners for cell in cells) else []
    kinds: list[tuple[Sequence[str], TrialNeeds]] = []
    for each in plan.kinds:
        runners, cell = str(each.num_env_runners), each.cell
        if cell is not None:
            values = (
                *(str(cell.setting[_OF_A_CELL[name]]) for name in varying),
                *(str(cell.num_learners) for _ in learners),
            )
            kinds.append(((runners, *values), each))
        else:
            kinds.append(((runners if each.variant == "study" else f"{runners} ({each.variant})",), each))
    equal = [f"{name} {cells[0].setting[at]}" for name, at in _OF_A_CELL.items() if cells and name not in varying]
    if equal:
        say(console, f"Equal in all cells: {', '.join(equal)}")
    headings = ("runners", *varying, *learners, "trials", "execution", "CPUs each", "memory each", "time each")
    rows = [
        (
            *words,
            str(needs.num_trials),
            needs.execution,
            str(needs.num_cpus),
            gigabytes(needs.memory_mb),
            f"~{duration(needs.hours * 3600)}",
            needs.label.timing + ("*" if needs.label.provisional else ""),
        )
        for words, needs in kinds
    ]
    words = ("execution", "timing will say")
    console.print(table((*headings, words[1]), rows, words=words, width=console.width))
    if any(needs.label.provisional for _, needs in kinds):
        say(console, PROVISIONAL)
    if cells:
        say(console, f"Engine: {engine_of_space(spec)}.")
        if (another := other_engine(spec)) is not None:
            say(console, f"Another one, {another[0]}, is measured by a study of its own: {another[1]}")
    say(console, _basis_of(plan))
