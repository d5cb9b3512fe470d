"""Tables of what was learnt: steps to the target, the certificate's settings and rules, every trial. They select."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.estimates.settings import ARMS, DAMAGE, arm_in_words, estimate_of
from analysis.load import RUN_COLUMNS
from analysis.quantity import Part, frame_of
from analysis.scaling.blocks import at_their_scale
from analysis.tables.pivot import pivot, table_of_pivot, told
from analysis.tables.scaling import INTERVAL, MEASURED, nothing
from analysis.tables.table import Table, TableColumn, in_words, without_rows
from study.engine import OWN
from study.space.parameters import PARAMETERS, SCALE
from study.space.settings import WINNER, WINNER_RLLIB
from study.statistics import LEVEL, without_interval
from study.text import count

if TYPE_CHECKING:
    from analysis.opened import Study

CENSORED = (
    "A run that did not get to the target, or failed, is censored, never left out. The target is looked for in "
    "evaluations: the value is the step of the first one at it, and intervals reach down to the one before. A cell of "
    "fewer than five runs has no interval: a bootstrap of so few would cover 62 to 87 %, not 95 %."
)
HOLDS_UP = (
    "A setting holds up if, on seeds that nothing was chosen by, its mean score is not lower than the small scale's "
    "best by more than the tolerance (lower 95 % bound), and enough of its runs end at the target."
)
MOST_TRIALS = 60
"""Trials that a page shows; the CSV has all."""


# --- steps to the target ------------------------------------------------------------------------------------------


def steps_to_target(study: "Study") -> Table:
    """T8: steps, time and cost to the target against the batch."""
    part, key, title = study.targets, "T8", "Steps, time and cost to the target against the batch"
    if not part.rows:
        why = "No steps to target: no setting has several ended runs of which one reached a target."
        return nothing(part, key, title, why, "python run_study.py --space cartpole_ppo.yaml")
    names = "steps_to_target time_to_target_s cpu_hours_to_target"
    wide = pivot(study.frame, names)
    wide["arm"] = wide["arm"].where(wide["arm"] != "", wide["workload"])
    return table_of_pivot(
        wide,
        key,
        title,
        f"{'arm ' if wide['arm'].nunique() > 1 else ''}num_env_runners train_batch_size {names} n_censored num_cpus n "
        "n_failed",
        _fewest(wide),
        part,
        notes=part.notes,
        definitions=(CENSORED, INTERVAL, MEASURED),
    )


def _fewest(wide: pd.DataFrame) -> str:
    """Return the least mean, which intervals of others may hold; one of runs that never got there is a lower bound."""
    sure = wide[wide["n_censored"] == 0] if (wide["n_censored"] == 0).any() else wide
    best = sure.iloc[int(sure["steps_to_target"].astype(float).argmin())]
    batch = "" if pd.isna(best["train_batch_size"]) else f", batch {best['train_batch_size']:,}"
    arm = f" ({best['arm']})" if wide["arm"].nunique() > 1 else ""
    where = f"{count(best['num_env_runners'], 'runner')}{batch}{arm}"
    reached = f"reached by {best['n'] - best['n_censored']} of {best['n']} runs"
    low, high = (wide[f"steps_to_target{end}"].astype(float) for end in ("_low", "_high"))
    high = high.fillna(math.inf).where(wide["n_censored"] == 0, math.inf)  # a mean of runs that never got there
    at, low = wide.index.get_loc(best.name), low.fillna(-math.inf)
    same = int(((low <= high.iloc[at]) & (low.iloc[at] <= high)).sum()) - 1
    rivals = f"; cannot be told from {same} of the other {len(wide) - 1} rows" if same else ""
    times = "" if wide["time_to_target_s"].notna().any() else " No row has a measured clock."
    return f"The fewest env steps to the target: {told(best, 'steps_to_target')} at {where}, {reached}{rivals}.{times}"


# --- the certificate of a hold-up study ---------------------------------------------------------------------------

PASSED = {True: "kept", False: "BROKEN", None: "not judged"}
JUDGED = {
    "final_return": "iqm_final_return",
    "solved_last": "solve_rate",
    "score": "score",
    "steps_to_target": "env_steps_to_target",
    "cpu_s_spent": "cpu_s_spent",
}
"""Quantity -> what the certificate calls it."""
RULES: Mapping[str, tuple[str, str]] = {
    "score_kept": (
        "with {runners} the mean score must be less than {tolerance} below that of the best with {small}",
        "the difference is {score}, its lower {level} % bound {bound}, of {runs} runs",
    ),
    "solved": ("with {runners} at least {needed} of the test runs must be solved", "{solved} of {n} are"),
    "steps_saved": (
        "with {runners} it must take fewer environment steps to the target than RLlib's defaults with the batch grown",
        "these take {value} times as many",
    ),
}
"""Rule of the verdict -> what must hold, and what was found."""


def rule_in_words(content: Mapping[str, Any], check: Mapping[str, Any], engine: str) -> str:
    """Return a rule of a certificate's verdict about an engine, and what was found or why nothing was."""
    name, _, scale = check["name"].partition("@")
    winner = WINNER_RLLIB if engine == OWN and content["rllib"] is not None else WINNER
    value, arm = estimate_of(check["value"]), content["arms"][f"{winner}@{scale}"]
    small, laws = content["scales"]["small"], content["laws"]
    facts = {"runners": count(int(scale), "runner"), "small": small, "solved": arm["solved"], "n": arm["n"]}
    facts |= {"tolerance": f"{laws['tolerance']:g}", "needed": f"{100 * laws['solved_share']:g} %"}
    must, found = RULES[name]
    if value is None:
        return f"{must.format(**facts)}: {with_names(check['note'], small)}"
    facts |= {"value": in_words(value), "score": f"{value.value:+.3f}", "bound": f"{value.low:+.3f}"}
    facts |= {"level": f"{100 * value.level:g}", "runs": value.n}
    return f"{must}: {found}".format(**facts)


