"""Runs a person's script up to where it would train, in a process of its own, and finds its `AlgorithmConfig`.

`study.adopted.loading` starts the process with a folder that holds `request.json`; `answer.pkl` goes there too: what is
known, the faults, or the traceback of a fault of this program. Nothing of Ray starts: `ray.init` is skipped;
`tune.Tuner`, `tune.run` and the constructor of an algorithm are noted, and the first use of what they would return ends
the script, by an exception that `except Exception` does not catch.
"""

import contextlib
import inspect
import json
import os
import pickle
import signal
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.registry import get_trainable_cls
from ray.tune.search.variant_generator import generate_variants, parse_spec_vars

from study.adopted.describing import Launch, Surroundings, adopted_from, mistake
from study.adopted.loading import last_line
from study.errors import SpaceError
from study.harmless import one_line
from study.machine.host import count_gpus
from study.ray_private import refuse_auto_init

_NAME_A_FUNCTION = "Write a function that returns the AlgorithmConfig, and name it: --config FILE:FUNCTION."
_RUN_IT = "Run the script by itself until it trains; what it takes from its command line: --config-args."
_LOOKED_FOR = "an AlgorithmConfig at module level, tune.Tuner, tune.run, build_algo"
_RESTORES = ("restore", "restore_from_path", "load_checkpoint", "set_state", "set_weights")
"""Methods of an algorithm by which a training begins with what another has learnt."""
_LONGEST = 300
"""Characters of what was found that a message shows."""
_AGAIN_S = 5.0
"""A script that catches everything is told again, after so many seconds, that its time is over."""


class Launched(BaseException):
    """The script would train now: nothing after this line is needed."""


class UsesRay(BaseException):
    """The script would use a running Ray beside the training."""


class Late(BaseException):
    """The script has not come to its training in time."""


