"""What version 0.12.2 had and this one does not: whoever asks for it reads so in one line. Imports no engine."""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "table not_measured": "Read the trials, which name each clock.",
    "table pop_tree": "Read the phases.",
    "table recommendation": "Read the answer, its price list, and the phases.",
    "figure throughput": "Plot the efficiency, or read the price list.",
    "figure time_to_target": "Plot the steps to the target, or read its table.",
    **{f"quantity {name}": "Ask for steps_to_target." for name in ("goodput", "statistical_efficiency")},
    **{f"quantity {name}": "Ask for share_runners, or load_balance." for name in ("transfer", "useful_share")},
    "quantity share_unexplained": "Ask for share_rest.",
    "quantity best_train_batch_size": "Ask for steps_to_target, by batch.",
    "quantity knee_num_env_runners": "Ask for limit_num_env_runners.",
    "quantity ceiling_of_all_batches_env_steps_per_s": "Ask for ceiling_env_steps_per_s.",
}
"""Table, figure or quantity of `analysis` -> what to do instead."""
