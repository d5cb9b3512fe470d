"""The answer of a throughput study: how much faster more runners are, what they cost, what limits. Imports pandas."""

from collections.abc import Iterator

from analysis import models
from analysis.answers.answer import Answer, Number, Unknown
from analysis.answers.prices import MOST_EXTRAPOLATED, Price, main_group, price_list, prices_table
from analysis.answers.progress import nothing_yet, unfinished
from analysis.answers.words import (
    clocks_in_words,
    in_words,
    interval,
    known,
    percent,
    run_again,
    runners,
    said,
    to_copy,
)
from analysis.estimates.results import Results, attempt
from analysis.load.study_data import StudyData
from analysis.scaling.fingerprint import fields
from analysis.scaling.results import PhaseRow, Scaling, ScalingGroup, ScalingRow
from study.engine import other_engine
from study.space.parameters import SCALE

OTHER_PHASES = {"learning": "learning", "sync": "sending weights to the runners", "rest": "everything else"}
"""Phase of an iteration beside sampling -> what it is called in a sentence."""
TYPED = ("train_batch_size", "minibatch_size", "num_epochs")
"""Values that the line to copy has beside the number of runners."""


def throughput_answer(data: StudyData, results: Results, price_per_cpu_hour: float | None) -> Answer:
    """Return what a throughput study says: the gain in speed from the smallest to the largest measured scale."""
    group = main_group(results)
    if group is None:
        return _not_comparable(data, results)
    last = group.rows[-1]
    prices = price_list(results, group)
    engine = _engine(group)
    batch = f", batch {last.train_batch_size:,}" if last.train_batch_size else ""
    table = prices_table(
        prices, price_per_cpu_hour=price_per_cpu_hour,
        title=f"What each number of runners costs (engine {engine}{batch})",
    )  # fmt: skip
    return Answer(
        kind=data.kind,
        sentence=f"{_speed_up(group)} {_more_help(group, results)}",
        setting=_setting(results),
        facts=tuple(_facts(data, results, group, prices))[:3],
        numbers=tuple(_numbers(group, prices)),
        rows=table,
        prices=table,
        unknown=(*unfinished(data), *_unknown(data, group, prices)),
        figure="efficiency",
    )


def _speed_up(group: ScalingGroup) -> str:
    last = group.rows[-1]
    share = known(last.efficiency_n, digits=2)
    return (
        f"{runners(last.num_env_runners).capitalize()} finish {known(last.speed_up, digits=2)} times as many steps per "
        f"hour as {group.reference}: {share} of the ideal."
    )


def _more_help(group: ScalingGroup, results: Results) -> str:
    """Return whether more runners would help, as far as it was measured or is predicted nearby."""
    threshold = models.MARGINAL_THRESHOLD
    for before, row in zip(group.rows, group.rows[1:], strict=False):
        if row.marginal is not None and row.marginal.has_interval and row.marginal.high < threshold:
            return (
                f"More than {runners(before.num_env_runners)} hardly pay: up to {row.num_env_runners}, added CPUs give "
                f"{known(row.marginal, digits=2)} of their share."
            )
    most = MOST_EXTRAPOLATED * group.rows[-1].num_env_runners
    fit = attempt(lambda: results.models.fit)
    limit = None if isinstance(fit, str) else models.runner_limit(fit, results.models.cell)[0].num_env_runners
    if limit is not None and limit.value <= most:
        return f"By the model, more than about {limit.value:.0f} would hardly pay (predicted)."
    return "Nothing measured says that more would not help."


def _setting(results: Results) -> str:
    """Return the line to copy of the fastest measured cell."""
    strong = results.strong
    if not isinstance(strong, Scaling):
        return ""
    cells = [(group, row) for group in strong.groups for row in group.rows]
    group, row = max(cells, key=lambda cell: cell[1].env_steps_per_s.value)
    content = fields(group.fingerprint)
    minibatch = content.get("minibatch_times_learners", content.get("minibatch_size"))
    values = {
        "train_batch_size": row.train_batch_size,
        "minibatch_size": minibatch,
        "num_epochs": content.get("num_epochs"),
    }
    return to_copy({SCALE: row.num_env_runners} | {name: each for name, each in values.items() if each is not None})


