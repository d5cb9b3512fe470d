"""What a throughput study says: how much faster more runners are, what they cost, what limits. Selects; pandas."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.answers.answer import Answer
from analysis.answers.facts import (
    Fact,
    capital,
    clocks,
    cost_and_clocks,
    nothing_yet,
    overlap,
    run_again,
    runners,
    to_copy,
    unfinished,
    values_in_words,
)
from analysis.estimates.frame import estimate_of
from analysis.scaling.blocks import scaled
from analysis.tables.numbers import in_words, number, percent
from analysis.tables.table import Table, TableColumn, table_of
from study.engine import other_engine
from study.space.parameters import SCALE
from study.statistics import Estimate
from study.text import listed

if TYPE_CHECKING:
    from analysis.opened import Study

HALF = 0.5
"""Share of its due below which an added CPU hardly pays."""
MOST_PRICES = 12
TYPED = ("num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs")
PARTS = {
    "share_sample": "sampling",
    "share_learn": "learning",
    "share_sync": "sending weights to the runners",
    "share_rest": "everything else",
}
"""Share of an iteration -> what it is called in a sentence."""
SAVED = "CPU-hours more for each hour saved (negative: fewer)"
PRICES = (
    TableColumn(SCALE, "1", "runners", "Environment runners."),
    TableColumn("num_cpus", "1", "CPUs", "CPUs reserved: one per process."),
    TableColumn("env_steps_per_s", "1", "steps/s", "Environment steps per second.", estimate=True),
    TableColumn("hours_per_million_steps", "1", "hours per million steps", "Of training.", estimate=True),
    TableColumn("cpu_hours_per_million_steps", "1", "CPU-hours per million steps", "Hours times CPUs.", estimate=True),
    TableColumn("cost", "1", "cost per million", "CPU-hours times the price that was given.", estimate=True),
    TableColumn("cpu_hours_per_hour_saved", "1", SAVED, "Against the next smaller measured scale on the nearest number "
                "of nodes.", estimate=True),
    TableColumn("basis", "", "known by", "How the row is known."),
)  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """The equal work that a study measured at most scales: its rows of the frame of estimates."""

    frame: pd.DataFrame

    def at(self, quantity: str) -> dict[int, "pd.Series[Any]"]:
        """Return number of runners -> row of a quantity; of several placements that on the fewest CPUs and nodes.

        These come first in the frame, and what was measured comes before what is predicted.
        """
        rows = self.frame[self.frame["quantity"] == quantity].dropna(subset=[SCALE]).drop_duplicates(SCALE)
        return {int(row[SCALE]): row for _, row in rows.iterrows()}

    def value(self, quantity: str, scale: int) -> Estimate:
        """Return the estimate of a quantity that is there."""
        return estimate_of(self.at(quantity)[scale])

    @cached_property
    def scales(self) -> list[int]:
        """Measured numbers of runners, ascending."""
        return sorted(self.at("speed_up"))

    @cached_property
    def placed_once(self) -> bool:
        """Whether every scale ran on one number of CPUs and nodes."""
        return bool(self.frame["quantity"].eq("speed_up").sum() == len(self.scales))


def main_workload(frame: pd.DataFrame) -> Workload | None:
    """Return the workload with most scales, the first of several; None where no two scales ran equal work."""
    same = ["workload", "engine", "train_batch_size"]
    keys = frame[same].astype(object).fillna("").apply(tuple, axis=1)
    scales = frame[frame["quantity"] == "speed_up"].groupby(keys, sort=False)[SCALE].nunique()
    return None if scales.empty else Workload(frame[keys == scales.index[int(scales.argmax())]])


def throughput_answer(study: "Study") -> Answer:
    """Return what a throughput study says: the gain in speed from the smallest to the largest measured scale.

    Where no two scales ran equal work, it is the fastest cell.
    """
    workload, data = main_workload(study.estimates()), study.data
    rates = study.estimates("env_steps_per_s", basis="measured")
    if rates.empty:
        return unmeasured(study)
    fastest = rates.iloc[int(rates["value"].argmax())]
    setting, is_ = _setting(study, fastest), "the fastest measured"
    if workload is None:
        values = values_in_words({name: value for name, value in setting.items() if name != SCALE})
        text = f"{runners(setting[SCALE])} with {values} ran fastest: {in_words(estimate_of(fastest))} steps a second."
        place: dict[str, Any] = {"quantity": "env_steps_per_s", "num_env_runners": setting[SCALE]}
        why = "how speed grows with the runners: no two scales ran equal work with a measured clock."
        said = [Fact(role="answer", text=capital(text), **place)]
        unknown = [Fact(role="unknown", text=why, command=study.table("strong_scaling").command)]
    else:
        measured = [row for n, row in workload.at("env_steps_per_s").items() if n in workload.scales]
        mine = max(measured, key=lambda row: float(row["value"]))
        if equal := overlap(estimate_of(mine), estimate_of(fastest)):
            setting, is_ = _setting(study, mine), "the setting of the price list"
        said = [*_gain(workload), *_limit(study, workload), *_fastest(fastest, mine, equal=equal), *_costs(workload)]
        unknown = [*_unknown(study, workload)]
    return Answer(
        kind=data.kind,
        findings=(*said, cost_and_clocks(data), *unfinished(data), *unknown),
        setting=to_copy(setting),
        setting_is=is_,
        figure="efficiency",
    )


def unmeasured(study: "Study") -> Answer:
    """Return what a study of times says none of whose clocks was measured: that, why, and what ran all the same.

    It has no headline of returns: those of a few iterations are not what was asked.
    """
    data, table = study.data, study.table("strong_scaling")
    missing = f"how fast real runners are: {clocks(data.runs)}."
    if table.empty or not (data.runs["status"] == "finished").any():
        return Answer(kind=data.kind, findings=nothing_yet(data, missing))
    reasons = data.runs.loc[data.runs["timing"].ne("measured").fillna(True), "timing_reason"].dropna().value_counts()
    why = f", mostly because of this: {reasons.index[0]}" if len(reasons) and str(reasons.index[0]) else ""
    text = f"No clock was measured{why}. So it is not known how speed grows with the runners."
    return Answer(
        kind=data.kind,
        findings=(
            Fact(role="answer", text=text, quantity="speed_up"),
            cost_and_clocks(data),
            Fact(role="unknown", text=missing, command=table.command),
            *unfinished(data),
        ),
        rows=table,
    )


def price_list(workload: Workload, price_per_cpu_hour: float | None = None) -> Table:
    """Return what each number of runners costs; without a price, or with a price of 0, without costs."""
    found = {column.name: workload.at(column.name) for column in PRICES if column.estimate}
    rates = found["env_steps_per_s"]
    measured = [n for n in rates if rates[n]["basis"] == "measured"]
    others = sorted(rates.keys() - measured)
    room = max(MOST_PRICES - len(measured), 1)
    rows = []
    for scale in sorted([*measured, *others[: room - 1], *others[room - 1 :][-1:]]):
        row: dict[str, Any] = {name: estimate_of(some[scale]) for name, some in found.items() if scale in some}
        if price_per_cpu_hour and (hours := row.get("cpu_hours_per_million_steps")):
            row["cost"] = scaled(hours, price_per_cpu_hour)
        cpus, basis = rates[scale]["num_cpus"], rates[scale]["basis"].replace("extrapolated", "predicted")
        rows.append({**row, SCALE: scale, "num_cpus": None if pd.isna(cpus) else int(cpus), "basis": basis})
    first = rates[min(rates)]
    batch = "" if pd.isna(first["train_batch_size"]) else f", batch {first['train_batch_size']:,}"
    placed = "" if workload.placed_once else "; of several placements the one with the fewest CPUs and nodes"
    title = f"What each number of runners costs (engine {first['engine'] or 'unknown'}{batch}{placed})"
    return table_of("prices", title, PRICES, rows, title)


def _gain(workload: Workload) -> Iterator[Fact]:
    """Yield the speed-up, and whether more runners would help as far as it was measured or is predicted nearby."""
    first, last = workload.scales[0], workload.scales[-1]
    gain, share = workload.value("speed_up", last), workload.value("efficiency_per_runner", last)
    text = (
        f"{runners(last)} finish {number(gain)} times as many steps per hour as {first}: {number(share)} of the ideal."
    )
    yield Fact(role="answer", text=text, quantity="speed_up", num_env_runners=last)
    marginal = workload.at("marginal_efficiency")
    for before, scale in pairwise(workload.scales) if workload.placed_once else ():
        added = estimate_of(marginal[scale]) if scale in marginal else None
        if added is not None and added.has_interval and added.high < HALF:
            gives = f"up to {scale}, an added CPU gives {number(added)} of its share"
            text = f"More than {runners(before)} hardly pay: {gives}."
            yield Fact(role="answer", text=text, quantity="marginal_efficiency", num_env_runners=scale)
            return
    limits, beyond = (
        workload.frame[workload.frame["quantity"] == "limit_num_env_runners"],
        max(workload.at("env_steps_per_s")),
    )
    text = f"More than {last} were not tried{f'; the table predicts up to {beyond}' if beyond > last else ''}."
    if len(limits):
        text = f"By the model, more than about {limits['value'].iloc[0]:.0f} would hardly pay (predicted)."
    yield Fact(role="answer", text=text, quantity="limit_num_env_runners")


def _limit(study: "Study", workload: Workload) -> Iterator[Fact]:
    last, spec = workload.scales[-1], study.data.spec
    shares = {words: float(at[last]["value"]) for name, words in PARTS.items() if last in (at := workload.at(name))}
    if len(shares) < 2 or not workload.placed_once:  # phases are those of all placements together
        return
    (first, most), (second, next_) = sorted(shares.items(), key=lambda each: -each[1])[:2]
    if first == "sampling" and spec is not None and spec.environment.step_wait_ms:
        first = f"sampling, in environments that wait {spec.environment.step_wait_ms:g} ms in every step"
    takes = f"({percent(most)} of an iteration); {second} takes {percent(next_)}"
    text = f"What limits with {runners(last)}: {first} {takes}."
    yield Fact(role="support", text=text, quantity="share_sample", num_env_runners=last)


def _fastest(fastest: "pd.Series[Any]", mine: "pd.Series[Any]", *, equal: bool) -> Iterator[Fact]:
    text = f"Fastest measured: {_place(fastest)}, {in_words(estimate_of(fastest))} steps a second"
    if equal and _place(fastest) != _place(mine):
        text += f"; {_place(mine)} are as fast, within the error"
    yield Fact(role="support", text=f"{text}.", quantity="env_steps_per_s", num_env_runners=int(fastest[SCALE]))


def _place(row: "pd.Series[Any]") -> str:
    batch = row["train_batch_size"]
    return runners(int(row[SCALE])) + ("" if pd.isna(batch) else f" at batch {int(batch):,}")


def _costs(workload: Workload) -> Iterator[Fact]:
    """Yield the cheapest measured scale, and what the last measured step to more runners saves or costs."""
    name = "cpu_hours_per_million_steps"
    costs = {n: float(row["value"]) for n, row in workload.at(name).items() if n in workload.scales}
    if len(costs) > 1:
        best = min(costs, key=costs.__getitem__)
        text = f"Cheapest: {runners(best)}, {in_words(workload.value(name, best))} CPU-hours for a million steps."
        yield Fact(role="support", text=text, quantity=name, num_env_runners=best)
    before, last = workload.scales[-2:]
    hours = {n: float(row["value"]) for n, row in workload.at("hours_per_million_steps").items()}
    if {before, last} <= hours.keys() & costs.keys():
        changes = ((hours[last] - hours[before], "hours"), (costs[last] - costs[before], "CPU-hours"))
        parts = [f"{number(abs(by))} {unit} {'more' if by > 0 else 'less'}" for by, unit in changes]
        text = f"{runners(last)} instead of {before} take {' and '.join(parts)} for a million steps."
        yield Fact(role="support", text=text, quantity="hours_per_million_steps", num_env_runners=last)


def _setting(study: "Study", row: "pd.Series[Any]") -> dict[str, int]:
    """Return what a person types for a measured cell."""
    runs = study.data.runs
    run = runs[runs["fingerprint"].eq(row["fingerprint"]) & runs[SCALE].eq(row[SCALE])].iloc[0]
    names = TYPED if runs[TYPED[0]].nunique() > 1 else TYPED[1:]
    return {SCALE: int(row[SCALE])} | {name: int(run[name]) for name in names if pd.notna(run[name])}


def _unknown(study: "Study", workload: Workload) -> Iterator[Fact]:
    data = study.data
    text = f"anything beyond {runners(2 * workload.scales[-1])}, twice the largest number that ran. Intervals of "
    text += "predictions know the scatter of the runs, not what the model leaves out."
    yield Fact(role="unknown", text=text)
    measured = data.runs["timing"].eq("measured").fillna(False)
    if others := sorted({*data.runs[SCALE].dropna()} - {*data.runs.loc[measured, SCALE].dropna()}):
        text = f"the speed of {listed(others)} runners: none of their runs has a measured clock."
        yield Fact(role="unknown", text=text)
    yield Fact(role="unknown", text="which setting learns best: such short runs measure speed alone.")
    if data.spec is not None and (another := other_engine(data.spec)) is not None:
        other, options = another
        command = run_again(data, "other_engine", [word for word in options.split() if word != "--set"])
        text = f"how other engines do: only {study.engine or 'one'} was measured, not {other}."
        yield Fact(role="unknown", text=text, command=command)
