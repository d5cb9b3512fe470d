"""Finds the `AlgorithmConfig` in a person's script, in a process of its own that runs this code. Imports RLlib.

`study.adopted.reading` starts the process with a folder that holds `request.json`. The answer goes there too:
`answer.json` with the facts, the choice or the fault, and `config.pkl` with the configuration.
"""

import contextlib
import faulthandler
import importlib
import inspect
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from study.adopted import describing
from study.adopted.answering import answered
from study.adopted.facts import MistakeError, Request
from study.adopted.from_tune import as_config
from study.adopted.interception import Interception, Launch, Launched, UsesRay
from study.adopted.surroundings import Surroundings

LOOKED_FOR = (
    "an AlgorithmConfig at module level, a function that returns one, run_rllib_example_script_experiment, "
    "tune.Tuner, tune.run, build_algo"
)
"""How people write scripts, in the order of the page about them."""


def main(folder: str) -> NoReturn:
    """Read the request in a folder, find the configuration, write the answer and end the process."""
    place = Path(folder)
    request = Request(**json.loads((place / "request.json").read_text()))
    (place / "ready").touch()  # the engines are imported: from here on the person's code counts
    with (place / "stack.txt").open("w") as stack:
        try:
            search = _Search(request, place)
            faulthandler.dump_traceback_later(request.timeout_s, exit=True, file=stack)
            found = search.find()
            (place / "found").touch()
            faulthandler.dump_traceback_later(request.timeout_s + 2 * request.play_s, exit=True, file=stack)
            answer = search.answer(found)
        except MistakeError as error:
            answer = {"fault": asdict(error.fault)}
        except BaseException as error:  # noqa: BLE001 (the parent says it: a fault of this program)
            answer = {"crash": "".join(traceback.format_exception(error))}
        faulthandler.cancel_dump_traceback_later()
    (place / "answer.json").write_text(json.dumps(answer))
    os._exit(0)  # threads and exit handlers of the script may wait for ever