def _facts(data: StudyData, results: Results, group: ScalingGroup, prices: tuple[Price, ...]) -> Iterator[str]:
    last = group.rows[-1]
    phase = _phases_of(results, group, last)
    if phase is not None:
        waits = data.spec is not None and data.spec.environment.step_wait_ms
        sampling = "sampling, in environments that wait" if waits else "sampling"
        shares = {sampling: phase.phase.value}
        shares |= {words: phase.shares[name].value for name, words in OTHER_PHASES.items()}
        (first, most), (second, next_) = sorted(shares.items(), key=lambda each: -each[1])[:2]
        where = runners(last.num_env_runners)
        yield f"What limits with {where}: {first} ({percent(most)} of an iteration); {second} takes {percent(next_)}."
    measured = [each for each in prices if each.basis == "measured"]
    if len(measured) > 1:
        cheapest = min(measured, key=lambda each: each.cpu_hours.value)
        yield (
            f"Cheapest measured: {runners(cheapest.num_env_runners)}, {known(cheapest.cpu_hours)} CPU-hours for a "
            "million steps."
        )
    yield from _fastest(results, group)


def _fastest(results: Results, group: ScalingGroup) -> Iterator[str]:
    strong = results.strong
    if not isinstance(strong, Scaling):
        return
    cells = [(each, row) for each in strong.groups for row in each.rows]
    best, row = max(cells, key=lambda cell: cell[1].env_steps_per_s.value)
    batch = f" at batch {row.train_batch_size:,}" if best is not group and row.train_batch_size else ""
    yield (
        f"Fastest measured: {runners(row.num_env_runners)}{batch}, {known(row.env_steps_per_s)} steps a second "
        f"({interval(row.env_steps_per_s)})."
    )


def _numbers(group: ScalingGroup, prices: tuple[Price, ...]) -> Iterator[Number]:
    last = group.rows[-1]
    at = next((each for each in prices if each.num_env_runners == last.num_env_runners), None)
    yield Number(
        label=f"speed of {runners(last.num_env_runners)}",
        text=f"{known(last.env_steps_per_s)} steps/s",
        note=interval(last.env_steps_per_s),
    )
    yield Number(
        label=f"of the ideal, against {group.reference}",
        text=known(last.efficiency_n, digits=2),
        note=interval(last.efficiency_n),
    )
    if at is not None:
        yield Number(
            label="for a million steps", text=f"{known(at.hours)} hours", note=f"{known(at.cpu_hours)} CPU-hours"
        )


def _unknown(data: StudyData, group: ScalingGroup, prices: tuple[Price, ...]) -> Iterator[Unknown]:
    most = max(row.num_env_runners for row in group.rows)
    yield Unknown(text=f"anything beyond {runners(MOST_EXTRAPOLATED * most)}, twice the largest measured.")
    told = clocks_in_words(data.runs)
    if told:
        yield Unknown(text=f"the speed of the runs that are left out: {told}.")
    if data.spec is not None:
        other, options = other_engine(data.spec)
        command = run_again(data, "other_engine", [word for word in options.split() if word != "--set"])
        yield Unknown(text=f"how other engines do: only {_engine(group)} was measured, not {other}.", command=command)


def _not_comparable(data: StudyData, results: Results) -> Answer:
    """Return what can be said where no two scales ran equal work with a measured clock."""
    runs = data.runs
    rates = runs.dropna(subset=["env_steps_per_s"])
    rates = rates[rates["timing"].eq("measured").fillna(False)]
    missing = "how speed grows with the runners: no two scales ran equal work with a measured clock."
    told = clocks_in_words(runs)
    if rates.empty:
        if told:
            missing = f"how fast real runners are: {told}."
        return nothing_yet(data, missing)
    fastest = rates.iloc[int(rates["env_steps_per_s"].to_numpy(float).argmax())]
    setting = {name: int(fastest[name]) for name in TYPED if name in fastest and fastest[name] == fastest[name]}
    return Answer(
        kind=data.kind,
        sentence=f"{runners(int(fastest[SCALE])).capitalize()} with {in_words(setting)} were fastest: "
        f"{said(float(fastest['env_steps_per_s']))} steps a second.",
        setting=to_copy({SCALE: int(fastest[SCALE]), **setting}),
        facts=("It is one run: nothing says what another one would give.",),
        unknown=(Unknown(text=missing, command=_refusal_command(results)), *unfinished(data)),
        figure="throughput",
    )


def _refusal_command(results: Results) -> str:
    found = results.strong
    commands = [each.command for each in found.refusals if each.command] if isinstance(found, Scaling) else []
    return commands[0] if commands else ""


def _engine(group: ScalingGroup) -> str:
    return str(fields(group.fingerprint).get("engine", "unknown"))


def _phases_of(results: Results, group: ScalingGroup, last: ScalingRow) -> PhaseRow | None:
    if isinstance(results.phases, str):
        return None
    rows = [row for row in results.phases.rows if row.num_env_runners == last.num_env_runners]
    return next((row for row in rows if row.fingerprint == group.fingerprint), None)
