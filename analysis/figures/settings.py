"""Which settings a picture shows, and what they are called. Imports pandas; no statistics.

A study may have tried hundreds of settings, most of them once. A picture holds six: those with the most runs behind
them, and among these the best; the caption says so, and the scatter figures show every run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.figures import style
from analysis.figures.words import counted, number, sentence

if TYPE_CHECKING:
    from pandas.core.groupby import SeriesGroupBy

SCALE_COLUMN = "num_env_runners"
SHORT = {
    "train_batch_size": "batch",
    "minibatch_size": "minibatch",
    "num_epochs": "epochs",
    "num_envs_per_env_runner": "k",
    "lr": "lr",
    "gamma": "gamma",
    "lambda": "lambda",
    "clip_param": "clip",
    "entropy_coeff": "entropy",
}
"""What settings are told apart by, and its word, in this order."""
LABELLED = ("train_batch_size", "minibatch_size", "num_epochs", "num_envs_per_env_runner", "lr")
"""Those that a label holds; the caption has all."""
CONFIRM = "confirm"
"""The stage of a hold-up study whose seeds nothing was chosen by."""
NOT_TRAINED_OUT = ("calibrate", "throughput", "measure")
"""Stages whose runs are cut short for the clock: they say nothing about the return."""


NO_SCALE = "The number of runners is not known of any run. Fix: none for runs whose configuration was not recorded."


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The runs of one setting at one number of runners: replicates but for their seeds.

    Attributes:
        setting: Identity of the setting; the same at every scale.
        label: What the setting is called.
        num_env_runners: The scale.
        trials: Numbers of its runs, the failed ones included.
    """

    setting: str
    label: str
    num_env_runners: int
    trials: tuple[int, ...]


def learning_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the ended runs that were given their whole budget; a failed run is one of them."""
    ended = runs[runs["status"].isin(["finished", "failed"])]
    if "stage" in ended:
        ended = ended[~ended["stage"].isin(NOT_TRAINED_OUT)]
    if "variant" in ended:
        ended = ended[ended["variant"].isna() | ended["variant"].isin(["study", ""])]
    return ended


def clocked(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with a measured clock, and the failed ones: a run that failed did not leave by chance.

    Empty where no clock was measured.
    """
    if "timing" not in runs or not (measured := runs["timing"].eq("measured").fillna(False)).any():
        return runs.iloc[:0]
    tainted = runs["status"].eq("failed").fillna(False) & ~runs["timing"].isin(["emulated", "oversubscribed"])
    return runs[measured | tainted]


def judged_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the learning runs that settings may be judged by: those of the confirmation, once there are any."""
    here = learning_runs(runs)
    confirmed = here["stage"].eq(CONFIRM).fillna(False) if "stage" in here else pd.Series(False, index=here.index)
    return here[confirmed] if confirmed.any() else here


def on_which_runs(runs: pd.DataFrame) -> str:
    """Return what a caption must say of `judged_runs`: on which seeds they ran, and how many are in no arm."""
    unknown = int(judged_runs(runs)[SCALE_COLUMN].isna().sum())
    lost = f"{counted(unknown, 'run')} of an unknown number of runners: not drawn." if unknown else ""
    return f"{_on_which_seeds(runs)} {lost}".strip()


def _on_which_seeds(runs: pd.DataFrame) -> str:
    """Return of which stages the runs are; empty where every run was an equal."""
    if "stage" not in runs or learning_runs(runs)["stage"].isna().all():
        return ""
    if judged_runs(runs)["stage"].eq(CONFIRM).all():
        return "Runs of the confirmation alone, on seeds that nothing was chosen by."
    return "On the seeds that settings were chosen by: the best ones look better than they are."


def arms(runs: pd.DataFrame) -> list[Arm]:
    """Return every arm of `judged_runs`, the one with most runs first, then the best; of known scales.

    Args:
        runs: One row per trial.
    """
    here = judged_runs(runs).dropna(subset=[SCALE_COLUMN])
    if here.empty:
        return []
    here = here.assign(_setting=identities(here))
    labels, trials = _labels(here), here["trial"].to_numpy()
    settings, scales = here["_setting"].to_numpy(), here[SCALE_COLUMN].to_numpy()
    scores = here["score"].fillna(0).to_numpy(float) if "score" in here else np.zeros(len(here))
    cells = here.groupby(["_setting", SCALE_COLUMN]).ngroup().to_numpy()
    order = np.argsort(cells, kind="stable")
    found = []
    for places in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
        setting, scale = str(settings[places[0]]), int(scales[places[0]])
        numbers = tuple(sorted(int(trial) for trial in trials[places]))
        arm = Arm(setting=setting, label=labels[setting], num_env_runners=scale, trials=numbers)
        found.append((-len(numbers), -float(scores[places].mean()), scale, setting, arm))
    return [each[-1] for each in sorted(found, key=lambda each: each[:-1])]


def identities(runs: pd.DataFrame) -> "pd.Series[str]":
    """Return the identity of each run's setting: its digest, else what the learner was given."""
    known = [runs[name].astype("string").fillna("-") for name in SHORT if name in runs]
    written = known[0]
    for each in known[1:]:
        written = written + " " + each
    if "digest" in runs:
        digest = runs["digest"].astype("string").fillna("")
        return digest.where(digest != "", written).astype("string")
    return written.astype("string")