def certificate(study: "Study") -> Table:
    """T11: the settings of the confirmation, the rules of the verdict as notes, or what is missing."""
    content, key, title = study.certificate, "T11", "Hold-up certificate: the settings on test seeds"
    part = Part(n_failed=study.num_failed)
    if isinstance(content, str):
        return nothing(part, key, title, content)
    try:
        return _certificate(content, study, key, title)
    except DAMAGE as error:
        fix = f"python -m study certificate write {shlex.quote(study.data.source)}"
        got = f"a damaged file ({type(error).__name__}: {error})"
        return nothing(part, key, title, f"No certificate. certificate.json must be one, got {got}. Fix: {fix}")


def _certificate(content: Mapping[str, Any], study: "Study", key: str, title: str) -> Table:
    arms: list[Mapping[str, Any]] = list(content["arms"].values())
    small, target, verdict = content["scales"]["small"], content["scales"]["target"], content["verdict"]
    rows = []
    for arm in arms:
        place = {"num_env_runners": arm["scale"], **{name: arm[name] for name in ("n_failed", "n_censored")}}
        place["arm"] = arm_in_words(arm["name"], small)
        for name, called in JUDGED.items():
            value: Any = arm[called]
            if isinstance(value, (int, float)):  # steps to target have no interval in a certificate
                value = without_interval(value, n=arm["n"], level=LEVEL, method="none")
            elif (value := estimate_of(value)) is None:
                continue
            rows.append({**place, "quantity": name, "estimate": value})
    wide = pivot(frame_of(rows, kind="holdup", engine=study.engine), " ".join(JUDGED))
    wide["n"], n = [arm["n"] for arm in arms], sum(arm["n"] for arm in arms)
    wide["timing"] = [", ".join(f"{number} {label}" for label, number in arm["timing"].items()) for arm in arms]
    kept = estimate_of(verdict["checks"].get(f"score_kept@{target}", {}).get("value"))
    lead = f" Its mean score less that of the best of {small} runners: {in_words(kept)}." if kept is not None else ""
    excluded = {"of other stages than the confirmation": len(study.data.runs) - n}
    return table_of_pivot(
        wide,
        key,
        title,
        f"arm num_env_runners {' '.join(JUDGED)} n_censored n n_failed timing",
        f"At {target} runners the chosen setting {content['sentence']}.{lead}",
        Part(n=n, n_failed=sum(arm["n_failed"] for arm in arms), excluded=excluded),
        notes=[*_notes(content, small)],
        definitions=(HOLDS_UP, CENSORED),
    )


