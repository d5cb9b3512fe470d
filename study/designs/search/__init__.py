"""A search: which settings learn best at each scale. Optuna proposes."""
