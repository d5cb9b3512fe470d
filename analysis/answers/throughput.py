"""What a throughput study says: how much faster more runners are, what they cost, what limits. Selects; pandas."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.answers.answer import (
    Answer,
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
from analysis.quantity import Part, declare, estimate_of
from analysis.tables.pivot import estimate_in, pivot, table_of_pivot
from analysis.tables.table import Table, in_words, number, percent
from study.engine import other_engine
from study.space.parameters import SCALE
from study.text import listed

if TYPE_CHECKING:
    from analysis.opened import Study

HALF = 0.5
"""Share of its due below which an added CPU hardly pays."""
TYPED = ("num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs")
RATE, HOURS, CPU_HOURS = "env_steps_per_s", "hours_per_million_steps", "cpu_hours_per_million_steps"
PARTS = {
    "share_sample": "sampling",
    "share_learn": "learning",
    "share_sync": "sending weights to the runners",
    "share_rest": "everything else",
}
"""Share of an iteration -> what it is called in a sentence."""
PRICES = {
    RATE: "steps/s",
    HOURS: "hours per million steps",
    CPU_HOURS: "CPU-hours per million steps",
    "cost": "cost per million",
}
"""Column of the price list -> its head."""
declare("given", "cost", "1", "cost per million", "CPU-hours times the price that was given.")


def by_scale(frame: pd.DataFrame, quantities: str) -> pd.DataFrame:
    """Return a pivot with one row for each number of runners; of several placements that on the fewest CPUs and nodes.

    These come first in the frame, and what was measured comes before what is predicted.
    """
    wide = pivot(frame, quantities).dropna(subset=[SCALE])
    return wide.drop_duplicates(SCALE).sort_values(SCALE, kind="stable").reset_index(drop=True)


def main_workload(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Return the estimates of the workload with most scales, the first of several; None where no two ran equal work."""
    same = ["workload", "engine", "train_batch_size"]
    keys = frame[same].astype(object).fillna("").apply(tuple, axis=1)
    scales = frame[frame["quantity"] == "speed_up"].groupby(keys, sort=False)[SCALE].nunique()
    return None if scales.empty else frame[keys == scales.index[int(scales.argmax())]]


def throughput_answer(study: "Study") -> Answer:
    """Return what a throughput study says: the gain in speed from the smallest to the largest measured scale.

    Where no two scales ran equal work, it is the fastest cell.
    """
    workload, data = main_workload(study.estimates()), study.data
    rates = study.estimates(RATE, basis="measured")
    if rates.empty:
        return unmeasured(study)
    fastest = rates.iloc[int(rates["value"].argmax())]
    setting, is_ = _setting(study, fastest), "the fastest measured"
    if workload is None:
        values = values_in_words({name: value for name, value in setting.items() if name != SCALE})
        text = f"{runners(setting[SCALE])} with {values} ran fastest: {in_words(estimate_of(fastest))} steps a second."
        why = "how speed grows with the runners: no two scales ran equal work with a measured clock."
        said = [Fact(role="answer", text=capital(text), quantity=RATE)]
        unknown = [Fact(role="unknown", text=why, command=study.table("strong_scaling").command)]
    else:
        quantities = "speed_up efficiency_per_runner marginal_efficiency"
        wide = by_scale(workload, f"{quantities} {RATE} {HOURS} {CPU_HOURS} {' '.join(PARTS)}")
        placed_once = bool(workload["quantity"].eq("speed_up").sum() == len(wide))
        mine = wide.iloc[int(wide[RATE].argmax())]
        if equal := overlap(estimate_in(mine, RATE), estimate_of(fastest)):
            setting, is_ = _setting(study, mine), "the setting of the price list"
        said = [*_gain(workload, wide, placed_once), *_limit(study, wide, placed_once)]
        said += _fastest(fastest, mine, equal=equal)
        unknown = [*_unknown(study, wide[SCALE].tolist()[-1])]
    return Answer(
        kind=data.kind,
        findings=(*said, cost_and_clocks(data), *unfinished(data), *unknown),
        setting=to_copy(setting),
        setting_is=is_,
        figure="efficiency",
    )


def unmeasured(study: "Study") -> Answer:
    """Return what a study of times says none of whose clocks was measured: that, and why.

    It has no headline of returns: those of a few iterations are not what was asked.
    """
    data = study.data
    missing = f"how fast real runners are: {clocks(data.runs)}."
    if not (data.runs["status"] == "finished").any():
        return Answer(kind=data.kind, findings=nothing_yet(data, missing))
    reasons = data.runs.loc[data.runs["timing"].ne("measured").fillna(True), "timing_reason"].dropna().value_counts()
    why = f", mostly because of this: {reasons.index[0]}" if len(reasons) and str(reasons.index[0]) else ""
    text = f"No clock was measured{why}. So it is not known how speed grows with the runners."
    return Answer(
        kind=data.kind,
        findings=(
            Fact(role="answer", text=text, quantity="speed_up"),
            cost_and_clocks(data),
            Fact(role="unknown", text=missing, command="python run_study.py --space waiting.yaml"),
            *unfinished(data),
        ),
    )