def _notes(content: Mapping[str, Any], small: int) -> Iterator[str]:
    for engine, verdict in ((OWN, content["rllib"]), (content["engine"], content["verdict"])):
        for check in verdict["checks"].values() if verdict is not None else ():
            note = f"; {with_names(check['note'], small)}" if check["note"] and check["value"] is not None else ""
            passed = "not shown" if check["passed"] is False and not check["lost"] else PASSED[check["passed"]]
            yield f"{engine}, {passed}: {rule_in_words(content, check, engine)}{note}."
    yield with_names(content["search"]["sentence"], small)
    yield from content["signs"]


def with_names(said: str, small: int) -> str:
    """Return a sentence of the certificate with the settings by their names in words."""
    for name in sorted(ARMS, key=len, reverse=True):
        said = re.sub(rf"`{name}`" + (rf"|\b{name}\b" if "_" in name else ""), arm_in_words(name, small), said)
    return said


# --- every trial --------------------------------------------------------------------------------------------------

LABELS: Mapping[str, str] = {
    SCALE: "runners",
    "train_batch_size": "batch",
    "minibatch_size": "minibatch",
    "num_epochs": "epochs",
    "num_envs_per_env_runner": "environments per runner",
    "final_return": "return",
    "env_steps_to_target": "steps to target",
    "env_steps_per_s": "steps/s",
    "wall_time_s": "training time",
    "timing": "clock",
}
OUTCOME = ("final_return", "score", "env_steps_to_target", "env_steps_per_s", "wall_time_s")
OF_A_TRIAL = ("trial", SCALE, *OUTCOME[:2], *(name for name in PARAMETERS if name != SCALE), "seed", "stage",
              *OUTCOME[2:], "status", "timing", "reason")  # fmt: skip


def every_trial(study: "Study") -> Table:
    """The trials: setting, seed, what came out, and what its clock is worth."""
    data, runs = study.data, at_their_scale(study.data.runs)
    if runs.empty:
        return without_rows("trials", "Every trial", "No trial has started.")
    timed = data.kind == "throughput"
    by = [SCALE, "trial"] if timed else ["final_return", "env_steps_to_target", SCALE, "trial"]  # as `Setting.order`
    runs = runs.sort_values(by, ascending=[timed, *[True] * (len(by) - 1)], na_position="last")
    names = [name for name in OF_A_TRIAL if runs[name].notna().any()]
    names = [name for name in names if name == SCALE or name not in PARAMETERS or runs[name].nunique() > 1]
    frame: pd.DataFrame = runs[names].reset_index(drop=True)
    counts = ", ".join(f"{number:,} {status}" for status, number in runs["status"].value_counts().items())
    units = {name: "1" if RUN_COLUMNS[name].unit else "" for name in names} | {"wall_time_s": "s"}
    return Table(
        key="trials",
        title="Every trial",
        frame=frame.astype({name: "string" for name in names if str(frame[name].dtype) == "category"}),
        columns=tuple(
            TableColumn(name, units[name], LABELS.get(name, ""), RUN_COLUMNS[name].meaning) for name in names
        ),
        n=len(runs),
        n_failed=study.num_failed,
        conclusion=f"{counts}; {'by runners' if timed else 'the best return first'}.",
        most_rows=MOST_TRIALS,
    )
