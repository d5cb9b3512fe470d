"""Figures of time: efficiency and the phases of an iteration, from estimates. No statistics."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from analysis.figures import painting, style
from analysis.figures.figure import Figure, absent
from analysis.figures.words import number, of_row, sentence, told_apart
from study.text import count, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.opened import Study

EFFICIENCY = "Efficiency against the number of runners"
WEAK = "Weak-scaling efficiency against the number of runners"
PHASES = "Where the time of one iteration goes"
NO_MEASURED_ROWS = (
    "No run has a measured clock, so times and rates cannot be compared. Fix: give every process a core of its own, or "
    "run a throughput study in an environment that waits (step_wait_ms)."
)
PARTS = {
    "share_runners": "sampling",
    "share_imbalance": "waiting for the slowest",
    "share_transfer": "collecting samples",
    "share_learn": "learning",
    "share_sync": "sending weights",
    "share_rest": "the rest",
}
"""Share -> what the picture calls it, in the order of an iteration."""
MAX_BARS = 8
BAR_IN, LEGEND_LINE = 0.45, 0.5
"""Height of a bar in inches, and of a line of names below the bars in bars."""
SEEN = 0.005
"""Share of an iteration below which a part is too thin to be seen, and not named in the legend."""
FINEST = 0.05
"""Smallest range of an axis of efficiencies."""


def efficiency(study: "Study") -> Figure:
    """Return the speed-up over the growth of the runners, and of the CPUs where the study knows that."""
    rows = study.estimates(["efficiency_per_runner", "efficiency_per_cpu"])
    return _efficiency(study, rows, "efficiency", EFFICIENCY, "T_iter(n_ref) / T_iter(n) x n_ref / n, the batch fixed")


def weak_efficiency(study: "Study") -> Figure:
    """Return the same where the steps of each runner are fixed and the batch grows."""
    rows = study.estimates(["weak_efficiency", "weak_efficiency_per_cpu"])
    formula = "T_iter(n_ref) / T_iter(n), the steps of each runner fixed"
    return _efficiency(study, rows, "weak_efficiency", WEAK, formula)


def _efficiency(study: "Study", rows: pd.DataFrame, key: str, subject: str, formula: str) -> Figure:
    frame, left_out = _series(rows)
    if frame.empty:
        return absent(key, subject, *_why(study, weak=key.startswith("weak")))
    frame = _with_own_reference(frame)
    per_cpu = frame["quantity"].str.endswith("per_cpu")
    per_runner = frame[~per_cpu]
    first = per_runner[per_runner["series"] == per_runner["series"].iloc[0]].sort_values("num_env_runners")
    if per_cpu.any():
        kinds = pd.Series(np.where(per_cpu, "per CPU", "per runner"), frame.index, dtype=object)
        alone = frame["series"].nunique() == 1 or frame["panel"].nunique() > 1
        frame["series" if alone else "panel"] = kinds  # two lines in one panel, or a panel for each
    last, reference = first.iloc[-1], first.iloc[0]
    grown = "With the batch grown, " if key.startswith("weak") else ""
    title = f"{grown}{count(int(last['num_env_runners']), 'runner')} give {number(last['value'], 2)} of the ideal"
    others = per_runner[per_runner["series"] != last["series"]].sort_values("num_env_runners")
    if ends := [float(each) for each in others.groupby("series", sort=False)["value"].last()]:
        low, high = number(min(ends), 2), number(max(ends), 2)
        title += f" ({last['series']}); other workloads: {low if low == high else f'{low} to {high}'}"
    caption = [
        f"{formula}: 1, dotted, is ideal; the smallest scale ({reference['num_env_runners']} runners in the first "
        "line; in another the number after `from`) is 1 by definition. Whiskers: 95 % intervals over blocks. Measured "
        "clocks and equal work alone.",
        left_out,
        f"Engine: {study.engine}.",
    ]
    frame = _with_ideal(frame, [(n, 1.0) for n in sorted({*frame["num_env_runners"]})])
    return Figure(
        key=key,
        title=title,
        alt=_alt(per_runner),
        caption=" ".join(part for part in caption if part),
        frame=frame,
        painter=partial(painting.lines, label="efficiency [1 = ideal]", finest=FINEST),
        panels=frame["panel"].nunique(),
    )


def _with_own_reference(frame: pd.DataFrame) -> pd.DataFrame:
    """Return series with the scale that is 1 in their names, where that is not the one of the first series."""
    smallest = frame.groupby("series", sort=False)["num_env_runners"].min()
    names = {name: name if n == smallest.iloc[0] else f"{name} (from {n})" for name, n in smallest.items()}
    renamed = frame.assign(series=frame["series"].map(names))
    return renamed.assign(panel=renamed["series"].where(frame["panel"] != "", ""))


def phases(study: "Study") -> Figure:
    """Return the shares of an iteration, a bar for each number of runners of the workload that ran at most of them."""
    shares = study.estimates(PARTS)
    if shares.empty:
        return absent("phases", PHASES, NO_MEASURED_ROWS)
    cells = shares.drop_duplicates(["workload", "num_env_runners", "train_batch_size"])
    sizes = cells["workload"].value_counts(sort=False)
    chosen = cells[cells["workload"] == sizes.idxmax()] if sizes.max() > 1 else cells
    chosen = chosen.sort_values(["num_env_runners", "train_batch_size"])
    kept = style.evenly(list(chosen.index), MAX_BARS)
    times = study.estimates("iteration_time_s")
    rows = []
    batches = chosen["num_env_runners"].duplicated().any()
    for _, cell in chosen.loc[kept].iterrows():
        same = {name: cell[name] for name in ("workload", "num_env_runners", "train_batch_size")}
        bar = count(int(cell["num_env_runners"]), "runner")
        bar += f", batch {cell['train_batch_size']:,}" if batches else ""
        seconds = _where(times, same)
        for _, row in _where(shares, same).iterrows():
            rows.append({**row, "bar": bar, "seconds": seconds["value"].iloc[0] if len(seconds) else pd.NA})
    frame = pd.DataFrame(rows)
    biggest = frame[frame["bar"] == frame["bar"].iloc[-1]]
    samples = biggest.loc[biggest["quantity"].isin(list(PARTS)[:3]), "value"].sum()
    others = biggest[biggest["quantity"].isin(list(PARTS)[3:])].sort_values("value", ascending=False).iloc[0]
    title = (
        f"Sampling takes {_percent(samples)} of an iteration, {PARTS[others['quantity']]} "
        f"{_percent(others['value'])} (with {frame['bar'].iloc[-1]})"
    )
    rest = len(cells) - len(kept)
    which = f"Workload: {told_apart([str(chosen['workload'].iloc[0])])[0]}." if sizes.max() > 1 else ""
    caption = (
        "Shares of the mean training iteration after the warm-up, and its seconds; runs with a measured "
        "clock alone. Parts under 0.5 % are too thin to see. Learning includes the connectors. "
        f"{which} {count(rest, 'more cell') + ' in the table.' if rest > 0 else ''} Engine: {study.engine}."
    )
    alt = " ".join(_bar_in_words(bar, here) for bar, here in frame.groupby("bar", sort=False))
    return Figure(
        key="phases",
        title=title,
        alt=alt,
        caption=" ".join(caption.split()),
        frame=frame,
        painter=_stacked,
        height_in=1.3 + BAR_IN * frame["bar"].nunique(),
    )


def _series(estimates: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return measured estimates of workloads that ran at two scales with `series`, `panel`, and what is left out.

    A workload whose scales ran on several numbers of CPUs or nodes is several series: placement 1 has the fewest.
    """
    by_cpus = estimates.sort_values("num_cpus", kind="stable")
    cell = ["workload", "quantity", "num_env_runners"]
    number_ = (by_cpus.groupby(cell, dropna=False).cumcount() + 1).reindex(estimates.index)
    many = estimates["workload"].isin(estimates.loc[number_ > 1, "workload"])
    placed = estimates["workload"] + ", placement " + number_.astype("string")
    line = estimates["workload"].where(~many, placed).astype(object)
    scales = estimates.groupby(line)["num_env_runners"].nunique()
    found = [name for name in dict.fromkeys(line) if scales[name] > 1]
    chosen = found[: style.MAX_SERIES]
    names = dict(zip(chosen, told_apart(chosen), strict=True))
    frame = estimates.assign(kind="measured", series=line.map(names))[line.isin(chosen)].reset_index(drop=True)
    frame["panel"] = frame["series"] if len(chosen) > painting.PANEL_SERIES else ""
    rest = len(found) - len(chosen)
    return frame, f"{count(rest, 'more workload')}: see the table." if rest > 0 else ""


