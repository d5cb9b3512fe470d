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
from study.adopted.choices import as_config
from study.adopted.describing import environment_name, refusals
from study.adopted.interception import Interception, Launch, Launched, UsesRay
from study.adopted.reading import MistakeError
from study.errors import Fault

LOOKED_FOR = "an AlgorithmConfig at module level, run_rllib_example_script_experiment, tune.Tuner, tune.run, build_algo"
"""How people write scripts, in the order of the page about them."""
_NAME_A_FUNCTION = "Write a function that returns the AlgorithmConfig, and name it: --config FILE:FUNCTION."
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
    known, content = answered(launch, ran=script.ran, before=before, file=script.file, module=script.module)
    (place / "config.pkl").write_bytes(content)
    return known


class _Script:
    def __init__(self, request: Mapping[str, Any], place: Path) -> None:
        self.request, self.place = request, place
        self.file = Path(request["file"])
        self.module = types.ModuleType("__main__")
        self.ran = Interception(self.file)

    def find(self) -> Launch:
        """Run the person's code and return the configuration that it would train with, or raise `MistakeError`."""
        try:
            content = compile(self.file.read_bytes(), str(self.file), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = f"{self.file.name}{f', line {line}' if line else ''}"
            got = getattr(error, "msg", error)
            raise MistakeError(rule="must be Python", where=where, got=got, fix="Correct the line.") from error
        name = self.request["name"]
        if name:
            # As a module first: what stands below `if __name__ == "__main__"` is then not run.
            names = self._run(content, self.file.stem)
            if name not in names:
                names = self._run(content, "__main__")
            return self._named(names, name)
        names = self._run(content, "__main__")
        return self.ran.launch or self._at_module_level(names)

    def _run(self, code: Any, name: str) -> dict[str, Any]:
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
        except BaseException as problem:  # noqa: BLE001 (becomes a fault)
            if self.ran.launch is None and self.ran.refusal is None:  # else it came to its training
                self._blame(problem)
        if self.ran.refusal is not None:
            raise self.ran.refusal
        return result

    # --- which configuration -----------------------------------------------------------------------------------------

    def _at_module_level(self, names: Mapping[str, Any]) -> Launch:
        """Return the one configuration among the names of a script that trains nothing."""
        found: dict[int, str] = {}
        for name, value in names.items():
            if isinstance(value, AlgorithmConfig):
                found.setdefault(id(value), name)
        if not found:
            near = [name for name, value in names.items() if inspect.isfunction(value) and "config" in name.lower()]
            fix = f"Name a function that returns it: {self.file.name}:{near[0]}." if near else _NAME_A_FUNCTION
            raise MistakeError(rule=f"must hold a configuration ({LOOKED_FOR})", got="none", fix=fix)
        first, *others = found.values()
        if others:
            got = ", ".join(f"{name} ({_in_words(names[name])})" for name in (first, *others))
            fix = f"Name one of them: {self.file.name}:{first}."
            raise MistakeError(rule="must name one of several configurations", got=got, fix=fix)
        return _launch(names[first], f"module level, {first}")

    def _named(self, names: Mapping[str, Any], name: str) -> Launch:
        """Return the configuration that a name of the script stands for."""
        if name not in names:
            near = [each for each, value in names.items() if isinstance(value, AlgorithmConfig)]
            near = near or [each for each, value in names.items() if inspect.isfunction(value)]
            fix = f"Name one of: {', '.join(near[:8])}." if near else "Check the spelling."
            raise MistakeError(rule=f"has no '{name}'", fix=fix)
        value = names[name]
        if isinstance(value, AlgorithmConfig):
            return _launch(value, f"module level, {name}")
        needed = _needs(value) if callable(value) else []
        if missing := [each for each in needed if each not in self.request["kwargs"]]:
            fix = f"Add them to the space: config_kwargs: {{{missing[0]}: …}}."
            rule = f"the function '{name}' must get all its arguments"
            raise MistakeError(rule=rule, got=f"none for {', '.join(missing)}", fix=fix)
        self.ran.launch = None
        result = self._guard(lambda: value(**self.request["kwargs"])) if callable(value) else value
        if isinstance(result, AlgorithmConfig):
            return _launch(result, f"function {name}")
        if self.ran.launch is not None:  # it trains
            return self.ran.launch
        rule = f"'{name}' must be an AlgorithmConfig, or a function that returns one"
        fix = "Name another object of the file, or return the configuration itself."
        raise MistakeError(rule=rule, got=type(result).__name__, fix=fix)

    # --- what is wrong -----------------------------------------------------------------------------------------------

    def _blame(self, problem: BaseException) -> None:
        """Raise the fault of a script that ended before its training; nothing where it ended as it should."""
        rule, got, fix = "must come to its training", f"{type(problem).__name__}: {problem}", _RUN_IT
        if isinstance(problem, SystemExit):
            if problem.code in (0, None):
                return
            written = self._last_line()
            how = f" with exit code {problem.code}" if isinstance(problem.code, int) else f": {problem.code}"
            got = f"the end of its process{how}" + (f", after it wrote: {written}" if written else "")
            if problem.code == 2 and (said := written.partition(": error: ")[2]):  # as `argparse` ends a program
                rule, got = "must accept its arguments", said
                fix = 'Give them as the script takes them: --config-args "--num-agents 2" (config_args in a space).'
        elif isinstance(problem, UsesRay):
            rule = "must come to its training without a running Ray"
            got, fix = "a call such as `ray.get`, `ray.put` or `.remote()`", _NAME_A_FUNCTION
        elif isinstance(problem, ModuleNotFoundError):
            rule, got = f"needs the module '{problem.name}', which is not installed", ""
            fix = f"Install it here and on every node, or correct the import of '{problem.name}'."
        raise MistakeError(rule=rule, where=self._place(problem), got=got, fix=fix) from problem

    def _last_line(self) -> str:
        """Return what the script wrote last; empty where it wrote nothing."""
        with contextlib.suppress(Exception):  # the script may have closed it, or put something else in its place
            sys.stdout.flush()
            sys.stderr.flush()
        written = (self.place / "output.txt").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(written) if line.strip()), "")

    def _place(self, error: BaseException) -> str:
        """Return the last line of the script itself that an exception went through."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self.file)]
        return f"{self.file.name}, line {lines[-1]}" if lines else self.file.name


def _launch(config: AlgorithmConfig, how: str) -> Launch:
    copied, chosen = as_config(config)
    return Launch(config=copied, how=how, searched=chosen)


def _needs(function: Any) -> list[str]:
    """Return the arguments of a function that have no default."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


def _in_words(config: AlgorithmConfig) -> str:
    algorithm = getattr(config.algo_class, "__name__", config.algo_class)
    return f"{algorithm} on {environment_name(config.env)}"
