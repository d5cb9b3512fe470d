"""The figures of a hold-up study's answer, made from its raw records by code that shares nothing with `study`.

    python -m tests.recompute analysis/example_study        # prints them beside those of the certificate

Means, bounds and tests are SciPy's. Random numbers are others than the certificate's: what rests on them (p-values by
permutation) is compared with a tolerance.
"""

import json
import lzma
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats


def read(folder):
    """Return the space, and (stage, arm, scale) -> the runs by seed: score, return, solved, steps, CPU-seconds."""
    folder = Path(folder)
    space, packed = json.loads((folder / "study.json").read_text())["spec"], folder / "records.jsonl.xz"
    started, seen, status, spent = {}, defaultdict(list), {}, defaultdict(float)
    with lzma.open(packed, "rt") if packed.exists() else (folder / "records.jsonl").open() as lines:
        for record in map(json.loads, lines):
            if record["kind"] == "trial_started":
                started[record["trial"]], seen[record["trial"]] = record, []
            elif record["kind"] == "evaluation":
                seen[record["trial"]].append(record)
            elif record["kind"] == "trial_ended":
                status[record["trial"]] = record["status"]
                spent[record["trial"]] += record["summary"]["cpu_s_spent"] or 0.0
    floor, reference, target = (space["environment"][name] for name in ("floor", "reference", "target"))
    runs = defaultdict(dict)
    for trial, start in started.items():
        means = [np.mean(np.array(each["returns"], dtype=float)) for each in seen[trial]]
        last = [mean for mean, each in zip(means, seen[trial], strict=True) if each["progress"] > 0.9 - 1e-9]
        final = np.mean(last or [np.nan])
        good = [mean >= target for mean in means]
        pairs = [place for place in range(len(good) - 1) if good[place] and good[place + 1]]
        ok = status[trial] == "finished" and np.isfinite(final)
        one = {
            "digest": start["digest"],
            "score": float(np.clip((final - floor) / (reference - floor), 0, 1.2)) if ok else 0.0,
            "final_return": float(final) if ok else floor,
            "solved": good[-3:] if ok else [False] * 3,
            "steps": seen[trial][pairs[0]]["env_steps"] if ok and pairs else space["budget"]["env_steps"],
            "never": not (ok and pairs),
            "spent": spent[trial],
        }
        arm = start["anchor"] if start["stage"] == "confirm" else None
        key = start["seed"] if arm else (start["seed"], trial)
        runs[start["stage"], arm, start["setting"]["num_env_runners"]][key] = one
    return space, runs


def column(runs, name):
    """Return one number of every run, by seed."""
    return np.array([runs[seed][name] for seed in sorted(runs)])


def figures(folder):
    """Return place in the certificate -> the figure, of every figure that an answer prints; and the hours."""
    space, every = read(folder)
    arms = {(name, scale): runs for (stage, name, scale), runs in every.items() if stage == "confirm"}
    target, small, found = space["holdup"]["target_scale"], space["holdup"]["small_scale"], {}
    for stage in ("search", "race", "confirm"):
        ran = [(scale, one) for (of, _, scale), runs in every.items() if of == stage for one in runs.values()]
        found[f"trials.{stage}.n"] = len(ran)
        found[f"cpu_hours.{stage}"] = sum(one["spent"] for _, one in ran) / 3600
        if stage == "search":
            found["search.cpu_hours.small"] = sum(one["spent"] for scale, one in ran if scale == small) / 3600
    found["search.cpu_hours.all"] = found["cpu_hours.search"] + found["cpu_hours.race"]
    confirmed, raced = arms["winner", target].values(), every["race", None, target].values()
    digest = next(iter(confirmed))["digest"]
    chosen = [one["score"] for one in raced if one["digest"] == digest]
    found["optimism.optimism"] = np.mean(chosen) - np.mean([one["score"] for one in confirmed])
    for (name, scale), runs in arms.items():
        score, place, n = column(runs, "score"), f"arms.{name}@{scale}", len(runs)
        half = stats.t.ppf(0.975, n - 1) * score.std(ddof=1) / n**0.5
        found[f"{place}.n"], found[f"{place}.cpu_s_spent.value"] = n, column(runs, "spent").mean()
        found[f"{place}.score.value"], found[f"{place}.score.low"] = score.mean(), score.mean() - half
        found[f"{place}.iqm_final_return.value"] = stats.trim_mean(column(runs, "final_return"), 0.25)
        found[f"{place}.env_steps_to_target"] = column(runs, "steps").mean()
        found[f"{place}.n_censored"] = int(column(runs, "never").sum())
        for last, count in enumerate(column(runs, "solved").sum(axis=0)):
            found[f"{place}.solved_at.{last}"] = int(count)
    ours = _rules(space["holdup"], arms, "verdict", "winner", ("best_small", "winner"))
    rllibs = _rules(space["holdup"], arms, "rllib", "winner_rllib", ("best_small_rllib",))
    return found | ours | rllibs | _rivals(arms, space["holdup"]["target_scale"])


