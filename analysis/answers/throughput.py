"""The answer of a throughput study: how much faster more runners are, what they cost, what limits. Imports pandas."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pandas as pd

from analysis.answers.answer import Answer, Number, Unknown
from analysis.answers.prices import Workload, main_workload, price_list
from analysis.answers.progress import nothing_yet, unfinished
from analysis.answers.words import (
    clocks_counted,
    clocks_in_words,
    in_words,
    interval,
    known,
    percent,
    run_again,
    runners,
    to_copy,
    took,
)
from analysis.estimates import Results, Row
from analysis.load.study_data import StudyData
from analysis.models.iteration_time import MARGINAL_THRESHOLD
from analysis.models.study import MOST_EXTRAPOLATED
from analysis.tables.numbers import intervals_overlap, significant
from study.engine import other_engine
from study.space.parameters import SCALE
from study.text import count

PHASES = {
    "share_sample": "sampling",
    "share_learn": "learning",
    "share_sync": "sending weights to the runners",
    "share_rest": "everything else",
}
"""Share of an iteration -> what it is called in a sentence."""
TYPED = ("train_batch_size", "minibatch_size", "num_epochs")
"""Values that the line to copy has beside the number of runners; with the lanes of a runner, where these differ."""
LANES = "num_envs_per_env_runner"


def throughput_answer(results: Results, rows: Sequence[Row], price_per_cpu_hour: float | None) -> Answer:
    """Return what a throughput study says: the gain in speed from the smallest to the largest measured scale."""
    data, workload = results.data, main_workload(rows)
    rates = [row for row in rows if row.quantity == "env_steps_per_s" and row.basis == "measured"]
    if workload is None:
        return _not_comparable(results, rates)
    prices = price_list(workload, price_per_cpu_hour)
    fastest, mine = (
        max(some, key=lambda row: row.estimate.value)
        for some in (rates, [row for row in rates if row in workload.rows])
    )
    chosen = mine if intervals_overlap(mine.estimate, fastest.estimate) else fastest
    return Answer(
        kind=data.kind,
        sentence=f"{_speed_up(workload)} {_more_help(workload)}",
        setting=to_copy(_setting(results, chosen)),
        setting_is="the fastest measured",
        facts=tuple(_facts(data, workload, chosen, fastest)),
        numbers=tuple(_numbers(workload)),
        rows=prices,
        prices=prices,
        unknown=(*unfinished(data), *_unknown(data, workload)),
        figure="efficiency",
    )


def _speed_up(workload: Workload) -> str:
    first, last = workload.scales[0], workload.scales[-1]
    gain, share = workload.at("speed_up")[last].estimate, workload.at("efficiency_per_runner")[last].estimate
    return (
        f"{runners(last)} finish {known(gain, digits=2)} times as many steps per hour as {first}: "
        f"{known(share, digits=2)} of the ideal."
    )


def _more_help(workload: Workload) -> str:
    """Return whether more runners would help, as far as it was measured or is predicted nearby."""
    marginal = workload.at("marginal_efficiency")
    for before, scale in pairwise(workload.scales) if workload.placed_once else ():
        share = marginal[scale].estimate if scale in marginal else None
        if share is not None and share.has_interval and share.high < MARGINAL_THRESHOLD:
            gives = known(share, digits=2)
            return f"More than {runners(before)} hardly pay: up to {scale}, an added CPU gives {gives} of its share."
    limit = next((row for row in workload.rows if row.quantity == "limit_num_env_runners"), None)
    if limit is not None:
        return f"By the model, more than about {limit.estimate.value:.0f} would hardly pay (predicted)."
    most = workload.scales[-1]
    beyond = max(workload.at("env_steps_per_s"))
    predicted = f"; the table predicts up to {beyond}" if beyond > most else ""
    return f"More than {most} were not tried{predicted}."


def _setting(results: Results, chosen: Row) -> dict[str, int]:
    """Return what a person types for a measured cell."""
    runs, scale = results.data.runs, chosen.cell.num_env_runners or 0
    run = runs[runs["fingerprint"].eq(chosen.fingerprint) & runs[SCALE].eq(scale)].iloc[0]
    names = (LANES, *TYPED) if runs[LANES].nunique() > 1 else TYPED
    return {SCALE: scale} | {name: int(run[name]) for name in names if pd.notna(run[name])}


def _facts(data: StudyData, workload: Workload, chosen: Row, fastest: Row) -> Iterator[str]:
    last = workload.scales[-1]
    shares = {words: at[last].estimate for name, words in PHASES.items() if last in (at := workload.at(name))}
    if len(shares) > 1 and workload.placed_once:  # phases are those of all placements together
        (first, most), (second, next_) = sorted(shares.items(), key=lambda each: -each[1].value)[:2]
        if first == "sampling" and data.spec is not None and data.spec.environment.step_wait_ms:
            first = f"sampling, in environments that wait {data.spec.environment.step_wait_ms:g} ms in every step"
        yield (
            f"What limits with {runners(last)}: {first} ({percent(most.value)} of an iteration); {second} takes "
            f"{percent(next_.value)}."
        )
    costs = {n: row for n, row in workload.at("cpu_hours_per_million_steps").items() if row.basis == "measured"}
    cheapest = min(costs, key=lambda n: costs[n].estimate.value, default=0)
    cheap = f"; cheapest: {runners(cheapest)}, {known(costs[cheapest].estimate)} CPU-hours for a million steps"
    rate = chosen.estimate
    equal = "" if chosen is fastest else f"; {_place(fastest)} are as fast, within the error"
    yield (
        f"Fastest measured: {_place(chosen)}, {known(rate)} steps a second "
        f"({interval(rate)}, {count(rate.n, 'run')}){equal}{cheap if len(costs) > 1 else ''}."
    )
    if len(workload.scales) > 1 and (gained := _gained(workload)):
        yield gained
    cost = took(data)
    yield f"{cost}{'; ' if cost else ''}{clocks_counted(data.runs)}."


def _gained(workload: Workload) -> str:
    """Return what the last measured step to more runners saves or costs, for a million steps."""
    before, last = workload.scales[-2:]
    quantities = "hours_per_million_steps", "cpu_hours_per_million_steps"
    hours, cpu_hours = ({n: row.estimate.value for n, row in workload.at(name).items()} for name in quantities)
    if not all(n in some for n in (before, last) for some in (hours, cpu_hours)):
        return ""
    parts = [
        f"{significant(abs(change), 2)} {unit} {'more' if change > 0 else 'less'}"
        for change, unit in ((hours[last] - hours[before], "hours"), (cpu_hours[last] - cpu_hours[before], "CPU-hours"))
    ]
    return f"{runners(last)} instead of {before} take {' and '.join(parts)} for a million steps."


def _place(row: Row) -> str:
    batch = row.cell.train_batch_size
    return runners(row.cell.num_env_runners or 0) + (f" at batch {batch:,}" if batch else "")


def _numbers(workload: Workload) -> Iterator[Number]:
    last = workload.scales[-1]
    rate, share = workload.at("env_steps_per_s")[last].estimate, workload.at("efficiency_per_runner")[last].estimate
    yield Number(label=f"speed of {runners(last)}", text=f"{known(rate)} steps/s", note=interval(rate))
    yield Number(label=f"of the ideal, against {workload.scales[0]}", text=known(share, digits=2), note=interval(share))
    if last in (hours := workload.at("hours_per_million_steps")):
        costs = workload.at("cpu_hours_per_million_steps")
        note = f"{known(costs[last].estimate)} CPU-hours" if last in costs else ""
        yield Number(label="for a million steps", text=f"{known(hours[last].estimate)} hours", note=note)


def _unknown(data: StudyData, workload: Workload) -> Iterator[Unknown]:
    most = MOST_EXTRAPOLATED * workload.scales[-1]
    yield Unknown(
        text=f"anything beyond {runners(most)}, twice the largest number that ran. Intervals of predictions know the "
        "scatter of the runs, not what the model leaves out."
    )
    clocked = data.runs.loc[data.runs["timing"].eq("measured").fillna(False), SCALE]
    if told := clocks_in_words(data.runs[~data.runs[SCALE].isin(clocked)]):
        yield Unknown(text=f"the speed of other numbers of runners that were tried: {told}.")
    yield Unknown(text="which setting learns best: such short runs measure speed alone.")
    if data.spec is not None and (another := other_engine(data.spec)) is not None:
        other, options = another
        command = run_again(data, "other_engine", [word for word in options.split() if word != "--set"])
        yield Unknown(
            text=f"how other engines do: only {workload.engine or 'one'} was measured, not {other}.", command=command
        )


def _not_comparable(results: Results, rates: Sequence[Row]) -> Answer:
    """Return what can be said where no two scales ran equal work with a measured clock."""
    data = results.data
    if not rates:
        told = clocks_in_words(data.runs) or "no trial has a measured clock"
        return nothing_yet(data, f"how fast real runners are: {told}.")
    fastest = max(rates, key=lambda row: row.estimate.value)
    rate, setting = fastest.estimate, _setting(results, fastest)
    commands = [each.command for each in results.strong.refusals if each.command]
    missing = "how speed grows with the runners: no two scales ran equal work with a measured clock."
    one = "It is one run: nothing says what another one would give."
    return Answer(
        kind=data.kind,
        sentence=f"{runners(setting[SCALE])} with {in_words({k: v for k, v in setting.items() if k != SCALE})} ran "
        f"fastest: {known(rate)} steps a second.",
        setting=to_copy(setting),
        setting_is="the fastest measured",
        facts=(one if rate.n == 1 else f"These are {rate.n} runs, {interval(rate)}.",),
        unknown=(Unknown(text=missing, command=(commands or [""])[0]), *unfinished(data)),
    )