def _with_ideal(frame: pd.DataFrame, points: "Sequence[tuple[int, float]]") -> pd.DataFrame:
    rows = pd.DataFrame([{"kind": "ideal", "num_env_runners": n, "value": value} for n, value in points])
    return pd.concat([frame, rows.astype({"num_env_runners": "Int64", "value": "Float64"})], ignore_index=True)


def _where(frame: pd.DataFrame, same: dict[str, object]) -> pd.DataFrame:
    kept = frame
    for name, value in same.items():
        kept = kept[kept[name].isna()] if pd.isna(value) else kept[kept[name] == value]  # type: ignore[call-overload]
    return kept


def _alt(frame: pd.DataFrame) -> str:
    parts = []
    for name in dict.fromkeys(frame["series"]):
        here = frame[frame["series"] == name].sort_values("num_env_runners")
        words = [_point(row) for _, row in here.iloc[[0, -1]].iterrows()]
        parts.append(sentence(f"{name}: {listed(words)}" if name else listed(words)))
    return " ".join(parts)


def _point(row: "pd.Series[Any]") -> str:
    return f"{of_row(row, unit='of the ideal')} with {count(int(row['num_env_runners']), 'runner')}"


def _why(study: "Study", *, weak: bool) -> tuple[str, str]:
    """Return why there is no efficiency, the first refusal or what is missing; and what to run."""
    found = study.results.weak if weak else study.results.strong
    if found.why:
        return found.why, ""
    if found.refusals:
        first = found.refusals[0]
        return f"{'' if first.second is None else 'Refused. '}{sentence(first.reason)}", first.command
    if not any("equal workload" in reason for reason in found.excluded):
        return NO_MEASURED_ROWS, ""
    fixed = "steps per runner" if weak else "workload"
    return (
        f"Efficiency needs measured runs at two numbers of runners or more with equal {fixed}. "
        "Fix: run a throughput study over several numbers of runners.",
        "",
    )


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)} %"