class _Search:
    def __init__(self, request: Request, place: Path) -> None:
        self.request, self.place = request, place
        self.file = Path(request.target).resolve() if request.target.endswith(".py") else None
        self.module: types.ModuleType | None = None
        self.ran = Interception(self.file)
        self.before = Surroundings(self.file)

    def answer(self, found: Sequence[Launch]) -> dict[str, Any]:
        """Return the facts, or the choices, as JSON values; write the pickled configuration."""
        if len(found) > 1:
            return {"choices": _lines(found)}
        assert self.module is not None
        self.before.check_left_alone(found[0], self.ran, self.module)
        if faults := [asdict(fault) for fault in describing.refusals(found[0].config)]:
            return {"faults": faults}
        known, content = answered(
            found[0], request=self.request, ran=self.ran, surroundings=self.before, module=self.module
        )
        (self.place / "config.pkl").write_bytes(content)
        return known

    # --- running the person's code -----------------------------------------------------------------------------------

    def find(self) -> list[Launch]:
        """Run the person's code and return the configurations that it would train with.

        Raises:
            MistakeError: There is none, or the script ends before it trains.
        """
        name = self.request.name
        if self.file is None:
            self.module = self._guard(lambda: importlib.import_module(self.request.target))
            if self.module is None:
                rule, fix = "a module must be imported to its end", "Put what trains below `if __name__ == '__main__'`."
                raise MistakeError(rule=rule, got="one that trains or exits", fix=fix)
            return [self._named(vars(self.module), name)]
        content = self._code(self.file)
        if name and not name.isdecimal():
            # As a module first: what stands below `if __name__ == "__main__"` is then not run.
            names = self._run(content, self.file.stem)
            if name not in names:
                names = self._run(content, "__main__")
            return [self._named(names, name)]
        names = self._run(content, "__main__")
        found = (
            _distinct(self.ran.launches, self.ran.used)
            or list(self._at_module_level(names))
            or list(self._functions(names))
        )
        if not found:
            self._raise_none_found(names)
        if name:
            if not 1 <= int(name) <= len(found):
                rule, fix = f"must be a number from 1 to {len(found)}", "Leave it out to see which there are."
                raise MistakeError(rule=rule, got=name, fix=fix)
            return [found[int(name) - 1]]
        return found

    def _code(self, file: Path) -> Any:
        try:
            return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise MistakeError(
                rule="must be Python",
                where=f"{file.name}{f', line {line}' if line else ''}",
                got=getattr(error, "msg", error),
                fix="Correct the line.",
            ) from error

    def _run(self, code: Any, name: str) -> dict[str, Any]:
        """Run the file as module `name`; return its names, also where it ended at a training."""
        assert self.file is not None
        self.module = types.ModuleType(name)
        self.module.__file__ = str(self.file)
        sys.modules[name] = self.module
        sys.argv = [str(self.file), *self.request.args]
        if str(self.file.parent) not in sys.path:
            sys.path.insert(0, str(self.file.parent))
        self._guard(lambda: exec(code, vars(self.module)))
        return vars(self.module)

    def _guard(self, run: Callable[[], Any]) -> Any:
        """Run the person's code; what it raises becomes a fault that names the line."""
        before, result = len(self.ran.launches), None
        try:
            result = run()
        except Launched:
            pass
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # noqa: BLE001 (becomes a fault)
            if len(self.ran.launches) == before and self.ran.unreadable is None:  # else it came to its training
                self._blame(problem)
        if self.ran.unreadable is not None:
            raise self.ran.unreadable
        return result

    def _blame(self, problem: BaseException) -> None:
        """Raise the fault of a script that ended before its training; nothing where it ended as it should.

        Raises:
            MistakeError: Says why.
        """
        if isinstance(problem, SystemExit):
            if problem.code in (0, None):
                return
            written = self._last_line()
            how = f" with exit code {problem.code}" if isinstance(problem.code, int) else f": {problem.code}"
            if problem.code == 2 and (said := written.partition(": error: ")[2]):  # as `argparse` ends a program
                raise MistakeError(
                    rule="must accept its arguments",
                    where=self._place(problem),
                    got=said,
                    fix='Give them as the script takes them: --config-args "--num-agents 2" (config_args in a space).',
                ) from problem
            raise MistakeError(
                rule="must come to its training",
                where=self._place(problem),
                got=f"the end of its process{how}" + (f", after it wrote: {written}" if written else ""),
                fix="Run the script by itself until it trains; what it takes from its command line: --config-args.",
            ) from problem
        if isinstance(problem, UsesRay):
            raise MistakeError(
                rule="must come to its training without a running Ray",
                where=self._place(problem),
                got="a call such as `ray.get`, `ray.put` or `.remote()`",
                fix="Make that call in a callback, or write a function that returns the AlgorithmConfig and name it: "
                "--config FILE:FUNCTION.",
            ) from problem
        if isinstance(problem, ModuleNotFoundError):
            raise MistakeError(
                rule=f"needs the module '{problem.name}', which is not installed",
                where=self._place(problem),
                fix=f"Install it here and on every node, or correct the import of '{problem.name}'.",
            ) from problem
        fix = f"python {' '.join([Path(self.request.target).name, *self.request.args])}"
        fix = f"Run the script by itself until it trains: {fix}"
        if isinstance(problem, EOFError):
            fix = "Let it take what it asks for from its command line: --config-args."
        elif isinstance(problem, ImportError) and "relative import" in str(problem):
            fix = "Name it as its package does, in the folder of the package: --config PACKAGE.MODULE:FUNCTION."
        got = f"{type(problem).__name__}: {problem}"
        raise MistakeError(rule="must come to its training", where=self._place(problem), got=got, fix=fix) from problem

    def _last_line(self) -> str:
        """Return what the script wrote last; empty where it wrote nothing."""
        with contextlib.suppress(Exception):  # the script may have closed it, or put something else in its place
            sys.stdout.flush()
            sys.stderr.flush()
        written = (self.place / "output.txt").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(written) if line.strip()), "")

    def _place(self, error: BaseException) -> str:
        """Return the last line of the script itself that an exception went through."""
        name = str(self.file)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        shown = self.file.name if self.file else self.request.target
        return f"{shown}, line {lines[-1]}" if lines else shown

    # --- which configuration -----------------------------------------------------------------------------------------

    def _at_module_level(self, names: Mapping[str, Any]) -> Iterator[Launch]:
        seen: list[AlgorithmConfig] = []
        for name, value in names.items():
            if isinstance(value, AlgorithmConfig) and not any(value is each for each in seen):
                seen.append(value)
                yield _launch(value, f"module level, {name}")

    def _functions(self, names: Mapping[str, Any]) -> Iterator[Launch]:
        """Yield what the script's own functions return that need no argument and are about a configuration."""
        for name, value in list(names.items()):
            if not inspect.isfunction(value) or value.__module__ != names.get("__name__"):
                continue
            said = str(inspect.signature(value).return_annotation)
            if "Config" not in said and "config" not in name.lower():
                continue
            if _needs(value):
                continue
            result = self._guard(value)
            if isinstance(result, AlgorithmConfig):
                yield _launch(result, f"function {name}")

    def _named(self, names: Mapping[str, Any], name: str) -> Launch:
        if name not in names:
            near = [each for each, value in names.items() if isinstance(value, AlgorithmConfig)]
            functions = [each for each, value in names.items() if inspect.isfunction(value) and not _needs(value)]
            fix = f"Name one of: {', '.join((near or functions)[:8])}." if near or functions else "Check the spelling."
            raise MistakeError(rule=f"has no '{name}'", fix=fix)
        value = names[name]
        if isinstance(value, AlgorithmConfig):
            return _launch(value, f"module level, {name}")
        needed = _needs(value) if callable(value) else []
        if missing := [each for each in needed if each not in self.request.kwargs]:
            fix = f"Add them to the space: config_kwargs: {{{missing[0]}: …}}."
            rule = f"the function '{name}' must get all its arguments"
            raise MistakeError(rule=rule, got=f"none for {', '.join(missing)}", fix=fix)
        before = len(self.ran.launches)
        result = self._guard(lambda: value(**self.request.kwargs)) if callable(value) else value
        if not isinstance(result, AlgorithmConfig) and (
            launches := _distinct(self.ran.launches[before:], self.ran.used)
        ):
            if len(launches) > 1:
                rule, got = f"the function '{name}' must train with one configuration", "; ".join(_lines(launches))
                raise MistakeError(rule=rule, got=got, fix="Write a function that returns one of them, and name it.")
            return launches[0]
        if not isinstance(result, AlgorithmConfig):
            rule = f"'{name}' must be an AlgorithmConfig, or a function that returns one"
            fix = "Name another object of the file, or return the configuration itself."
            raise MistakeError(rule=rule, got=type(result).__name__, fix=fix)
        return _launch(result, f"function {name}")

    def _raise_none_found(self, names: Mapping[str, Any]) -> NoReturn:
        needing = [
            name
            for name, value in names.items()
            if inspect.isfunction(value) and value.__module__ == names.get("__name__") and "config" in name.lower()
        ]
        fix = "Write a function that returns your AlgorithmConfig, and name it: --config FILE:FUNCTION."
        if needing:
            fix = f"Name '{needing[0]}' in a space, with its arguments as config_kwargs."
        raise MistakeError(rule=f"must hold a configuration ({LOOKED_FOR})", got="none", fix=fix)


def _launch(config: AlgorithmConfig, how: str) -> Launch:
    copied, chosen = as_config(config)
    return Launch(config=copied, how=how, line=0, searched=chosen)


def _needs(function: Any) -> list[str]:
    """Return the arguments of a function that have no default."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


def _distinct(launches: Sequence[Launch], used: Launch | None) -> list[Launch]:
    """Return the launches at different lines; of several at one, as of a loop, the one that was used, or the first."""
    chosen: dict[int, Launch] = {}
    for number, launch in enumerate(launches):
        if (key := launch.line or -number) not in chosen or launch is used:
            chosen[key] = launch
    return list(chosen.values())


def _lines(launches: Sequence[Launch]) -> list[str]:
    """Return each of several choices with its number, for people."""
    lines = []
    for number, launch in enumerate(launches, 1):
        algorithm = getattr(launch.config.algo_class, "__name__", launch.config.algo_class)
        place = f"line {launch.line}, " if launch.line else ""
        environment = describing.environment_name(launch.config.env)
        lines.append(f"{number}: {algorithm} on {environment} ({place}{launch.how})")
    return lines
