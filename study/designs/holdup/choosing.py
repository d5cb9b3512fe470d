"""Search, race and stress: which settings run, which go on, and which one wins. Pure; an outcome for every phase."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from study.designs.holdup import selection
from study.designs.holdup.baselines import Setting, fixed_baselines, scaled_baselines
from study.designs.holdup.calibration import cost_model
from study.designs.holdup.evidence import Evidence, Outcome, mean
from study.designs.holdup.phases import BASELINE_SEEDS, search_scales
from study.records.request import TrialRequest
from study.space.settings import BEST_SMALL, Stage, resolve

REUSED = "reused"
"""In the evidence of a decision: baseline -> finished trials that stand for it, since they ran what it would run."""


def search(known: Evidence) -> Outcome:
    """Ask for the proposals, each once, on the seeds of the search in turn."""
    seeds = known.holdup.tune_seeds.seeds
    requests = [
        TrialRequest(stage="search", num_env_runners=scale, seed=seeds[index % len(seeds)])
        for index, scale in enumerate(search_scales(known.spec))
    ]
    model = cost_model(known.rows())
    return Outcome(requests=requests, evidence={"cost_model": None if model is None else asdict(model)})


def race(known: Evidence, number: int) -> Outcome:
    """Ask for a block of the race, by those who survived the block before.

    The first block is for the best of the search at whatever scale they ran: their place among the settings of their
    own scale decides, since what a scale makes easy says nothing about a setting. On equal places those that ran above
    the small scale go first, the cheaper before the dearer.
    """
    sizes, target = known.holdup.race, known.holdup.target_scale
    evidence: dict[str, Any]
    if number == 1:
        searched = {scale: known.searched(scale) for scale in known.spec.scales}
        places = selection.places(searched.values())
        ranked = selection.best(places, known.costs(known.large), len(places))
        kept, dropped = ranked[: sizes.num_settings], ranked[sizes.num_settings :]
        evidence = {"places": places, "searched": {str(scale): each for scale, each in searched.items()}}
    else:
        kept, dropped, evidence = _survivors(known, sizes.blocks[: number - 1])
    done = sum(sizes.blocks[: number - 1])
    seeds = known.holdup.rank_seeds.seeds[done : done + sizes.blocks[number - 1]]
    requests = [_ranking(known, "race", digest, target, seed) for seed, digest in itertools.product(seeds, kept)]
    return Outcome(requests=requests, kept=kept, dropped=dropped, evidence=evidence)


def stress(known: Evidence) -> Outcome:
    """Ask for the finalists at every searched scale, and for the best of the small scale there."""
    holdup, small_scale, count = known.holdup, known.holdup.small_scale, known.holdup.stress.num_settings
    survivors, fallen, evidence = _survivors(known, holdup.race.blocks)
    ranked = survivors + fallen
    kept, dropped = ranked[:count], ranked[count:]
    small = selection.best(known.searched(small_scale), known.costs([small_scale]), count)
    wanted = [(digest, scale) for digest in kept for scale in known.spec.scales]
    wanted += [(digest, small_scale) for digest in small if digest not in kept]
    seeds = holdup.rank_seeds.seeds[: holdup.stress.num_seeds]
    requests = [
        _ranking(known, "stress", digest, scale, seed)
        for seed, (digest, scale) in itertools.product(seeds, wanted)
        if seed not in known.on_rank_seeds(digest, scale)
    ]
    return Outcome(requests=requests, kept=kept, dropped=dropped, evidence=evidence | {"small": small})


def baselines(known: Evidence) -> Outcome:
    """Choose the winner and the best of the small scale, then ask for what the winner has to beat."""
    holdup, last, spec = known.holdup, known.decisions[-1], known.spec
    target, small_scale = holdup.target_scale, holdup.small_scale
    means = {
        digest: {scale: mean(known.on_rank_seeds(digest, scale).values()) for scale in spec.scales}
        for digest in last.kept
    }
    holds = {digest: min(means[digest][scale] for scale in known.large) for digest in last.kept}
    winner = selection.winner(holds, known.costs([target]))
    candidates = dict.fromkeys([*last.evidence["small"], *last.kept])
    at_small = {digest: mean(known.on_rank_seeds(digest, small_scale).values()) for digest in candidates}
    best_small = selection.best(at_small, known.costs([small_scale]), 1)[0]
    requests: list[TrialRequest] = []
    reused: dict[str, list[int]] = {}
    seeds = holdup.rank_seeds.seeds[:BASELINE_SEEDS]
    for seed, (name, setting) in itertools.product(seeds, rivals(known, winner, best_small).items()):
        if (trial := _run_already(known, setting, seed)) is None:
            requests.append(TrialRequest(stage="stress", num_env_runners=target, seed=seed, setting=setting, name=name))
        else:
            reused.setdefault(name, []).append(trial)
    evidence = {
        "means": {digest: {str(scale): value for scale, value in each.items()} for digest, each in means.items()},
        "holds": holds,
        "at_small": at_small,
        BEST_SMALL: best_small,
    } | ({REUSED: reused} if reused else {})
    dropped = [digest for digest in last.kept if digest != winner]
    return Outcome(requests=requests, kept=[winner], dropped=dropped, evidence=evidence)


def _run_already(known: Evidence, setting: Setting, seed: int) -> int | None:
    """Return the trial of race or stress that ran a setting's numbers on a seed at the target scale, if there is one.

    Training is deterministic, so that the same numbers on the same seed would give the same run to the last digit.
    """
    target = known.holdup.target_scale
    numbers = resolve(setting, target)
    alike = (
        row.trial
        for row in known.whole(("race", "stress"))
        if row.num_env_runners == target and row.seed == seed and resolve(row.rule, target) == numbers
    )
    return next(alike, None)


def rivals(known: Evidence, winner: str, best_small: str) -> dict[str, Setting]:
    """Return the baselines by name, without those that are the winner, or each other, at the target scale."""
    holdup = known.holdup
    every = fixed_baselines(holdup) | scaled_baselines(known.settings[best_small], holdup.small_scale)
    seen = [resolve(known.settings[winner], holdup.target_scale)]
    different = {}
    for name, setting in every.items():
        numbers = resolve(setting, holdup.target_scale)
        if numbers not in seen:
            different[name] = setting
            seen.append(numbers)
    return different


def _survivors(known: Evidence, blocks: Sequence[int]) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return who stays in the race after its blocks so far, who does not, and the scores behind it."""
    target, racing = known.holdup.target_scale, known.decisions[-1].kept
    seeds = known.holdup.rank_seeds.seeds[: sum(blocks)]
    table: Mapping[str, dict[int, float]] = {digest: known.on_rank_seeds(digest, target) for digest in racing}
    scores = {digest: [table[digest][seed] for seed in seeds] for digest in racing}
    least = known.holdup.stress.num_settings
    kept = selection.race(scores, known.costs([target]), least=least)
    return kept, [digest for digest in racing if digest not in kept], {"scores": scores, "seeds": list(seeds)}


def _ranking(known: Evidence, stage: Stage, digest: str, scale: int, seed: int) -> TrialRequest:
    return TrialRequest(stage=stage, num_env_runners=scale, seed=seed, setting=known.settings[digest])