def _bar_in_words(bar: object, here: pd.DataFrame) -> str:
    seconds = here["seconds"].iloc[0]
    parts = [f"{_percent(row['value'])} {PARTS[row['quantity']]}" for _, row in here.iterrows()]
    whole = "" if pd.isna(seconds) else f" of {number(float(seconds))} s"
    return sentence(f"{bar}: an iteration{whole} is {listed(parts)} (n={here['n'].iloc[0]})")


def _stacked(axes: "Sequence[Axes]", frame: pd.DataFrame) -> None:
    import seaborn.objects as so

    (ax,) = axes
    here = frame.assign(phase=frame["quantity"].map(PARTS), percent=100 * frame["value"].astype(float))
    bars, order = list(dict.fromkeys(here["bar"])), list(PARTS.values())
    plot = so.Plot(here, x="percent", y="bar", color="phase")
    plot = plot.add(so.Bar(alpha=1, edgecolor="white", edgewidth=0.6, width=0.72), so.Stack(), orient="y", legend=False)
    plot.scale(color=so.Nominal(list(style.PHASES), order=order), y=so.Nominal(order=bars)).on(ax).plot()
    seconds = here.groupby("bar")["seconds"].first()
    labels = [
        style.wrapped(bar, 24) + ("" if pd.isna(seconds[bar]) else f"\n{number(float(seconds[bar]))} s") for bar in bars
    ]
    ax.set(xlim=(0, 100), xlabel="share of the iteration [%]", ylabel="")
    ax.set_yticks(range(len(bars)), labels)
    seen = [name for name in order if (here.loc[here["phase"] == name, "percent"] >= 100 * SEEN).any()]
    lines = -(-len(seen) // 2)
    ax.set_ylim(len(bars) - 0.4 + LEGEND_LINE * lines, -0.5)  # with room below the bars for their names
    ax.grid(visible=False)
    handles = [Patch(color=style.PHASES[order.index(name)]) for name in seen]
    ax.legend(handles, seen, loc="lower left", ncols=2, frameon=False, borderaxespad=0, handlelength=1.2)
