"""Which parameters mattered, scale by scale: PED-ANOVA over a study's trials. May import Optuna.

Source: Watanabe et al., "PED-ANOVA: efficiently quantifying hyperparameter importance in arbitrary subspaces",
IJCAI 2023; Optuna's implementation.
"""

import warnings
from collections.abc import Iterable

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from study.designs.search.outcome import distributions
from study.designs.search.worth import merit
from study.records.ledger import TrialRow
from study.space.spec import StudySpec

FEWEST = 10
"""Trials of a scale below which an importance would be noise."""


def importance_per_scale(spec: StudySpec, rows: Iterable[TrialRow]) -> dict[int, dict[str, float]]:
    """Return scale -> parameter -> importance, dimensionless, of sum 1; only scales with `FEWEST` trials or more.

    Scales whose trials are all worth the same are left out: nothing tells a better half apart.

    Importance is what tells the better half of the trials apart, at that scale alone. Failed trials count, as 0. It is
    computed from trials that a sampler chose, and says nothing of values that it never proposed.
    """
    known = {name: domain for name, domain in distributions(spec).items() if name in spec.tuned}
    by_scale: dict[int, list[TrialRow]] = {}
    for row in rows:
        if row.ended and row.proposed.keys() >= known.keys():
            by_scale.setdefault(row.num_env_runners, []).append(row)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    result: dict[int, dict[str, float]] = {}
    for scale, here in sorted(by_scale.items()):
        merits = [merit(spec, row) for row in here]
        if len(here) < FEWEST or len(set(merits)) == 1:
            continue
        study = optuna.create_study(direction="maximize")
        for row, value in zip(here, merits, strict=True):
            params = {name: row.proposed[name] for name in known}
            study.add_trial(create_trial(params=params, distributions=known, value=value))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            evaluator = PedAnovaImportanceEvaluator(target_quantile=0.5, region_quantile=1.0)
        result[scale] = get_param_importances(study, evaluator=evaluator)
    return result
