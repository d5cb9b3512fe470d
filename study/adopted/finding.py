"""Runs a person's script up to where it would train, in a process of its own, and finds its `AlgorithmConfig`.

Nothing of Ray starts: `ray.init` is skipped, and the first call of `tune.Tuner`, of `tune.run` or of an algorithm's
constructor ends the script, by an exception that `except Exception` does not catch.
"""

import contextlib
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray import cloudpickle, tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.registry import get_trainable_cls
from ray.tune.search.variant_generator import generate_variants, parse_spec_vars

from study.adopted.describing import Launch, Surroundings, check_studied, facts_of, mistake, of_environment
from study.adopted.loading import Adopted
from study.errors import SpaceError
from study.jax_private import jax_obstacle
from study.machine.apart import last_line
from study.machine.host import count_gpus
from study.ray_private import refuse_auto_init
from study.space.parameters import SCALE
from study.space.parsing import Source, parse_space
from study.space.settings import runnable
from study.trial.configuration import apply
from study.trial.engine.envs.probing import speeds
from study.trial.experiment import make_environment, pickled

_NAME_A_FUNCTION = "Write a function that returns the AlgorithmConfig, and name it: --config FILE:FUNCTION."
_RUN_IT = "Run the script by itself until it trains; what it takes from its command line: --config-args."
_TRIED = {"parameters": {SCALE: 1}, "budget": {"iterations": 1}, "search": {"num_trials": 1}}
"""A space in which every script is tried."""
_LOOKED_FOR = "an AlgorithmConfig at module level, tune.Tuner, tune.run, build_algo"


class Launched(BaseException):
    """The script would train now: nothing after this line is needed."""


def adopted_of(file: Path, name: str, args: Sequence[str]) -> Adopted:
    """Run a script in this process, which serves for nothing else then; return what is known of its configuration.

    Raises:
        SpaceError: It has none, or one that cannot be studied or pickled; its environment fails; or RLlib refuses it as
            a trial sets it.
    """
    before, script = Surroundings(file), Script(file)
    launch = script.run(args, name)
    check_studied(config := launch.config)
    environments = before.environments_of(config)
    if name:  # what runs as `__main__` is pickled by value anyway: a trial's process can import neither
        cloudpickle.register_pickle_by_value(script.module)
    try:
        content = pickled(config, environments)
    except Exception as error:
        rule = "everything in the configuration must be picklable, as Ray sends it to its processes"
        fix = "Make it inside the function that uses it, or define it at module level."
        raise mistake(rule, error, fix) from error
    os.environ.update(script.variables)  # from here on this process is as one of Ray's
    facts = facts_of(launch, source=file, modules=before.digests(), **of_environment(config, environments))
    space = {"config": file.name, "script": facts.model_dump(mode="json"), **_TRIED}
    spec = parse_space(Source(name="script", content=space))
    apply(config, spec, setting=runnable(spec, {SCALE: 1}), seed=0, execution="real")
    fast = None if config.is_multi_agent else speeds(lambda: make_environment(config, environments))
    obstacle = jax_obstacle() or ""  # the environment has been made
    return Adopted(pickled=content, facts=facts, jax_obstacle=obstacle, speeds=fast, **before.added(script.variables))


def launch_of(content: Any, how: str, *, trainable: Any = None, stop: Any = None) -> Launch:
    """Return the training that a call of Tune, or of an algorithm's constructor, would begin.

    `content` is an `AlgorithmConfig`, or a dictionary of its settings; `trainable` the algorithm, a class or RLlib's
    name of one, or None: the configuration's own. Whatever RLlib raises where no configuration can be made of it passes
    through.
    """
    algorithm: Any = get_trainable_cls(trainable) if isinstance(trainable, str) else trainable
    config = content.copy(copy_frozen=False) if isinstance(content, AlgorithmConfig) else None
    settings = dict(content or {}) if config is None else vars(config)
    _, domains, grids = parse_spec_vars(settings)
    chosen = {path[0]: settings[path[0]] for path, _ in (*domains, *grids)}
    if chosen:  # one value in the place of each choice of Tune, the same at every reading
        settings.update(next(generate_variants(chosen, random_state=0))[1])
    if config is None:
        config = algorithm.get_default_config().update_from_dict(settings)
    elif algorithm is not None:
        default = algorithm.get_default_config()
        if not isinstance(config, type(default)):  # as the constructor of RLlib's `Algorithm` does
            config = default.update_from_dict(config.to_dict())
        config.algo_class = algorithm
    searched = tuple(sorted(name.strip("_") for name in chosen))
    return Launch(config=config, how=how, stop=dict(stop) if isinstance(stop, Mapping) else {}, searched=searched)


