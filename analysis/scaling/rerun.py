"""The command that would run missing cells. Pure, but that it looks for the note at the top of a study's space."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from analysis.scaling.fingerprint import SETTINGS, fields
from analysis.scaling.results import Cell
from study.space.algorithms import ALGORITHMS
from study.space.parameters import SCALE
from study.space.space_file import as_options
from study.space.throughput import AXES, LEARNERS

_NAMES = {field: place.rpartition(".")[2] for field, place in SETTINGS.items()}
"""Field of a fingerprint -> the parameter that a space gives for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """How to run cells of a study."""

    space: str | None
    """Space file that the study came from; None where there is none, and so no command."""
    study: str
    """Its name."""
    stage: str | None = None
    """What its runs are for: None in a search, `throughput`, or stages of a hold-up study, which no command repeats."""

    def command(self, cells: Sequence[Cell]) -> str:
        """Return the command that runs these cells as a study `<name>_missing`; empty where no command can.

        A throughput study has a grid for each workload. A search has one grid for all of them where they differ in no
        more than the scale and one parameter, and else, or where the learners differ, a command for each workload.
        Both run the cells that exist anew: then all of them have common seeds and may be paired.
        """
        scales = sorted({cell.num_env_runners for cell in cells})
        contents = [fields(workload) for workload in dict.fromkeys(cell.fingerprint for cell in cells)]
        if self.space is None or self.stage not in (None, "throughput"):
            return ""
        if self.stage == "throughput":
            grids = {f"missing_{at}": _axes(content, scales) for at, content in enumerate(contents, 1)}
            return self._line("_missing", [f"throughput.grids={_json(grids)}", "throughput.allocation=null"])
        varied = [name for name in SETTINGS if len({repr(content.get(name)) for content in contents}) > 1]
        if len(varied) > 1 or LEARNERS in varied:
            return "\n".join(
                self._line(f"_missing_{at}", [*_grid([content], scales), f"resources.{LEARNERS}={content[LEARNERS]}"])
                if LEARNERS in varied
                else self._line(f"_missing_{at}", _grid([content], scales))
                for at, content in enumerate(contents, 1)
            )
        return self._line("_missing", _grid(contents, scales))

    def _line(self, suffix: str, changes: Sequence[str]) -> str:
        words = ["python", "run_study.py", *as_options(str(self.space)), "--name", f"{self.study}{suffix}"]
        return shlex.join([*words, *(word for each in changes for word in ("--set", each))])


def _axes(content: Mapping[str, Any], scales: Sequence[int]) -> dict[str, Any]:
    """Return the grid of one workload."""
    given = {_NAMES[field]: content[field] for field in SETTINGS if content.get(field) is not None}
    return {SCALE: scales} | {name: value for name, value in given.items() if name in AXES}


def _grid(contents: Sequence[Mapping[str, Any]], scales: Sequence[int]) -> list[str]:
    """Return what makes a search one of these workloads alone: all parameters, as what else it tunes would vary too."""
    traits = ALGORITHMS.get(str(contents[0].get("algorithm"))) if contents else None
    parameters: dict[str, Any] = {SCALE: scales}
    for field, name in _NAMES.items():
        values = list(dict.fromkeys(content[field] for content in contents if content.get(field) is not None))
        if values and (traits is None or name in traits.parameters):
            parameters[name] = values[0] if len(values) == 1 else values
    return [
        f"parameters={_json(parameters)}",
        "search.sampler=grid",
        "search.num_trials=null",
        "search.baselines=[]",
    ]


def _json(value: Mapping[str, Any]) -> str:
    """Return a mapping as YAML understands it, on one line."""
    return orjson.dumps(value).decode()
