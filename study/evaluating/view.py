"""What a person sees of an evaluation: numbers, a histogram, where the film is; or JSON for programs. Imports rich."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from study.evaluating.summary import suggested_floor

if TYPE_CHECKING:
    from study.evaluating.command import Evaluated
    from study.evaluating.showing import Shown
    from study.evaluating.summary import Summary

BAR = "█"
LONGEST = 40
"""Columns of the longest bar."""


def print_numbers(console: Console, evaluated: "Evaluated") -> None:
    """Print what the policy got."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    summary = evaluated.summary
    say(evaluated.subject.title)
    say(_episodes(evaluated))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in _lines(summary):
        table.add_row(name, value)
    console.print(table, markup=False, highlight=False)
    say("\nEpisodes by return")
    console.print(histogram_view(summary), markup=False, highlight=False)
    say("")
    for sentence in _remarks(evaluated):
        say(sentence)


def print_film(console: Console, film: "Shown", attached: str) -> None:
    """Print where the film is and what it shows."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if film.file is not None:
        size, cut = film.file.stat().st_size / 1e3, sum(not shot.whole for shot in film.shots)
        shown = f"episodes 1 to {len(film.shots)}" if len(film.shots) > 1 else "episode 1"
        end = ", the last one not to its end" if cut else ""
        say(f"Film: {film.file} ({shown}{end}; {film.seconds:.1f} s, {size:,.0f} kB); a picture of it: {film.poster}")
    if film.unlike:
        numbers = ", ".join(str(episode + 1) for episode in film.unlike)
        say(
            f"What is seen of episode {numbers} is not what was counted: the environment does not follow its seed. "
            "Fix: draw from its np_random alone."
        )
    if attached:
        say(attached)


def histogram_view(summary: "Summary") -> Table:
    """Return the histogram as lines of text."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="left", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    most = max(bar.count for bar in summary.bars)
    for bar in summary.bars:
        span = f"{bar.low:,.1f}" if bar.low == bar.high else f"{bar.low:,.1f} to {bar.high:,.1f}"
        length = round(bar.count / most * LONGEST)
        table.add_row(span, BAR * max(length, bar.count > 0), f"{bar.count:,}")
    return table


def to_json(evaluated: "Evaluated") -> str:
    """Return everything that is known, as JSON."""
    subject, film = evaluated.subject, evaluated.film
    content: dict[str, Any] = {
        "study": None if subject.study is None else str(subject.study.path),
        "trial": subject.trial,
        "chosen_among": subject.chosen_among or None,
        "checkpoint": None if subject.checkpoint is None else str(subject.checkpoint),
        "random": subject.random,
        "environment": evaluated.spec.environment.id,
        "deterministic": not evaluated.stochastic,
        "seed": evaluated.spec.evaluation.seed,
        "first_episode": subject.first_episode,
        "as_recorded": evaluated.as_recorded,
        **evaluated.summary.to_json(),
        "suggested_floor": suggested_floor(evaluated.summary.mean) if subject.random else None,
        "film": None if film is None else str(film.file),
    }
    return json.dumps(content, indent=1) + "\n"


def _episodes(evaluated: "Evaluated") -> str:
    spec, n = evaluated.spec, len(evaluated.summary.returns)
    how = "random" if evaluated.subject.random else "drawn" if evaluated.stochastic else "greedy"
    first = f" from episode {number:,} on" if (number := evaluated.subject.first_episode) else ""
    return f"{n:,} {how} episode{'s' if n != 1 else ''} of {spec.environment.id}, seed {spec.evaluation.seed}{first}\n"


def _lines(summary: "Summary") -> Iterator[tuple[str, str]]:
    n = len(summary.returns)
    if summary.mean.has_interval:
        mean = f"{summary.mean.value:,.2f} [{summary.mean.low:,.2f}, {summary.mean.high:,.2f}]"
        yield "mean return", f"{mean}, 95 % interval over {n:,} episodes"
    else:
        yield "mean return", f"{summary.mean.value:,.2f} (n={n}, no interval)"
    yield "median", f"{summary.median:,.2f}"
    yield "range", f"{min(summary.returns):,.2f} to {max(summary.returns):,.2f}"
    if summary.solved is not None:
        share = f"{summary.solved.value:.0%} [{summary.solved.low:.0%}, {summary.solved.high:.0%}]"
        yield "solved", f"{summary.num_solved:,} of {n:,} at the target of {summary.target:,g} or above: {share}"
    yield "cut", f"{summary.num_cut:,} of {n:,} did not end in time"


def _remarks(evaluated: "Evaluated") -> Iterator[str]:
    """Yield what the numbers mean and do not mean."""
    if evaluated.subject.random:
        yield from _remarks_on_random(evaluated)
        return
    subject, own = evaluated.subject, evaluated.subject.spec.evaluation.seed
    match evaluated.as_recorded:
        case True:
            yield "These are the returns of the trial's final evaluation on record, episode by episode."
        case False:
            yield (
                "These are not the returns on record: other versions, another CPU that rounds otherwise, or an "
                "environment that does not follow its seed."
            )
    if subject.chosen_among > 1 and evaluated.spec.evaluation.seed == own:
        yield (
            f"The best of {subject.chosen_among:,} trials on these very episodes, which flatters it. For episodes that "
            f"nothing was chosen by: --seed {own + 1}"
        )


def _remarks_on_random(evaluated: "Evaluated") -> Iterator[str]:
    """Yield what was played, how the space's floor compares, and at last the line that may replace it."""
    yield "Every action was drawn from the action space, uniformly between its bounds: nothing was learnt."
    mean, own = evaluated.summary.mean, evaluated.spec.environment.floor
    floor = suggested_floor(mean)
    if floor is None:
        yield "One episode has no interval and is no floor. More: --episodes 200"
        return
    if own is not None:
        where = "within" if mean.low <= own <= mean.high else "outside of"
        yield f"The space's own floor of {own:,g} is {where} the interval."
    yield "\nUnder `environment` in the space:"
    yield f"floor: {floor:.12g}  # random policy: {mean:.4g}"
