"""Finds the `AlgorithmConfig` in a person's script, in a process of its own that runs this code. Imports RLlib.

`study.adopted.reading` starts the process with a folder that holds `request.json`. The answer goes there too:
`answer.json` with the facts, the choice or the fault, and `config.pkl` with the configuration.
"""

import argparse
import contextlib
import faulthandler
import hashlib
import importlib
import inspect
import io
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from gymnasium.envs.registration import registry as gymnasium_registry
from gymnasium.vector import VectorEnv
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from study.adopted import describing
from study.adopted.interception import Interception, Launch, Launched, UnreadableError, UsesRay, as_config, sampling
from study.cluster.shipping import loaded_modules
from study.errors import Fault
from study.seams.jax import jax_obstacle
from study.trial.adopted import pickled
from study.trial.script_environment import make_environment, play_randomly

_OF_THE_STUDY = ("RAY_", "TUNE_", "PYTHONPATH")
"""How environment variables begin that the study sets by itself."""
_OF_A_LEARNER = ("train_batch_size_per_learner", "minibatch_size")
"""Sizes that RLlib takes for one learner."""
LOOKED_FOR = (
    "an AlgorithmConfig at module level, a function that returns one, run_rllib_example_script_experiment, "
    "tune.Tuner, tune.run, build_algo"
)
"""How people write scripts, in the order of the page about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the process shall do.

    Attributes:
        target: A file, or the name of a module.
        text: File whose text is run in place of that of the file `target`; empty: its own.
        name: Object of it, or the number of a choice from 1; empty to look for one.
        args: Arguments of the script.
        kwargs: Arguments of the function `name`.
        timeout_s: Seconds that the script may take.
        episodes: Episodes of a random policy to play.
        seed: Seed of the first of them.
        play_s: Seconds after which no further episode begins.
        max_episode_steps: A longer episode is cut.
    """

    target: str
    text: str = ""
    name: str = ""
    args: tuple[str, ...] = ()
    kwargs: Mapping[str, Any]
    timeout_s: float
    episodes: int = 0
    seed: int = 0
    play_s: float = 60.0
    max_episode_steps: int = 10_000