class Script:
    """Runs a script, with Ray replaced for the rest of this process.

    Attributes:
        module: The script's own.
        variables: Environment variables that it would give to Ray's processes.
    """

    def __init__(self, file: Path) -> None:
        self.module: types.ModuleType
        self.variables: dict[str, str] = {}
        self._file = file
        self._ended: Launch | SpaceError | None = None
        """The training with which the script ended, or why it cannot be studied."""
        self._replace_ray()

    def run(self, args: Sequence[str], name: str) -> Launch:
        """Run the file, as a module where one of its names is wanted; return what it trains, or what is named."""
        self.module = types.ModuleType(self._file.stem if name else "__main__")
        self.module.__file__ = str(self._file)
        sys.modules[self.module.__name__] = self.module
        sys.argv = [str(self._file), *args]
        sys.path[:0] = [path for path in [str(self._file.parent)] if path not in sys.path]
        names = vars(self.module)
        self._guarded(lambda: exec(compile(self._file.read_bytes(), str(self._file), "exec", dont_inherit=True), names))
        value, how = names.get(name), f"module level, {name}"
        if name and callable(value) and not isinstance(value, AlgorithmConfig):
            self._ended, how = None, f"function {name}"
            value = self._guarded(names[name])
        if isinstance(value, AlgorithmConfig):
            return launch_of(value, how)
        if isinstance(self._ended, Launch):
            return self._ended
        if name:
            rule, got = f"'{name}' must be an AlgorithmConfig, or a function that returns one", type(value).__name__
            raise mistake(rule, got if name in names else "no such name", "Name another object.")
        configs = {id(value): name for name, value in names.items() if isinstance(value, AlgorithmConfig)}
        if not configs:
            raise mistake(f"must hold a configuration ({_LOOKED_FOR})", "none", _NAME_A_FUNCTION)
        first, *others = configs.values()
        if others:
            got, fix = ", ".join((first, *others)), f"Name one of them: {self._file.name}:{first}."
            raise mistake("must name one of several configurations", got, fix)
        return launch_of(names[first], f"module level, {first}")

    def _guarded(self, run: Callable[[], Any]) -> Any:
        """Run the person's code; what it raises becomes a fault that names the line."""
        result = None
        try:
            result = run()
        except BaseException as problem:
            ended_well = isinstance(problem, SystemExit) and problem.code in (0, None)
            if self._ended is None and not ended_well:
                raise self._fault(problem) from problem
        if isinstance(self._ended, SpaceError):
            raise self._ended
        return result

    def _fault(self, problem: BaseException) -> SpaceError:
        """Return the fault of a script that ended before its training, with its own last line that was run."""
        got = f"{type(problem).__name__}: {problem}"
        if isinstance(problem, SystemExit):
            with contextlib.suppress(Exception):  # the script may have closed it
                sys.stdout.flush()
            got = f"the end of its process with {problem.code}, after it wrote: {last_line()}"
        frames = traceback.extract_tb(problem.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self._file)]
        if isinstance(problem, SyntaxError) and problem.filename == str(self._file):
            lines.append(problem.lineno)
        return mistake("must come to its training", got, _RUN_IT, where=self._line(lines[-1:]))

    def _line(self, lines: list[int | None]) -> str:
        return f"{self._file.name}, line {lines[0]}" if lines else self._file.name

    # --- what the script meets in place of Ray -----------------------------------------------------------------

    def _train(self, content: Any, how: str, *, trainable: Any, stop: Any = None, env: Any = None) -> NoReturn:
        """Note the training that would begin, and end the script."""
        if self._ended is None:  # it may have caught the end of the first one
            try:
                launch = launch_of(content, how, trainable=trainable, stop=stop)
                if env is not None:
                    launch.config.environment(env)
                self._ended = launch
            except Exception as error:  # noqa: BLE001 (what a person has written, in RLlib's own checks)
                named = getattr(trainable, "__name__", trainable)
                rule = "what Tune trains must be an algorithm of RLlib with settings that it takes"
                self._refuse(rule, f"'{named}' ({type(error).__name__}: {error})", _NAME_A_FUNCTION)
        raise Launched

    def _refuse(self, rule: str, got: str, fix: str) -> NoReturn:
        """End the script, which trains in a way that a study cannot repeat; name its line."""
        lines = [frame.lineno for frame in inspect.stack(context=0) if frame.filename == str(self._file)]
        self._ended = mistake(rule, got, fix, where=self._line([*lines[:1]]))
        raise Launched

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

        def uses_ray() -> NoReturn:
            got = "a call such as `ray.get`, `ray.put` or `.remote()`"
            self._refuse("must come to its training without a running Ray", got, _NAME_A_FUNCTION)

        def restores(*_: Any, **__: Any) -> NoReturn:
            fix = "Leave it out, or load weights where each trial does: by `load_state_path` of an RLModuleSpec."
            self._refuse("must hold its configuration and begin with new networks", "one that restores others", fix)

        def construct(algorithm: Algorithm, config: Any = None, env: Any = None, *_: Any, **__: Any) -> NoReturn:
            self._train(config, "build_algo", trainable=type(algorithm), env=env)

        def tuner(_: Any, trainable: Any = None, *, param_space: Any = None, run_config: Any = None, **__: Any) -> None:
            self._train(param_space, "tune.Tuner", stop=getattr(run_config, "stop", None), trainable=trainable)

        def run(run_or_experiment: Any, *_: Any, **given: Any) -> NoReturn:
            if given.get("restore"):
                restores()
            self._train(given.get("config"), "tune.run", stop=given.get("stop"), trainable=run_or_experiment)

        ray.init, ray.shutdown, ray.is_initialized = init, lambda *_, **__: None, lambda: began
        ray.cluster_resources = ray.available_resources = resources
        refuse_auto_init(uses_ray)
        Algorithm.__init__, Algorithm.from_checkpoint = construct, restores
        tune.Tuner.__init__, tune.Tuner.restore = tuner, restores
        tune.run, tune.with_resources = run, lambda trainable, resources: trainable  # a study sets the resources
        setattr(sys.modules["ray.tune.tune"], "run", run)  # noqa: B010 (a module, whose attributes mypy does not know)
