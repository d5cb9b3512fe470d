"""Finds the `AlgorithmConfig` in a person's script, in a process of its own that runs this code. Imports RLlib.

`study.adopted.reading` starts the process with a folder that holds `request.json`. The answer goes there too:
`answer.json` with what is known or the faults, and `config.pkl` with the configuration.
"""

import contextlib
import faulthandler
import inspect
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from study.adopted.answering import Surroundings, answered
from study.adopted.describing import refusals
from study.adopted.interception import NAME_A_FUNCTION, Interception, Launch, Launched, UsesRay, launch_of
from study.adopted.reading import MistakeError, last_line
from study.errors import Fault

_LOOKED_FOR = "an AlgorithmConfig at module level, tune.Tuner, tune.run, build_algo"
_RUN_IT = "Run the script by itself until it trains; what it takes from its command line: --config-args."


def main(folder: str) -> NoReturn:
    """Read the request in a folder, find the configuration, write the answer and end the process."""
    place = Path(folder)
    request = json.loads((place / "request.json").read_text())
    with (place / "stack.txt").open("w") as stack:
        faulthandler.dump_traceback_later(request["timeout_s"], exit=True, file=stack)
        try:
            answer = _answer(request, place)
        except MistakeError as error:
            answer = {"faults": [asdict(error.fault)]}
        except RecursionError:
            rule, fix = "no setting may hold itself", "Take it out of itself; what reads it can keep a reference."
            answer = {"faults": [asdict(Fault(where="", rule=rule, fix=fix))]}
        except BaseException as error:  # noqa: BLE001 (the parent says it: a fault of this program)
            answer = {"crash": "".join(traceback.format_exception(error))}
        faulthandler.cancel_dump_traceback_later()
    (place / "answer.json").write_text(json.dumps(answer))
    os._exit(0)  # threads and exit handlers of the script may wait for ever