class MistakeError(Exception):
    """Ends the search with a fault for the person.

    Attributes:
        fault: Its parts.
    """

    def __init__(self, *, rule: str, where: str = "", got: object = "", fix: str, code: str) -> None:
        super().__init__(rule)
        self.fault = Fault(where=where, rule=rule, got=_one_line(got), fix=fix, code=code)


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
        self._known_ids, self._before = set(gymnasium_registry), dict(os.environ)
        self._began_in = str(Path.cwd())
        self._folder = str(self.file.parent if self.file else self._began_in)
        self._known_paths = {*sys.path, *_entries(self._before)} - {self._folder}

    def answer(self, found: Sequence[Launch]) -> dict[str, Any]:
        """Return the facts, or the choices, as JSON values; write the pickled configuration."""
        if len(found) > 1:
            return {"choices": _lines(found)}
        launch = found[0]
        for folder in filter(None, [launch.folder, self.ran.folder]):
            if folder != self._began_in:
                rule = "must train in the folder in which the command is typed: trials and evaluations run there"
                fix = f"Type the command in {folder}."
                raise MistakeError(rule=rule, got=folder, fix=fix, code="script-changes-folder")
        if (replaced := self._replaced_in_rllib()) is not None:
            rule = "must leave RLlib's own classes as they are: the processes of a trial import them anew"
            fix = "Derive a class of your own, and give it to the configuration."
            raise MistakeError(rule=rule, got=f"{replaced} of the script's own", fix=fix, code="rllib-replaced")
        source = self.file or Path(str(inspect.getsourcefile(self.module or sys)))
        if faults := [asdict(fault) for fault in describing.refusals(launch.config)]:
            return {"faults": faults}
        if not launch.searched and (why := _invalid(launch.config)):
            rule, fix = "RLlib must accept the configuration", "Run the script by itself until it trains."
            raise MistakeError(rule=rule, got=why, fix=fix, code="configuration-invalid")
        environments = self._environments(launch.config)
        content = self._pickled(launch.config, environments)
        (self.place / "config.pkl").write_bytes(content)
        os.environ.update(self.ran.variables)  # from here on this process is as one of Ray's
        environment, several = self._environment(launch.config, environments)
        of_one = "single_" if isinstance(environment, VectorEnv) else ""
        names = (f"{of_one}observation_space", f"{of_one}action_space")
        spaces = (None, None) if several else tuple(getattr(environment, name) for name in names)
        answer: dict[str, Any] = {}
        if self.request.episodes:
            answer["returns"] = self._played(launch.config, environments, environment)
        surroundings = self._surroundings()
        facts = describing.facts_of(
            launch.config,
            source=source,
            found_as=launch.how,
            stop=launch.stop,
            searched=launch.searched,
            modules={each["name"]: _digest(each["name"]) for each in surroundings["modules"]},
            spaces=spaces,
            acting=environment.unwrapped.possible_agents or () if several else (),
        )
        return (
            answer
            | surroundings
            | {
                "facts": facts.model_dump(mode="json"),
                "searched": {
                    describing.OF_TUNE.get(name, name): searched(
                        domain, facts.num_learners if name in _OF_A_LEARNER else 1
                    )
                    for name, domain in launch.searched.items()
                },
                "starts_ray": self.ran.starts_ray,
                "jax_obstacle": jax_obstacle() or "",  # the environment has been made
            }
        )

    def _surroundings(self) -> dict[str, Any]:
        """Return what the script's process has beside the configuration: folders, modules, variables."""
        given = {**os.environ, **self.ran.variables}
        added = [str(Path(each).resolve()) for each in [*sys.path, *_entries(given)] if each not in self._known_paths]
        paths = list(dict.fromkeys([*added, self._folder]))
        beside = {Path(path).resolve() for path in paths}
        modules = [each for each in loaded_modules() if each.paths[0].parent in beside or each.obstacle is None]
        modules += [each for each in self.ran.modules if each not in modules]
        return {
            "paths": paths,
            "modules": [{"name": each.name, "paths": list(map(str, each.paths))} for each in modules],
            "folder": self.ran.folder,
            "variables": {
                name: given.get(name)
                for name in sorted({*given, *self._before})
                if given.get(name) != self._before.get(name) and not name.startswith(_OF_THE_STUDY)
            },
        }

    def _replaced_in_rllib(self) -> str | None:
        """Return the name of a part of RLlib that the script has replaced in place; None where there is none."""
        own = {"__main__", getattr(self.module, "__name__", ""), *(each.name for each in loaded_modules())}
        for name, module in sorted(sys.modules.items()):
            if name.startswith("ray.rllib."):
                classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == name]
                places: list[Any] = [module, *classes]
                for place in places:
                    for attribute, value in list(vars(place).items()):
                        if str(getattr(value, "__module__", "")).partition(".")[0] in own:
                            return f"{place.__name__}.{attribute}"
        return None

    # --- running the person's code -----------------------------------------------------------------------------------

    def find(self) -> list[Launch]:
        """Run the person's code and return the configurations that it would train with.

        Raises:
            MistakeError: There is none, or the script ends before it trains.
        """
        name = self.request.name
        if self.file is None:
            self.module = self._guard(lambda: importlib.import_module(self.request.target))
            return [self._named(vars(self.module), name)]
        content = self._code(self.file)
        if name and not name.isdigit():
            # As a module first: what stands below `if __name__ == "__main__"` is then not run.
            names = self._run(content, self.file.stem)
            if name not in names:
                names = self._run(content, "__main__")
            return [self._named(names, name)]
        names = self._run(content, "__main__")
        found = _distinct(self.ran.launches) or list(self._at_module_level(names)) or list(self._functions(names))
        if not found:
            self._raise_none_found(names)
        if name:
            if not 1 <= int(name) <= len(found):
                rule, fix = f"must be a number from 1 to {len(found)}", "Leave it out to see which there are."
                raise MistakeError(rule=rule, got=name, fix=fix, code="no-such-configuration")
            return [found[int(name) - 1]]
        return found

    def _code(self, file: Path) -> Any:
        try:
            return compile(Path(self.request.text or file).read_bytes(), str(file), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise MistakeError(
                rule="must be Python",
                where=f"{file.name}{f', line {line}' if line else ''}",
                got=getattr(error, "msg", error),
                fix="Correct the line.",
                code="script-not-python",
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
        messages, before = io.StringIO(), len(self.ran.launches)
        refuse = argparse.ArgumentParser.error

        def error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
            messages.write(message)
            refuse(parser, message)

        result = None
        argparse.ArgumentParser.error = error  # type: ignore[assignment,method-assign]
        try:
            result = run()
        except Launched:
            pass
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # noqa: BLE001 (becomes a fault)
            if len(self.ran.launches) == before and self.ran.unreadable is None:  # else it came to its training
                self._blame(problem, messages.getvalue())
        finally:
            argparse.ArgumentParser.error = refuse  # type: ignore[method-assign]
        if (found := self.ran.unreadable) is not None:
            where = f"{self.file.name}, line {found.line}" if self.file and found.line else ""
            raise MistakeError(where=where, rule=found.rule, got=found.got, fix=found.fix, code=found.code)
        return result

    def _blame(self, problem: BaseException, said: str) -> None:
        """Raise the fault of a script that ended before its training; nothing where it ended as it should.

        Args:
            problem: What it raised.
            said: What its parser of arguments said.

        Raises:
            MistakeError: Says why.
        """
        if isinstance(problem, SystemExit):
            if problem.code in (0, None):
                return
            if said:
                raise MistakeError(
                    rule="must accept its arguments",
                    where=self._place(problem),
                    got=said,
                    fix='Give them as the script takes them: --config-args "--num-agents 2" (config_args in a space).',
                    code="script-arguments",
                ) from problem
            raise MistakeError(
                rule="must come to its training",
                where=self._place(problem),
                got=f"the end of its process with exit code {problem.code}{self._last_line()}",
                fix="Run the script by itself until it trains; what it takes from its command line: --config-args.",
                code="script-exits",
            ) from problem
        if isinstance(problem, UsesRay):
            raise MistakeError(
                rule="must come to its training without a running Ray",
                where=self._place(problem),
                got="a call such as `ray.get`, `ray.put` or `.remote()`",
                fix="Make that call in a callback, or write a function that returns the AlgorithmConfig and name it: "
                "--config FILE:FUNCTION.",
                code="script-uses-ray",
            ) from problem
        if isinstance(problem, ModuleNotFoundError):
            raise MistakeError(
                rule=f"needs the module '{problem.name}', which is not installed",
                where=self._place(problem),
                fix=f"Install it here and on every node, or correct the import of '{problem.name}'.",
                code="script-needs-module",
            ) from problem
        fix = f"python {' '.join([Path(self.request.target).name, *self.request.args])}"
        fix = f"Run the script by itself until it trains: {fix}"
        if isinstance(problem, EOFError):
            fix = "Let it take what it asks for from its command line: --config-args."
        elif isinstance(problem, ImportError) and "relative import" in str(problem):
            fix = "Name it as its package does, in the folder of the package: --config PACKAGE.MODULE:FUNCTION."
        got = f"{type(problem).__name__}: {problem}"
        where, rule = self._place(problem), "must come to its training"
        raise MistakeError(rule=rule, where=where, got=got, fix=fix, code="script-raises") from problem

    def _last_line(self) -> str:
        """Return what the script wrote last, in words."""
        with contextlib.suppress(ValueError):  # the script may have closed it
            sys.stdout.flush()
        written = (self.place / "output.txt").read_text(errors="replace").split("\n")
        return next((f", after it wrote: {line.strip()}" for line in reversed(written) if line.strip()), "")

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
                yield self._launch(value, f"module level, {name}")

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
                yield self._launch(result, f"function {name}")

    def _named(self, names: Mapping[str, Any], name: str) -> Launch:
        if name not in names:
            near = [each for each, value in names.items() if isinstance(value, AlgorithmConfig)]
            functions = [each for each, value in names.items() if inspect.isfunction(value) and not _needs(value)]
            fix = f"Name one of: {', '.join((near or functions)[:8])}." if near or functions else "Check the spelling."
            raise MistakeError(rule=f"has no '{name}'", fix=fix, code="no-such-configuration")
        value = names[name]
        if isinstance(value, AlgorithmConfig):
            return self._launch(value, f"module level, {name}")
        if not callable(value):
            rule = f"'{name}' must be an AlgorithmConfig, or a function that returns one"
            fix = "Name another object of the file."
            raise MistakeError(rule=rule, got=type(value).__name__, fix=fix, code="not-a-configuration")
        if missing := [each for each in _needs(value) if each not in self.request.kwargs]:
            fix = f"Add them to the space: config_kwargs: {{{missing[0]}: …}}."
            rule = f"the function '{name}' must get all its arguments"
            raise MistakeError(rule=rule, got=f"none for {', '.join(missing)}", fix=fix, code="configuration-arguments")
        before = len(self.ran.launches)
        result = self._guard(lambda: value(**self.request.kwargs))
        if not isinstance(result, AlgorithmConfig) and (launches := _distinct(self.ran.launches[before:])):
            if len(launches) > 1:
                rule, got = f"the function '{name}' must train with one configuration", "; ".join(_lines(launches))
                fix = "Write a function that returns one of them, and name it."
                raise MistakeError(rule=rule, got=got, fix=fix, code="several-trainings")
            return launches[0]
        if not isinstance(result, AlgorithmConfig):
            rule = f"the function '{name}' must return an AlgorithmConfig"
            fix = "Return the configuration itself, before `build_algo`."
            raise MistakeError(rule=rule, got=type(result).__name__, fix=fix, code="not-a-configuration")
        return self._launch(result, f"function {name}")

    def _launch(self, config: AlgorithmConfig, how: str) -> Launch:
        try:
            copied, chosen = as_config(config)
        except UnreadableError as problem:
            raise MistakeError(
                rule=problem.rule, got=problem.got, fix=problem.fix, code="unreadable-training"
            ) from problem
        return Launch(config=copied, how=how, line=0, searched=chosen)

    def _raise_none_found(self, names: Mapping[str, Any]) -> NoReturn:
        needing = [
            name
            for name, value in names.items()
            if inspect.isfunction(value) and value.__module__ == names.get("__name__") and "config" in name.lower()
        ]
        fix = "Write a function that returns your AlgorithmConfig, and name it: --config FILE:FUNCTION."
        if needing:
            fix = f"Name '{needing[0]}' in a space, with its arguments as config_kwargs."
        raise MistakeError(
            rule=f"must hold a configuration ({LOOKED_FOR})", got="none", fix=fix, code="no-configuration"
        )

    # --- what travels ------------------------------------------------------------------------------------------------

    def _environments(self, config: AlgorithmConfig) -> dict[str, Any]:
        """Return what makes the environments that the script registered under a name, with Tune or with Gymnasium."""
        environments = dict(self.ran.environments)
        name = config.env
        if isinstance(name, str) and name not in environments and name in set(gymnasium_registry) - self._known_ids:
            environments[name] = _OfGymnasium(gymnasium_registry[name])
        return environments

    def _pickled(self, config: AlgorithmConfig, environments: Mapping[str, Any]) -> bytes:
        by_value = self.module if self.module is not None and self.module.__name__ != "__main__" else None
        try:
            return pickled(config, environments=environments, by_value=by_value)
        except Exception as error:
            place, reason = unpicklable(config, environments) or ("the configuration", _one_line(error))
            raise MistakeError(
                rule="everything in the configuration must be picklable, as Ray sends it to its processes",
                got=f"{place}: {reason}",
                fix="Make it inside the function that uses it, or define it at module level.",
                code="not-picklable",
            ) from error

    def _played(self, config: AlgorithmConfig, environments: Mapping[str, Any], environment: Any) -> dict[str, Any]:
        """Return the episodes of a random policy; why there are none where the environment takes no random action.

        They are played where a study evaluates: the script may have another environment for that.
        """
        request, playing = self.request, config.get_evaluation_config_object() or config
        try:
            if (playing.env, playing.env_config) != (config.env, config.env_config):
                environment.close()
                environment = make_environment(playing, environments)
            return play_randomly(
                environment,
                episodes=request.episodes,
                seed=request.seed,
                most_s=request.play_s,
                max_episode_steps=request.max_episode_steps,
            )
        except Exception as error:  # noqa: BLE001 (the environment's own: there is no floor then)
            return {"returns": [], "num_cut": 0, "problem": _one_line(f"{type(error).__name__}: {error}")[:120]}

    def _environment(self, config: AlgorithmConfig, environments: Mapping[str, Any]) -> tuple[Any, bool]:
        """Return the environment, made as RLlib makes it, and whether it is for several agents."""
        name = describing.environment_name(config.env)
        try:
            made = make_environment(config, environments)
            made.reset(seed=self.request.seed)
        except ImportError as error:
            fix = "Install it here and on every node."
            rule = f"the environment '{name}' must find the modules that it imports"
            raise MistakeError(rule=rule, got=error, fix=fix, code="environment-needs-module") from error
        except Exception as error:
            rule, got = f"the environment '{name}' must be made and reset", f"{type(error).__name__}: {error}"
            fix = "Make and reset it in Python by itself, with the same env_config."
            raise MistakeError(rule=rule, got=got, fix=fix, code="script-environment-fails") from error
        several = describing.is_for_several(made)
        if several and not config.is_multi_agent:
            rule = "an environment for several agents needs policies"
            fix = "Call `.multi_agent(policies=…, policy_mapping_fn=…)` in the script."
            raise MistakeError(rule=rule, got=f"'{name}' and none", fix=fix, code="no-policies")
        return made, several


def _entries(variables: Mapping[str, str]) -> list[str]:
    """Return the folders of `PYTHONPATH`."""
    return [each for each in variables.get("PYTHONPATH", "").split(os.pathsep) if each]


@dataclass(frozen=True, slots=True)
class _OfGymnasium:
    """Makes an environment that the script registered with Gymnasium, wherever it is unpickled."""

    spec: Any

    def __call__(self, context: Mapping[str, Any]) -> Any:
        import gymnasium

        return gymnasium.make(self.spec, **dict(context))


def _digest(name: str) -> str:
    """Return the SHA-256 of the files of a module, and of those of its package, that this process has imported."""
    total = hashlib.sha256()
    for each, module in sorted(sys.modules.items()):
        if (each == name or each.startswith(f"{name}.")) and (file := getattr(module, "__file__", None)):
            total.update(f"{each} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _needs(function: Any) -> list[str]:
    """Return the arguments of a function that have no default."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


def _distinct(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches at different lines; a loop that builds the same one again counts once."""
    return list({launch.line or -number: launch for number, launch in reversed(list(enumerate(launches)))}.values())[
        ::-1
    ]


def _lines(launches: Sequence[Launch]) -> list[str]:
    """Return each of several choices with its number, for people."""
    lines = []
    for number, launch in enumerate(launches, 1):
        algorithm = getattr(launch.config.algo_class, "__name__", launch.config.algo_class)
        place = f"line {launch.line}, " if launch.line else ""
        environment = describing.environment_name(launch.config.env)
        lines.append(f"{number}: {algorithm} on {environment} ({place}{launch.how})")
    return lines


def searched(domain: Any, times: int = 1) -> dict[str, Any]:
    """Return what Tune would choose from, as a space writes it: `choices`, or `low`, `high` and `log`.

    Args:
        domain: What the script gives to Tune.
        times: Factor of its sizes: how many learners have one each.
    """
    choices = domain["grid_search"] if isinstance(domain, Mapping) else getattr(domain, "categories", None)
    if choices is not None:
        return {"choices": [each * times if times > 1 else each for each in describing.plain(list(choices))]}
    is_whole = type(domain).__name__ == "Integer"
    kind = int if is_whole else float
    is_log, step = sampling(domain)
    high = domain.upper - 1 if is_whole and step is None else domain.upper  # Tune leaves the end of whole numbers out
    return {"low": kind(domain.lower) * times, "high": kind(high) * times, **({"log": True} if is_log else {})}


def _invalid(config: AlgorithmConfig) -> str:
    """Return why RLlib would refuse a configuration, but for its learners, which a study sets; empty: it would not."""
    tried = config.copy(copy_frozen=False)
    tried.num_learners = tried.num_gpus_per_learner = tried.num_gpus = 0
    try:
        tried.validate()
    except Exception as error:  # noqa: BLE001 (RLlib's checks, and those of a script's own configuration)
        return _one_line(error)
    return ""


def _one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 300 else f"{line[:297]}..."


# --- what cannot be pickled -------------------------------------------------------------------------------------------


def unpicklable(config: AlgorithmConfig, environments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return which part of a configuration cannot be pickled and why, in words; None where each can."""
    parts = {f"environment '{name}'": creator for name, creator in environments.items()}
    parts |= {_setting(name): value for name, value in vars(config).items()}
    for place, value in parts.items():
        if (why := _why_not(value)) is not None:
            return _deeper(place, value, why)
    return None


def _deeper(place: str, value: Any, why: str, depth: int = 4) -> tuple[str, str]:
    """Follow a value to what it holds that cannot be pickled."""
    for name, inner in _held(value) if depth else ():
        if (reason := _why_not(inner)) is not None:
            return _deeper(f"{place}, {name}", inner, reason, depth - 1)
    return place, f"{type(value).__name__} ({why})"


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function, an object or a container holds, with its name."""
    if inspect.isfunction(value):
        what = f"{'lambda' if value.__name__ == '<lambda>' else f'function {value.__name__}'} of line "
        what += str(value.__code__.co_firstlineno)
        closed = inspect.getclosurevars(value)
        for name, inner in {**closed.nonlocals, **closed.globals}.items():
            yield f"{what}, its variable '{name}'", inner
    elif inspect.isclass(value):
        yield from ((f"class {value.__name__}, {name}", inner) for name, inner in vars(value).items())
    elif isinstance(value, Mapping):
        yield from ((f"[{name!r}]", inner) for name, inner in value.items())
    elif isinstance(value, (list, tuple, set)):
        yield from ((f"item {number}", inner) for number, inner in enumerate(value))
    elif hasattr(value, "__dict__"):
        yield from ((f"its attribute '{name}'", inner) for name, inner in vars(value).items())


def _why_not(value: Any) -> str | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001 (pickling runs code of any kind)
        return _one_line(error)
    return None


def _setting(attribute: str) -> str:
    return f"setting '{attribute.strip('_')}'"