def _rules(holdup, arms, verdict, winner, references):
    """Return the rules on the mean score and on the share solved, at every scale that a winner is judged at."""
    found, small = {}, holdup["small_scale"]
    for scale in sorted({scale for name, scale in arms if name == winner and scale != small}):
        here = column(arms[winner, scale], "score")
        against = [column(arms[name, small], "score") for name in references if (name, small) in arms]
        low, high = min(_welch(here, each, 0.9) for each in against)
        solved = column(arms[winner, scale], "solved").sum(axis=0).min()
        kept, enough = f"{verdict}.checks.score_kept@{scale}", f"{verdict}.checks.solved@{scale}"
        found[f"{kept}.value.low"], found[f"{enough}.value.value"] = low, solved / len(here)
        found[f"{kept}.passed"], found[f"{kept}.lost"] = low > -holdup["tolerance"], high < -holdup["tolerance"]
        found[f"{enough}.passed"] = solved >= holdup["solved_share"] * len(here) - 1e-9
        found[f"{enough}.lost"] = not found[f"{enough}.passed"]
    return found


def _rivals(arms, target):
    """Return the chosen setting against each rival at the target scale, p-values corrected by Holm."""
    found, winner, p_values = {}, arms["winner", target], {}
    for name, scale in arms:
        if scale == target and name not in ("winner", "winner_rllib", "best_small"):
            rival, place = arms[name, scale], f"search.rivals.{name}"
            low, high = _welch(column(winner, "score"), column(rival, "score"), 0.95)
            found[f"{place}.difference.value"] = column(winner, "score").mean() - column(rival, "score").mean()
            found[f"{place}.difference.low"], found[f"{place}.difference.high"] = low, high
            ratio = found[f"{place}.steps_ratio.value"] = column(rival, "steps").mean() / column(winner, "steps").mean()
            p_values[place] = _permuted(column(winner, "score"), column(rival, "score"))
            if name == "naive_growth":
                found[f"verdict.checks.steps_saved@{target}.value.value"] = ratio
    adjusted = 0.0
    for rank, place in enumerate(sorted(p_values, key=p_values.get)):
        adjusted = max(adjusted, min((len(p_values) - rank) * p_values[place], 1.0))
        found[f"{place}.p_value"], found[f"{place}.p_adjusted"] = p_values[place], adjusted
    return found


def _welch(one, two, level):
    interval = stats.ttest_ind(one, two, equal_var=False).confidence_interval(level)
    return interval.low, interval.high


def _permuted(one, two):
    method = stats.PermutationMethod(n_resamples=9_999, rng=np.random.default_rng(0))
    return stats.ttest_ind(one, two, equal_var=False, alternative="greater", method=method).pvalue


def differing(folder):
    """Return the places whose figure in the certificate is another one, with both."""
    certificate, wrong = json.loads((Path(folder) / "certificate.json").read_text()), {}
    for place, value in figures(folder).items():
        written = certificate
        for part in place.split("."):
            written = written[int(part)] if isinstance(written, list) else written[part]
        tolerance = {"p_value": 0.02, "p_adjusted": 0.08}.get(place.split(".")[-1], 1e-6 * max(abs(value), 1))
        if not abs(float(written) - float(value)) <= tolerance:
            wrong[place] = written, value
    return wrong


if __name__ == "__main__":
    for place, value in figures(sys.argv[1]).items():
        sys.stdout.write(f"{place:60} {value:.6g}\n")
    sys.stdout.write(f"{differing(sys.argv[1]) or 'every figure is that of the certificate'}\n")