def _answer(request: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return what is known of the script, or its faults, as JSON values; write the pickled configuration."""
    script = _Script(request, place)
    before = Surroundings(script.file)
    launch = script.find()
    before.check_left_alone(launch, script.ran, script.module)
    if faults := [asdict(fault) for fault in refusals(launch.config)]:
        return {"faults": faults}
    answer, content = answered(launch, ran=script.ran, before=before, file=script.file, module=script.module)
    (place / "config.pkl").write_bytes(content)
    return answer


class _Script:
    def __init__(self, request: Mapping[str, Any], place: Path) -> None:
        self.request, self.output = request, place / "output.txt"
        self.file = Path(request["file"])
        self.module = types.ModuleType("__main__")
        self.ran = Interception(self.file)

    def find(self) -> Launch:
        """Run the person's code and return what it would train, or raise `MistakeError`."""
        try:
            code = compile(self.file.read_bytes(), str(self.file), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = f"{self.file.name}{f', line {line}' if line else ''}"
            got = getattr(error, "msg", error)
            raise MistakeError(rule="must be Python", where=where, got=got, fix="Correct the line.") from error
        name = self.request["name"]
        if not name:
            names = self._run(code, "__main__")
            return self.ran.launch or self._at_module_level(names)
        # As a module first: what stands below `if __name__ == "__main__"` is then not run.
        names = self._run(code, self.file.stem)
        return self._named(names if name in names else self._run(code, "__main__"), name)

    def _run(self, code: types.CodeType, name: str) -> dict[str, Any]:
        """Run the file as module `name`; return its names, also where it ended at a training."""
        self.module = types.ModuleType(name)
        self.module.__file__ = str(self.file)
        sys.modules[name] = self.module
        sys.argv = [str(self.file), *self.request["args"]]
        if str(self.file.parent) not in sys.path:
            sys.path.insert(0, str(self.file.parent))
        self._guard(lambda: exec(code, vars(self.module)))
        return vars(self.module)

    def _guard(self, run: Callable[[], Any]) -> Any:
        """Run the person's code; what it raises becomes a fault that names the line."""
        result = None
        try:
            result = run()
        except Launched:
            pass
        except BaseException as problem:
            ended_well = isinstance(problem, SystemExit) and problem.code in (0, None)
            if self.ran.launch is None and self.ran.refusal is None and not ended_well:
                raise self._mistake(problem) from problem
        if self.ran.refusal is not None:
            raise self.ran.refusal
        return result

    def _at_module_level(self, names: Mapping[str, Any]) -> Launch:
        """Return the one configuration among the names of a script that trains nothing."""
        configs: dict[int, str] = {}
        for name, value in names.items():
            if isinstance(value, AlgorithmConfig):
                configs.setdefault(id(value), name)
        if not configs:
            near = [name for name, value in names.items() if inspect.isfunction(value) and "config" in name.lower()]
            fix = f"Name a function that returns it: {self.file.name}:{near[0]}." if near else NAME_A_FUNCTION
            raise MistakeError(rule=f"must hold a configuration ({_LOOKED_FOR})", got="none", fix=fix)
        first, *others = configs.values()
        if others:
            got, fix = ", ".join((first, *others)), f"Name one of them: {self.file.name}:{first}."
            raise MistakeError(rule="must name one of several configurations", got=got, fix=fix)
        return launch_of(names[first], f"module level, {first}")

    def _named(self, names: Mapping[str, Any], name: str) -> Launch:
        """Return the configuration that a name of the script stands for."""
        if name not in names:
            near = [other for other, value in names.items() if isinstance(value, AlgorithmConfig)]
            near = near or [other for other, value in names.items() if inspect.isfunction(value)]
            fix = f"Name one of: {', '.join(near[:8])}." if near else "Check the spelling."
            raise MistakeError(rule=f"has no '{name}'", fix=fix)
        value = names[name]
        if isinstance(value, AlgorithmConfig):
            return launch_of(value, f"module level, {name}")
        if callable(value):
            kwargs = self.request["kwargs"]
            try:
                inspect.signature(value).bind(**kwargs)
            except TypeError as error:
                rule, fix = f"the function '{name}' must take its arguments", "In a space: config_kwargs: {name: …}."
                raise MistakeError(rule=rule, got=error, fix=fix) from error
            self.ran.launch = None
            value = self._guard(lambda: names[name](**kwargs))
        if isinstance(value, AlgorithmConfig):
            return launch_of(value, f"function {name}")
        if self.ran.launch is not None:  # it trains
            return self.ran.launch
        rule = f"'{name}' must be an AlgorithmConfig, or a function that returns one"
        fix = "Name another object of the file, or return the configuration itself."
        raise MistakeError(rule=rule, got=type(value).__name__, fix=fix)

    def _mistake(self, problem: BaseException) -> MistakeError:
        """Return the fault of a script that ended before its training, with its own last line that was run."""
        rule, got, fix = "must come to its training", f"{type(problem).__name__}: {problem}", _RUN_IT
        if isinstance(problem, SystemExit):
            with contextlib.suppress(Exception):  # the script may have closed it
                sys.stdout.flush()
            written = last_line(self.output)
            got = f"the end of its process with {problem.code}, after it wrote: {written}"
            if problem.code == 2 and (complaint := written.partition(": error: ")[2]):  # as `argparse` ends a program
                rule, got = "must accept its arguments", complaint
                fix = 'Give them as the script takes them: --config-args "--num-agents 2" (config_args in a space).'
        elif isinstance(problem, UsesRay):
            rule = "must come to its training without a running Ray"
            got, fix = "a call such as `ray.get`, `ray.put` or `.remote()`", NAME_A_FUNCTION
        elif isinstance(problem, ModuleNotFoundError):
            rule, got = f"needs the module '{problem.name}', which is not installed", ""
            fix = f"Install it here and on every node, or correct the import of '{problem.name}'."
        frames = traceback.extract_tb(problem.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self.file)]
        where = f"{self.file.name}, line {lines[-1]}" if lines else self.file.name
        return MistakeError(rule=rule, where=where, got=got, fix=fix)