def main(folder: str) -> NoReturn:
    """Read the request in a folder, find the configuration, write the answer and end the process."""
    place = Path(folder)
    request = json.loads((place / "request.json").read_text())
    answer: Any
    try:
        _limit_time(request["timeout_s"])
        file, name = Path(request["file"]), request["name"]
        before, script = Surroundings(file), Script(file, place)
        names = script.run(request["args"], name)
        launch = script.named(names, name) if name else script.launch or script.only_one(names)
        answer = adopted_from(launch, module=script.module, file=file, before=before, variables=script.variables)
    except SpaceError as error:
        answer = [replace(fault, got=one_line(fault.got, _LONGEST)) for fault in error.faults]
    except Late as error:
        answer = mistake("must make its environment in time", error, "Make it quicker.").faults
    except BaseException as error:  # noqa: BLE001 (the parent says it: a fault of this program)
        answer = "".join(traceback.format_exception(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
    (place / "answer.pkl").write_bytes(pickle.dumps(answer))
    os._exit(0)  # threads and exit handlers of the script may wait for ever


def _limit_time(timeout_s: float) -> None:
    """Interrupt this process, wherever it is in Python, once the time is over."""

    def interrupt(*_: Any) -> NoReturn:
        raise Late(f"it was not there within {timeout_s:g} s")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, timeout_s, _AGAIN_S)


def launch_of(content: Any, how: str, *, trainable: Any = None, stop: Any = None) -> Launch:
    """Return the training that a call of Tune, or of an algorithm's constructor, would begin.

    `content` is an `AlgorithmConfig`, or a dictionary of its settings; `trainable` the algorithm, a class or RLlib's
    name of one, or None: the configuration's own. Of `stop` only a mapping is kept. Whatever RLlib raises where no
    configuration can be made of it passes through.
    """
    algorithm: Any = get_trainable_cls(trainable) if isinstance(trainable, str) else trainable
    if isinstance(content, AlgorithmConfig):
        config = content.copy(copy_frozen=False)
        searched = _choose(vars(config))
        if algorithm is not None:
            default = algorithm.get_default_config()
            if not isinstance(config, type(default)):  # as the constructor of RLlib's `Algorithm` does
                config = default.update_from_dict(config.to_dict())
            config.algo_class = algorithm
    else:
        settings = dict(content or {})
        searched = _choose(settings)
        config = algorithm.get_default_config().update_from_dict(settings)
    return Launch(config=config, how=how, stop=dict(stop) if isinstance(stop, Mapping) else {}, searched=searched)


def _choose(settings: dict[str, Any]) -> tuple[str, ...]:
    """Put one value in the place of each choice of Tune, the same at every reading; return the settings' names."""
    _, domains, grids = parse_spec_vars(settings)
    chosen = {path[0]: settings[path[0]] for path, _ in (*domains, *grids)}
    if chosen:
        settings.update(next(generate_variants(chosen, random_state=0))[1])
    return tuple(sorted(name.strip("_") for name in chosen))


class Script:
    """Runs a script, with Ray replaced for the rest of this process.

    Attributes:
        launch: The training with which the script ended; else the first one that it made ready; None without any.
        module: The script's own.
        variables: Environment variables that it would give to Ray's processes.
    """

    def __init__(self, file: Path, place: Path) -> None:
        self.launch: Launch | None = None
        self.module = types.ModuleType("__main__")
        self.variables: dict[str, str] = {}
        self._file, self._place = file, place
        self._refusal: SpaceError | None = None
        """Why the script cannot be studied, once that is known."""
        self._replace_ray()
        self._replace_tune()
        self._replace_algorithms()

    def run(self, args: list[str], name: str) -> dict[str, Any]:
        """Run the file, where one of its names is wanted as a module; return its names, also where it would train."""
        self.module = types.ModuleType(self._file.stem if name else "__main__")
        self.module.__file__ = str(self._file)
        sys.modules[self.module.__name__] = self.module
        sys.argv = [str(self._file), *args]
        sys.path[:0] = [path for path in [str(self._file.parent)] if path not in sys.path]
        names = vars(self.module)
        self._guarded(lambda: exec(compile(self._file.read_bytes(), str(self._file), "exec", dont_inherit=True), names))
        return names

    def only_one(self, names: Mapping[str, Any]) -> Launch:
        """Return the one configuration among the names of a script that trains nothing."""
        configs = {id(value): name for name, value in names.items() if isinstance(value, AlgorithmConfig)}
        if not configs:
            raise mistake(f"must hold a configuration ({_LOOKED_FOR})", "none", _NAME_A_FUNCTION)
        first, *others = configs.values()
        if others:
            got, fix = ", ".join((first, *others)), f"Name one of them: {self._file.name}:{first}."
            raise mistake("must name one of several configurations", got, fix)
        return launch_of(names[first], f"module level, {first}")

    def named(self, names: Mapping[str, Any], name: str) -> Launch:
        """Return the configuration that a name of the script stands for."""
        value, how = names.get(name), f"module level, {name}"
        if callable(value) and not isinstance(value, AlgorithmConfig):
            self.launch, how = None, f"function {name}"
            value = self._guarded(names[name])
        if isinstance(value, AlgorithmConfig):
            return launch_of(value, how)
        if self.launch is None:  # it does not train either
            rule, got = f"'{name}' must be an AlgorithmConfig, or a function that returns one", type(value).__name__
            raise mistake(rule, got if name in names else "no such name", "Name another object.")
        return self.launch

    def _guarded(self, run: Callable[[], Any]) -> Any:
        """Run the person's code; what it raises becomes a fault that names the line."""
        result = None
        try:
            result = run()
        except Launched:
            pass
        except BaseException as problem:
            ended_well = isinstance(problem, SystemExit) and problem.code in (0, None)
            if self.launch is None and self._refusal is None and not ended_well:
                raise self._fault(problem) from problem
        if self._refusal is not None:
            raise self._refusal
        return result

    def _fault(self, problem: BaseException) -> SpaceError:
        """Return the fault of a script that ended before its training, with its own last line that was run."""
        rule, got, fix = "must come to its training", f"{type(problem).__name__}: {problem}", _RUN_IT
        if isinstance(problem, SystemExit):
            with contextlib.suppress(Exception):  # the script may have closed it
                sys.stdout.flush()
            got = f"the end of its process with {problem.code}, after it wrote: {last_line(self._place)}"
        elif isinstance(problem, UsesRay):
            rule = "must come to its training without a running Ray"
            got, fix = "a call such as `ray.get`, `ray.put` or `.remote()`", _NAME_A_FUNCTION
        frames = traceback.extract_tb(problem.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self._file)]
        if isinstance(problem, SyntaxError) and problem.filename == str(self._file):
            lines.append(problem.lineno)
        return mistake(rule, got, fix, where=self._line(lines[-1:]))

    def _line(self, lines: list[int | None]) -> str:
        return f"{self._file.name}, line {lines[0]}" if lines else self._file.name

    # --- what the script meets in place of Ray -----------------------------------------------------------------

    def _note(self, content: Any, how: str, *, trainable: Any, stop: Any = None) -> Launch:
        """Note a training that is ready to begin; end the script where a study cannot repeat it."""
        try:
            launch = launch_of(content, how, trainable=trainable, stop=stop)
        except Exception as error:  # noqa: BLE001 (what a person has written, in RLlib's own checks)
            named = getattr(trainable, "__name__", trainable)
            rule = "what Tune trains must be an algorithm of RLlib with settings that it takes"
            self._refuse(rule, f"'{named}' ({type(error).__name__}: {error})", _NAME_A_FUNCTION)
        self.launch = self.launch or launch
        return launch

    def _train(self, launch: Launch) -> NoReturn:
        self.launch = launch
        raise Launched

    def _refuse(self, rule: str, got: str, fix: str) -> NoReturn:
        """End the script, which trains in a way that a study cannot repeat; name its line."""
        lines = [frame.lineno for frame in inspect.stack(context=0) if frame.filename == str(self._file)]
        self._refusal = mistake(rule, got, fix, where=self._line([*lines[:1]]))
        raise Launched

    def _refuse_restore(self, call: str) -> NoReturn:
        fix = "Leave it out, or load weights where each trial does: by `load_state_path` of an RLModuleSpec."
        self._refuse("must hold its configuration and begin with new networks", f"`{call}`", fix)

    def _replace_ray(self) -> None:
        began = False

        def init(*_: Any, **settings: Any) -> contextlib.AbstractContextManager[None]:
            nonlocal began
            began = True
            given = (settings.get("runtime_env") or {}).get("env_vars") or {}
            self.variables |= {name: str(value) for name, value in given.items()}
            return contextlib.nullcontext()

        def resources() -> dict[str, float]:
            return {"CPU": float(os.cpu_count() or 1), "GPU": float(count_gpus())}

        def refuse() -> NoReturn:
            raise UsesRay

        ray.init, ray.shutdown, ray.is_initialized = init, lambda *_, **__: None, lambda: began
        ray.cluster_resources = ray.available_resources = resources
        refuse_auto_init(refuse)

    def _replace_tune(self) -> None:
        def construct(
            tuner: tune.Tuner, trainable: Any = None, *, param_space: Any = None, run_config: Any = None, **_: Any
        ) -> None:
            stop = getattr(run_config, "stop", None)
            tuner.__dict__["launch"] = self._note(param_space, "tune.Tuner", stop=stop, trainable=trainable)

        def run(run_or_experiment: Any, *_: Any, **settings: Any) -> NoReturn:
            if settings.get("restore"):
                self._refuse_restore("tune.run(restore=…)")
            given, stop = settings.get("config"), settings.get("stop")
            self._train(self._note(given, "tune.run", stop=stop, trainable=run_or_experiment))

        tune.Tuner.__init__, tune.Tuner.fit = construct, lambda tuner: self._train(vars(tuner)["launch"])
        tune.Tuner.restore = lambda *_, **__: self._refuse_restore("tune.Tuner.restore")
        tune.run, tune.with_resources = run, lambda trainable, resources: trainable  # a study sets the resources
        setattr(sys.modules["ray.tune.tune"], "run", run)  # noqa: B010 (a module, whose attributes mypy does not know)

    def _replace_algorithms(self) -> None:
        """Let `build_algo`, `build` and constructors build nothing; the first use of an algorithm is the training."""

        def construct(algorithm: Algorithm, config: Any = None, env: Any = None, *_: Any, **__: Any) -> None:
            launch = self._note(config, "build_algo", trainable=type(algorithm))
            if env is not None:
                launch.config.environment(env)
            object.__setattr__(algorithm, "launch_of_the_script", launch)

        def use(algorithm: Algorithm, name: str) -> Any:
            launch = object.__getattribute__(algorithm, "__dict__").get("launch_of_the_script")
            if launch is None or name.startswith("__"):
                return object.__getattribute__(algorithm, name)
            return self._refuse_restore(name) if name in _RESTORES else self._train(launch)

        Algorithm.__init__, Algorithm.__getattribute__ = construct, use
        Algorithm.from_checkpoint = lambda *_, **__: self._refuse_restore("Algorithm.from_checkpoint")
