"""From a space file, which may name a person's RLlib script as `config`, to a `StudySpec`. Imports no Ray.

A script runs in a process of its own (`study.adopted.finding`), up to where it would train, within a time limit;
nothing of Ray starts. What is wrong with it is one fault.
"""

import contextlib
import hashlib
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from study.errors import Fault, SpaceError
from study.machine.shape import Speeds
from study.machine.shipping import OwnModule
from study.space.parsing import parse_space
from study.space.space_file import Source, read_space
from study.space.spec import ScriptFacts, StudySpec

TIMEOUT_S = 900.0
"""Seconds that a script may take to come to its training and to make its environment, once RLlib is imported."""
IMPORT_TIMEOUT_S = 300.0
"""RLlib takes ten seconds to import, minutes where the disk is slow."""
_ROOT = Path(__file__).resolve().parents[2]
_CHILD = "import sys; sys.path[0] = sys.argv[2]; from study.adopted.finding import main; main(sys.argv[1])"
_READ: dict[str, "Adopted"] = {}
"""What was read in this process already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A script's configuration, and what a process must have to run it as the script's own would.

    Attributes:
        pickled: What `study.trial.experiment.pickled` returns for the `AlgorithmConfig`; only a trial, or whoever
            plays a policy, unpickles it.
        facts: What is known of it.
        paths: Folders from which the script imports: its own, and what it has added to `sys.path`.
        modules: What it has imported that is not installed; travels to the nodes of a joined cluster.
        variables: Environment variables that the script sets, also by `ray.init`.
        jax_obstacle: Why JAX cannot serve a learner beside the script's own code; empty where it can.
        speeds: How fast its environment is here; None where it was not played.
    """

    pickled: bytes
    facts: ScriptFacts
    paths: tuple[str, ...] = ()
    modules: tuple[OwnModule, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    jax_obstacle: str = ""
    speeds: Speeds | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a process that runs the configuration, beside those that this one has."""
        path = os.pathsep.join(filter(None, [*self.paths, os.environ.get("PYTHONPATH")]))
        return {**self.variables, **({"PYTHONPATH": path} if self.paths else {})}

    def enter(self) -> None:
        """Let this process import what the script imports, and give it the script's environment variables."""
        sys.path[:0] = [path for path in self.paths if path not in sys.path]
        os.environ.update(self.variables)


# --- a space -------------------------------------------------------------------------------------------------------


def load_space(path: str | Path, *, overrides: Sequence[str] = ()) -> StudySpec:
    """Read a space file; where it names a script, run that in a process of its own, up to where it would train.

    Args:
        path: The file, or the name of one in `search_spaces/`.
        overrides: `dotted.key=value` pairs that replace or add values; each value is read as YAML.

    Raises:
        SpaceError: The file is missing, is not a plain YAML mapping, or breaks a rule of the schema; or its script
            cannot be studied. Carries all faults found.
    """
    return parse_space(with_script(read_space(path, overrides=overrides)))


def with_script(source: Source) -> Source:
    """Return a space with the facts of the script that it names; without one the space itself.

    Raises:
        SpaceError: The script cannot be studied.
    """
    content = source.content
    if not isinstance(content.get("config"), str) or not content["config"]:
        return source
    try:
        facts = _read_named(content).facts
    except SpaceError as error:
        faults = [replace(fault, line=source.line_of("config")) for fault in error.faults]
        raise SpaceError(source.name, faults) from error
    return replace(source, content={**content, "script": facts.model_dump(mode="json")})


def adopted_by(spec: StudySpec) -> Adopted | None:
    """Return the script of a study, as it is now; None for a study without one.

    Raises:
        SpaceError: The script cannot be studied.
    """
    return None if spec.config is None else _read_named(spec.to_json())


def _read_named(content: Mapping[str, Any]) -> Adopted:
    arguments = content.get("config_args")
    args = words(arguments, "config_args") if isinstance(arguments, str) else ()
    return read_script(str(content["config"]), args=args)


def words(arguments: str, where: str) -> list[str]:
    """Return the arguments of a script's command line, as a shell splits them.

    Raises:
        SpaceError: A quote is open; names the option or key `where`.
    """
    try:
        return shlex.split(arguments)
    except ValueError as error:
        rule, fix = "must be words", "Close the quotes, or write a backslash before the quote."
        raise SpaceError.of("space", where=where, rule=rule, got=f"{arguments} ({error})", fix=fix) from error


# --- a script ------------------------------------------------------------------------------------------------------


def script_file(text: str, *, where: str = "config") -> tuple[Path, str]:
    """Return the file and the name in it, or no name, that `my_train.py` or `my_train.py:make_config` means.

    Raises:
        SpaceError: There is no such file, or it is no Python file.
    """
    before, _, name = text.rpartition(":")
    place, name = (before, name) if before.endswith(".py") else (text, "")
    if not place.endswith(".py"):
        fix = "Write my_train.py or my_train.py:make_config; for a module a file with `from my_module import config`."
        raise SpaceError.of(text, where=where, rule="must be a Python file", got=f"'{text}'", fix=fix)
    if not Path(place).is_file():
        fix = "Check the path; it begins in the folder in which the command is typed."
        raise SpaceError.of(text, where=where, rule="no such file", got=f"'{place}'", fix=fix)
    return Path(place).resolve(), name


def read_script(text: str, *, args: Sequence[str] = (), timeout_s: float = TIMEOUT_S, where: str = "config") -> Adopted:
    """Run a script in a process of its own and return the configuration that it would train with.

    A second call for the same file and arguments returns the first one's result, and runs nothing.

    Args:
        text: `my_train.py` or `my_train.py:make_config`.
        args: Arguments of the script's command line.
        timeout_s: Seconds that it may take once RLlib is imported.
        where: Option or key that names the script, for messages.

    Raises:
        SpaceError: It has no configuration, several, or one that cannot be studied; says why.
        RuntimeError: This program has failed there.
    """
    file, name = script_file(text, where=where)
    request = {"file": str(file), "name": name, "args": list(args)}
    key = json.dumps([request, hashlib.sha256(file.read_bytes()).hexdigest()], sort_keys=True)
    if key in _READ:
        return _READ[key]
    with tempfile.TemporaryDirectory(prefix="study-config-") as folder:
        place = Path(folder)
        (place / "request.json").write_text(json.dumps({**request, "timeout_s": timeout_s}))
        code = _run(place, timeout_s)
        file_of_answer = place / "answer.pkl"
        # Of the process that has run the script: to unpickle it runs nothing that has not run.
        answer = pickle.loads(file_of_answer.read_bytes()) if file_of_answer.exists() else None
        if answer is None:
            got = f"code {code}, after it wrote: {last_line(place)}"
            if code in (None, -signal.SIGKILL):  # its limit of time, at which it ends itself, is one of Python
                got = "it hung" if code is None else "it was killed, as the system does where memory is short"
            rule, fix = "its process must come to its training", "Run the script by itself until it trains."
            answer = [Fault(where="", rule=rule, got=got, fix=fix)]
    if isinstance(answer, str):
        raise RuntimeError(f"reading {text} failed:\n{answer}")
    if isinstance(answer, list):
        raise SpaceError(text, [replace(each, where=": ".join(filter(None, [where, each.where]))) for each in answer])
    _READ[key] = answer
    return _READ[key]


def _run(place: Path, timeout_s: float) -> int | None:
    """Run the process that executes the script; return its exit code, None where it ran past its limit.

    It and its children end with this call.
    """
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # finds this package anywhere
    with (place / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(place), os.getcwd()],  # noqa: PTH109 (text for the child)
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path},
            start_new_session=True,
        )
    try:
        # The process ends itself at its limit, and says where it was; this is for one that cannot.
        return process.wait(IMPORT_TIMEOUT_S + 2 * timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(place: Path) -> str:
    """Return what the process of a script wrote last."""
    lines = (place / "output.txt").read_text(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "nothing")
