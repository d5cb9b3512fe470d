"""What a study says, fact by fact, and the words that all facts share. Pure.

A fact is one sentence about one quantity in one place. Terminal, report, MLflow, notebook and the titles of figures
print facts and phrase nothing themselves; numbers are written as in tables (`analysis.tables.numbers`).
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from analysis.fingerprint import IN_WORDS, value_in_words
from analysis.fingerprint import in_words as called
from analysis.load import StudyData
from analysis.tables.numbers import number
from study.statistics import Estimate
from study.text import count, listed

Role = Literal["answer", "support", "unknown", "limit"]
"""The first sentence; what supports it; what is not known; what numbers do not mean."""
CLOCKS: Mapping[str, str] = {
    "emulated": "a few processes did the work of all runners",
    "oversubscribed": "more processes than cores",
    "tainted": "a failure, a lost runner, or other programs on the CPUs",
}
"""Label of a clock that is not measured -> what it means."""
MOST_NAMED = 3
"""Values that a sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that a study says, or that it does not say.

    Attributes:
        role: What it is for.
        text: The sentence; of what is not known, what that is.
        quantity: As in `analysis.estimates.QUANTITIES`; empty where it is about none.
        command: What to type to know more; empty where no command of this project helps.
    """

    role: Role
    text: str
    quantity: str = ""
    command: str = ""


# --- words --------------------------------------------------------------------------------------------------------


def runners(scale: int) -> str:
    """Return `1 runner`, `46 runners`."""
    return count(scale, "runner")


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def values_in_words(setting: Mapping[str, Any], *, most: int = MOST_NAMED) -> str:
    """Return `batch 1,376 and learning rate 0.00242` of the most important values."""
    names = list(dict.fromkeys([*(name for name in IN_WORDS if name in setting), *setting]))
    parts = [f"{called(name)} {value_in_words(setting[name])}" for name in names[:most]]
    parts += [f"{count(len(names) - most, 'value')} more below"] if len(names) > most else []
    return listed(parts) if parts else ""


def to_copy(setting: Mapping[str, Any]) -> str:
    """Return `num_env_runners: 4  lr: 2.418e-3`, as a space file takes it: up to four digits."""
    return "  ".join(f"{name}: {_typed(float(value))}" for name, value in setting.items())


def _typed(value: float) -> str:
    if value.is_integer() and abs(value) < 1e9:
        return str(int(value))
    if abs(value) >= 0.01:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


# --- how far a study is, and what to type ---------------------------------------------------------------------------


def complete(data: StudyData) -> bool:
    """Return whether the study ended so, which may have cancelled trials, or every planned trial ended."""
    ended = data.runs["status"].isin(["finished", "failed"]).sum()
    return data.sheet.get("end") == "complete" or bool(ended >= (data.sheet.get("num_trials") or 0))


def progress(data: StudyData) -> str:
    """Return `12 of 40 trials have ended`, with the failed ones."""
    status = data.runs["status"]
    ended, failed = int(status.isin(["finished", "failed"]).sum()), int((status == "failed").sum())
    planned = int(ended if complete(data) else data.sheet.get("num_trials") or 0)
    of, lost = f" of {planned:,}" if planned else "", f" ({failed:,} failed)" if failed else ""
    return f"{ended:,}{of} trial{'' if (planned or ended) == 1 else 's'} {'has' if ended == 1 else 'have'} ended{lost}"


def go_on(data: StudyData) -> str:
    """Return the command that goes on with a study, or watches one that runs; empty where there is none."""
    if complete(data):
        return ""
    if data.is_running:
        return shlex.join(["python", "-m", "study", "status", data.source])
    if data.space_file is None:
        return ""
    place = ["--name", data.name]
    if "://" not in data.source:
        folder = Path(data.source)
        place += ["--out", str(folder.parent if folder.name not in ("", "..") else folder.absolute().parent)]
    return shlex.join(["python", "run_study.py", "--space", str(data.space_file), *place, "--resume"])


def run_again(data: StudyData, suffix: str, changes: Sequence[str]) -> str:
    """Return the command that runs a study's space with changes, as `--set` takes them; empty without a space."""
    if data.space_file is None:
        return ""
    words = ["python", "run_study.py", "--space", str(data.space_file), "--name", f"{data.name}_{suffix}"]
    return shlex.join([*words, *(word for each in changes for word in ("--set", each))])


def unfinished(data: StudyData) -> Iterable[Fact]:
    """Yield that the rest of a study is missing, with the command that goes on; nothing where it is complete."""
    if not complete(data):
        text = f"what the rest of the study says: {progress(data)}. An answer may change until its end."
        text += " It is running: wait, or watch it." if data.is_running else ""
        yield Fact(role="unknown", text=text, command=go_on(data))


def nothing_yet(data: StudyData, missing: str) -> tuple[Fact, ...]:
    """Return the facts of a study from which nothing can be said."""
    runs, said = data.runs, [Fact(role="answer", text=f"No answer yet: {progress(data)}.")]
    if len(runs) and bool((runs["status"] == "failed").all()):
        lines = (line for reason in runs["reason"].dropna() for line in str(reason).splitlines())
        all_ = f"All {len(runs):,} trials" if len(runs) > 1 else "The only trial"
        said = [
            Fact(role="answer", text=f"{all_} failed, so that nothing was learnt from this study."),
            Fact(role="support", text=f"First reason: {next(lines, 'no reason was recorded')}"),
        ]
    return (*said, Fact(role="unknown", text=missing, command=go_on(data)))


# --- clocks and costs -----------------------------------------------------------------------------------------------


def clocks(runs: pd.DataFrame) -> str:
    """Return what the clocks of the runs are worth: `38 of 39 runs have a measured clock; 1 was oversubscribed (…)`."""
    counts = runs["timing"].dropna().value_counts()
    measured = int(counts.get("measured", 0))
    others = [
        f"{n:,} {'was' if n == 1 else 'were'} {name} ({CLOCKS.get(str(name), name)})"
        for name, n in counts.items()
        if name != "measured"
    ]
    if measured or not others:
        return "; ".join([f"{measured:,} of {count(len(runs), 'run')} have a measured clock", *others])
    return f"no run has a measured clock: {listed(others)}. Returns hold, times do not"


def overlap(one: Estimate, two: Estimate) -> bool:
    """Return whether both intervals are known and have a point in common: what a sentence may call equal."""
    return one.has_interval and two.has_interval and one.low <= two.high and two.low <= one.high


def cpu_hours(data: StudyData) -> float:
    """Return the CPU-hours that the trials of a study reserved, attempts that were repeated included."""
    spent = float(data.runs["cpu_s_reserved"].dropna().sum())
    if data.ledger is not None:
        spent += sum(row.cpu_s_reserved_lost for row in data.ledger.rows.values())
    return spent / 3600


def took(data: StudyData) -> str:
    """Return what a study cost; empty where that is not known.

    What is counted is what trials reserved: of a node that was told to have more CPUs than cores that is too much.
    """
    if not (spent := cpu_hours(data)):
        return ""
    hours = f"{number(spent)} CPU-hours"
    if (data.runs["timing"] == "oversubscribed").any():
        return f"The study reserved {hours}, partly of CPUs that several processes shared"
    return f"The study took {hours}"


def cost_and_clocks(data: StudyData, cpu_hours: float | None = None) -> Fact:
    """Return what the study cost, by its certificate where that says so, and what its clocks are worth."""
    cost = took(data) if cpu_hours is None else f"The study took {number(cpu_hours)} CPU-hours"
    return Fact(role="support", text=f"{'; '.join(each for each in (cost, clocks(data.runs)) if each)}.")
