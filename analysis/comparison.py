"""Several studies side by side: their estimates in one frame, and ratios where the work is equal. Imports no engine."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.estimates.frame import estimate_of
from analysis.fingerprint import BATCH, differing, text_of
from analysis.opened import Study
from analysis.quantity import QUANTITIES, unknown
from analysis.scaling.blocks import in_frame, product_of
from study.errors import AnalysisError

MOST_NAMED = 4
"""Differing fields that a refusal names."""
MOST_REFUSALS = 3
"""Refusals in the message of an error; `refusals` has all."""
OF_A_WHOLE_TRAINING = ("setting", "target", "certificate")
"""Grains of the quantities that depend on how long trainings may be, and on the returns that they are judged by."""
JUDGED_BY = ("floor", "reference", "target")
"""Returns in a space's `environment` by which a training is judged; in no fingerprint, as no time depends on them."""
CELL = ["num_env_runners", "fingerprint"]


class Comparison:
    """Two studies or more. The first one is the reference of every ratio."""

    def __init__(self, studies: Sequence[Study]) -> None:
        """Take the studies, two or more.

        Raises:
            AnalysisError: There are fewer.
        """
        if len(studies) < 2:
            raise AnalysisError(
                where="compare",
                rule="needs two studies or more",
                got=len(studies),
                fix='Give them in a list: analysis.compare(["studies/a", "studies/b"]).',
            )
        self.studies = tuple(studies)

    @property
    def names(self) -> tuple[str, ...]:
        """The studies by name; one that has the name of another by its place too."""
        names = [study.name for study in self.studies]
        return tuple(
            name if names.count(name) == 1 else f"{name} ({study.data.source})"
            for name, study in zip(names, self.studies, strict=True)
        )

    def estimates(self, quantity: str | Sequence[str] | None = None, **selection: object) -> pd.DataFrame:
        """Return the estimates of all studies in one frame, with the column `study` before the others.

        Raises:
            AnalysisError: There is no such quantity or column.
        """
        frames = [study.estimates(quantity, **selection) for study in self.studies]
        for name, frame in zip(self.names, frames, strict=True):
            frame.insert(0, "study", pd.Series(name, index=frame.index, dtype="string"))
        return pd.concat(frames, ignore_index=True)

    def ratios(self, quantity: str = "env_steps_per_s") -> pd.DataFrame:
        """Return a quantity of each study over that of the first one, where workload and runners are equal.

        Args:
            quantity: One whose values are above 0.

        Raises:
            AnalysisError: There is no such quantity, or no cell that two studies have in common.
        """
        if quantity not in QUANTITIES:
            raise unknown("quantity", quantity, {each.name: each.label for each in QUANTITIES.values()})
        first = _alone(_known(self.studies[0], quantity))
        found: list[dict[str, object]] = []
        for name, study in zip(self.names[1:], self.studies[1:], strict=True):
            if not self._other_terms(study, quantity):
                pairs = _alone(_known(study, quantity)).merge(first, on=[*CELL, "base"], suffixes=("", "_first"))
                found += [_ratio(name, row) for row in pairs.to_dict("records")]
        if not found:
            why = "; ".join(self.refusals(quantity)[:MOST_REFUSALS])
            raise AnalysisError(
                where=quantity,
                rule="a ratio needs equal workloads at equal numbers of runners",
                got=why or f"no measured {quantity} at equal numbers of runners in both",
                fix="Compare studies whose spaces differ in nothing else, or read their estimates side by side.",
            )
        return pd.DataFrame(found)

    def refusals(self, quantity: str = "env_steps_per_s") -> tuple[str, ...]:
        """Return why each cell of another study has no ratio: the fields that differ least, or its placement.

        A study as a whole is refused whose trainings may be longer or shorter, or are judged by other returns, where
        the quantity depends on that.
        """
        first, found = _known(self.studies[0], quantity), list[str]()
        for name, study in zip(self.names[1:], self.studies[1:], strict=True):
            if terms := self._other_terms(study, quantity):
                found.append(f"{name}: {terms}")
            else:
                found += _refusals(name, first, _known(study, quantity))
        return tuple(found)

    def _other_terms(self, study: Study, quantity: str) -> str:
        """Return how trainings may differ in length, or in the returns that they are judged by; empty if that is one.

        Empty too where it does not matter to the quantity.
        """
        if QUANTITIES[quantity].grain not in OF_A_WHOLE_TRAINING:
            return ""
        one, two = (_terms(each) for each in (self.studies[0], study))
        if not one or not two:
            return "the budget of one of the two is not known"
        fields = [name for name in {**one, **two} if one.get(name) != two.get(name)]
        shown = [f"{name} {text_of(one.get(name))} and {text_of(two.get(name))}" for name in fields]
        return f"{', '.join(shown)} differ" if shown else ""

    def __repr__(self) -> str:
        return f"Comparison of {', '.join(self.names)}: .estimates(), .ratios(), .refusals()"


def _terms(study: Study) -> dict[str, object]:
    """Return how long the trainings of a study may be, and by which returns they are judged; empty if not known."""
    budget, environment = (study.data.sheet.get(name) or {} for name in ("budget", "environment"))
    judged = {f"environment.{name}": environment.get(name) for name in JUDGED_BY}
    return {f"budget.{name}": value for name, value in budget.items()} | judged if budget else {}


def _known(study: Study, quantity: str) -> pd.DataFrame:
    """Return the estimates of a quantity that come from runs of one workload."""
    found = study.estimates(quantity)
    ran = ~found["basis"].isin(["predicted", "extrapolated"])
    return found[ran & found["fingerprint"].ne("") & found["value"].gt(0)].reset_index(drop=True)


def _alone(found: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that have one estimate: of several, as on one node and on two, none stands for the cell."""
    return found[~found.duplicated(CELL, keep=False)]


def _ratio(study: str, row: dict[Any, Any]) -> dict[str, object]:
    reference = {name: row[f"{name}_first"] for name in ("value", "low", "high", "n", "level", "method")}
    ratio = product_of(estimate_of(row), estimate_of(reference), power=-1)
    value, low, high, n = in_frame(ratio)
    kept = {name: row[name] for name in ("workload", "num_env_runners", BATCH, "quantity")}
    numbers = {"ratio": value, "low": low, "high": high, "level": ratio.level, "n": n, "method": ratio.method}
    return {"study": study, **kept, **numbers}


def _refusals(name: str, first: pd.DataFrame, others: pd.DataFrame) -> Iterator[str]:
    for _, row in others.iterrows():
        batch = "" if pd.isna(row[BATCH]) else f", {BATCH} {row[BATCH]:,}"
        place = f"{name} at {row['num_env_runners']} runners{batch}"
        rivals = first[first["num_env_runners"] == row["num_env_runners"]]
        same = rivals[rivals["fingerprint"] == row["fingerprint"]]
        if len(same) > 1 or (others[CELL] == row[CELL]).all(axis=1).sum() > 1:
            yield f"{place}: its runs, or those of the first study, were placed in several ways"
        elif len(same):
            if (base := same["base"].iloc[0]) != row["base"]:
                yield f"{place}: relative to {row['base']}, not to {base} as in the first study"
        elif len(rivals):
            fields = min((differing(each, row["fingerprint"]) for each in rivals["fingerprint"].unique()), key=len)
            pairs = [f"{field} {text_of(one)} and {text_of(two)}" for field, (one, two) in fields.items()]
            more = f" and {len(pairs) - MOST_NAMED} more" if len(pairs) > MOST_NAMED else ""
            yield f"{place}: {', '.join(pairs[:MOST_NAMED])}{more} differ"