def one_per_scale(found: list[Arm]) -> tuple[list[Arm], str]:
    """Return the first arm of each scale, the scales in order, and what is left out, in words."""
    first: dict[int, Arm] = {}
    for arm in found:
        first.setdefault(arm.num_env_runners, arm)
    chosen = [first[scale] for scale in spread(sorted(first))]
    return chosen, _left_out(len(found) - len(chosen), "cell")


def per_setting(found: list[Arm], *, scales: int = 2) -> tuple[dict[str, list[Arm]], str]:
    """Return setting -> its arms in order of scale, for the settings that ran at most scales and most often.

    Args:
        found: As `arms` returns them.
        scales: Settings at fewer scales come last, and only if some arm of theirs has two runs.
    """
    by_setting: dict[str, list[Arm]] = {}
    for arm in found:
        by_setting.setdefault(arm.setting, []).append(arm)
    wanted = min(scales, max((len(each) for each in by_setting.values()), default=0))
    # Besides those at several scales the replicated ones, such as a baseline that ran at the target scale alone.
    eligible = [
        name for name, each in by_setting.items() if len(each) >= wanted or any(len(arm.trials) > 1 for arm in each)
    ]
    order = {name: place for place, name in enumerate(by_setting)}

    def rank(name: str) -> tuple[bool, int, int]:
        here = by_setting[name]
        return len(here) < wanted, -sum(len(arm.trials) for arm in here), order[name]

    eligible.sort(key=rank)
    chosen = {
        name: sorted(by_setting[name], key=lambda arm: arm.num_env_runners) for name in eligible[: style.MAX_SERIES]
    }
    return chosen, _left_out(len(by_setting) - len(chosen), "setting")


def _left_out(rest: int, noun: str) -> str:
    return f"{counted(rest, f'more {noun}')} with fewer runs or a lower score: see the tables." if rest > 0 else ""


def spread(scales: list[int]) -> list[int]:
    """Return at most `style.MAX_SERIES` scales: both ends and what lies evenly between."""
    if len(scales) <= style.MAX_SERIES:
        return scales
    step = (len(scales) - 1) / (style.MAX_SERIES - 1)
    return [scales[round(index * step)] for index in range(style.MAX_SERIES)]


def legend_of(runs: pd.DataFrame, chosen: Iterable[Arm]) -> str:
    """Return which values the settings of a picture have, for its caption: "7d17af: minibatch 256, lr 0.0012"."""
    labels = {arm.setting: arm.label for arm in chosen}
    here = judged_runs(runs)
    here = here.assign(_setting=identities(here))
    here = here[here["_setting"].isin(list(labels))] if len(labels) > 1 else here
    varying = _varying(here, SHORT)
    parts = []
    for setting, label in labels.items():
        values = _values(here[here["_setting"] == setting], varying)
        if values and values != label:
            parts.append(f"{label}: {values}")
    return sentence("; ".join(parts))


def _labels(runs: pd.DataFrame) -> dict[str, str]:
    """Return setting -> a short name that no other has: the arm it came from and its digest, or its parameters."""
    varying = _varying(runs, LABELLED)
    grouped = runs.groupby("_setting")
    settings = [str(setting) for setting in grouped.size().index]
    digests = set(runs["digest"].dropna()) if "digest" in runs else set()
    anchors = _common(grouped["anchor"]) if "anchor" in runs else {}
    values = {name: _common(grouped[name]) for name in varying}
    labels: dict[str, str] = {}
    used: dict[str, int] = {}
    for setting in settings:
        anchor = str(anchors.get(setting) or "")
        if setting in digests:
            name = f"{anchor} ({setting[:6]})" if anchor else f"setting {setting[:6]}"
        else:
            shown = {parameter: each[setting] for parameter, each in values.items() if setting in each}
            name = anchor or _written(shown) or "one setting"
        used[name] = used.get(name, 0) + 1
        labels[setting] = name if used[name] == 1 else f"{name} #{used[name]}"
    return labels


def _common(column: "SeriesGroupBy[Any, Any]") -> dict[str, Any]:
    """Return group -> the value that all its rows share, for the groups that have one."""
    first, same = column.first(), column.nunique() == 1
    return {str(name): value for name, value in first[same].items()}


def _varying(runs: pd.DataFrame, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in runs and runs[name].nunique(dropna=True) > 1]


def _values(group: pd.DataFrame, names: Iterable[str]) -> str:
    """Return the values that are the same in all runs of a setting; a rule gives others at each scale."""
    known = [(name, group[name].dropna().unique()) for name in names]
    return _written({name: values[0] for name, values in known if len(values) == 1})


def _written(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{SHORT[name]} {number(float(value))}" for name, value in values.items())
