"""The command that would run missing cells. Pure."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from analysis.scaling.fingerprint import SETTINGS, fields
from analysis.scaling.results import Cell
from study.space.parameters import SCALE
from study.space.throughput import LEARNERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """How to run cells of a study."""

    space: str
    """Space file that the study came from."""
    study: str
    """Its name."""

    def command(self, cells: Sequence[Cell]) -> str:
        """Return the command that runs these cells, and at best no others, as a study `<name>_missing`.

        Cells that differ in no more than the scale and one field are one grid, which runs the cells that exist anew:
        then all of them have common seeds and may be paired. Otherwise, and where the learners differ, of which a study
        has one number, there is a command for each workload.
        """
        scales = sorted({cell.num_env_runners for cell in cells})
        workloads = list(dict.fromkeys(cell.fingerprint for cell in cells))
        contents = [fields(workload) for workload in workloads]
        names = [name for name in SETTINGS if len({repr(content.get(name)) for content in contents}) > 1]
        if len(names) > 1 or LEARNERS in names:
            lines = [
                self._line(f"_missing_{number}", scales, [(name, [content[name]]) for name in names if name in content])
                for number, content in enumerate(contents, 1)
            ]
            return "\n".join(lines)
        varied = [(name, _distinct(content[name] for content in contents if name in content)) for name in names]
        if not varied and len(cells) == 1 and cells[0].train_batch_size is not None:
            varied = [("train_batch_size", [cells[0].train_batch_size])]
        return self._line("_missing", scales, varied)

    def _line(self, suffix: str, scales: Sequence[int], values: Iterable[tuple[str, Sequence[Any]]]) -> str:
        sets = [f"parameters.{SCALE}={_yaml(scales)}"]
        sets += [f"{SETTINGS[name]}={_yaml(each)}" for name, each in values]
        sets += ["search.sampler=grid"]
        words = ["python", "run_study.py", "--space", self.space, "--name", f"{self.study}{suffix}"]
        return shlex.join([*words, *(word for each in sets for word in ("--set", each))])


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _yaml(values: Sequence[Any]) -> str:
    """Return one value, or a list of them, as YAML understands it."""
    return orjson.dumps(values[0] if len(values) == 1 else list(values)).decode()