def price_list(workload: pd.DataFrame, price_per_cpu_hour: float | None = None) -> Table:
    """Return what each number of runners costs; without a price, or with a price of 0, without costs."""
    wide = by_scale(workload, " ".join(name for name in PRICES if name != "cost"))
    wide["basis"] = wide["basis"].replace("extrapolated", "predicted")
    for suffix in ("", "_low", "_high"):
        wide[f"cost{suffix}"] = wide[f"{CPU_HOURS}{suffix}"] * (price_per_cpu_hour or pd.NA)
    wide["cost_n"] = wide[f"{CPU_HOURS}_n"]
    batch, engine = workload["train_batch_size"].iloc[0], workload["engine"].iloc[0] or "unknown"
    placed = workload.loc[workload["quantity"] == "speed_up", SCALE].duplicated().any()
    title = f"What each number of runners costs (engine {engine}{'' if pd.isna(batch) else f', batch {batch:,}'}"
    title += "; of several placements the one with the fewest CPUs and nodes)" if placed else ")"
    columns = f"{SCALE} num_cpus {' '.join(PRICES)} basis"
    table = table_of_pivot(wide, "prices", title, columns, title, Part(n=len(wide)), labels=PRICES)
    return replace(table, columns=tuple(replace(each, unit=each.unit and "1") for each in table.columns))


def _gain(workload: pd.DataFrame, wide: pd.DataFrame, placed_once: bool) -> Iterator[Fact]:
    """Yield the speed-up, and whether more runners would help as far as it was measured or is predicted nearby."""
    first, *_, last = scales = wide[SCALE].tolist()
    gain, share = (estimate_in(wide.iloc[-1], name) for name in ("speed_up", "efficiency_per_runner"))
    text = f"{runners(last)} finish {number(gain)} times as many steps per hour as {first}"
    text += f": {number(share)} of the ideal."
    yield Fact(role="answer", text=text, quantity="speed_up")
    for before, scale in pairwise(scales) if placed_once else ():
        row = wide[wide[SCALE] == scale].iloc[0]
        if pd.notna(row["marginal_efficiency_high"]) and row["marginal_efficiency_high"] < HALF:
            added = number(estimate_in(row, "marginal_efficiency"))
            text = f"More than {runners(before)} hardly pay: up to {scale}, an added CPU gives {added} of its share."
            yield Fact(role="answer", text=text, quantity="marginal_efficiency")
            return
    beyond = int(workload.loc[workload["quantity"] == RATE, SCALE].max())
    text = f"More than {last} were not tried{f'; the table predicts up to {beyond}' if beyond > last else ''}."
    yield Fact(role="answer", text=text)


def _limit(study: "Study", wide: pd.DataFrame, placed_once: bool) -> Iterator[Fact]:
    last, spec = wide[SCALE].tolist()[-1], study.data.spec
    known = wide.iloc[-1].dropna()
    shares = {words: float(known[name]) for name, words in PARTS.items() if name in known}
    if len(shares) < 2 or not placed_once:  # phases are those of all placements together
        return
    (first, most), (second, next_) = sorted(shares.items(), key=lambda each: -each[1])[:2]
    if first == "sampling" and spec is not None and spec.environment.step_wait_ms:
        first = f"sampling, in environments that wait {spec.environment.step_wait_ms:g} ms in every step"
    takes = f"({percent(most)} of an iteration); {second} takes {percent(next_)}"
    text = f"What limits with {runners(last)}: {first} {takes}."
    yield Fact(role="support", text=text, quantity="share_sample")


def _fastest(fastest: "pd.Series[Any]", mine: "pd.Series[Any]", *, equal: bool) -> Iterator[Fact]:
    def place(row: "pd.Series[Any]") -> str:
        batch = row["train_batch_size"]
        return runners(int(row[SCALE])) + ("" if pd.isna(batch) else f" at batch {int(batch):,}")

    text = f"Fastest measured: {place(fastest)}, {in_words(estimate_of(fastest))} steps a second"
    if equal and place(fastest) != place(mine):
        text += f"; {place(mine)} are as fast, within the error"
    yield Fact(role="support", text=f"{text}.", quantity=RATE)


def _setting(study: "Study", row: "pd.Series[Any]") -> dict[str, int]:
    runs = study.data.runs
    run = runs[runs["fingerprint"].eq(row["fingerprint"]) & runs[SCALE].eq(row[SCALE])].iloc[0]
    names = TYPED if runs[TYPED[0]].nunique() > 1 else TYPED[1:]
    return {SCALE: int(row[SCALE])} | {name: int(run[name]) for name in names if pd.notna(run[name])}


def _unknown(study: "Study", largest: int) -> Iterator[Fact]:
    data = study.data
    text = f"anything beyond {runners(2 * largest)}, twice the largest number that ran. Intervals of "
    text += "predictions know the scatter of the runs, not what the model leaves out."
    yield Fact(role="unknown", text=text)
    if others := sorted({*data.runs[SCALE].dropna()} - {*study.measured[SCALE]}):
        text = f"the speed of {listed(others)} runners: none of their runs has a measured clock."
        yield Fact(role="unknown", text=text)
    yield Fact(role="unknown", text="which setting learns best: such short runs measure speed alone.")
    if data.spec is not None and (another := other_engine(data.spec)) is not None:
        other, options = another
        command = run_again(data, "other_engine", [word for word in options.split() if word != "--set"])
        text = f"how other engines do: only {study.engine or 'one'} was measured, not {other}."
        yield Fact(role="unknown", text=text, command=command)
