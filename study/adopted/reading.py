"""Reads a person's script in a process of its own, within a time limit. Imports no Ray.

The script's code runs there up to where it would train; nothing of Ray starts. What is wrong with it is one fault.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.errors import Fault, SpaceError
from study.machine.shape import Speeds
from study.machine.shipping import OwnModule
from study.space.script import ScriptFacts

TIMEOUT_S = 300.0
"""Seconds that a script may take to come to its training and to make its environment, once RLlib is imported."""
IMPORT_TIMEOUT_S = 300.0
"""RLlib takes ten seconds to import, minutes where the disk is slow."""
ROOT, PACKAGE = Path(__file__).resolve().parents[2], __name__.partition(".")[0]
_CHILD = "import sys; sys.path[0] = sys.argv[2]; from study.adopted.finding import main; main(sys.argv[1])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A script's configuration, and what a process must have to run it as the script's own would.

    Attributes:
        pickled: What `study.trial.experiment.pickled` returns for the `AlgorithmConfig`; only a trial, or whoever
            plays a policy, unpickles it.
        facts: What is known of it.
        starts_ray: Whether the script calls `ray.init`, which was skipped.
        paths: Folders from which the script imports: its own, and what it has added to `sys.path`.
        modules: What it has imported that is not installed; travels to the nodes of a joined cluster.
        variables: Environment variables that the script sets, also by `ray.init`; None where it removes one.
        folder: That of the command, which travels to the nodes of a joined cluster, where the script names it as
            `working_dir`; else empty.
        jax_obstacle: Why JAX cannot serve a learner beside the script's own code; empty where it can.
        speeds: How fast its environment is here; None where it was not played.
    """

    pickled: bytes
    facts: ScriptFacts
    starts_ray: bool = False
    paths: tuple[str, ...] = ()
    modules: tuple[OwnModule, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    folder: str = ""
    jax_obstacle: str = ""
    speeds: Speeds | None = None

    @property
    def environment(self) -> dict[str, str | None]:
        """Environment variables of a process that runs the configuration, beside those that this one has."""
        path = os.pathsep.join(filter(None, [*self.paths, os.environ.get("PYTHONPATH")]))
        return {**self.variables, **({"PYTHONPATH": path} if self.paths else {})}

    def enter(self) -> None:
        """Let this process import what the script imports, and give it the script's environment variables."""
        sys.path[:0] = [path for path in self.paths if path not in sys.path]
        for name, value in self.variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class MistakeError(Exception):
    """Ends the reading with a fault for the person; raised in the process of the script.

    Attributes:
        fault: Its parts.
    """

    def __init__(self, *, rule: str, where: str = "", got: object = "", fix: str) -> None:
        super().__init__(rule)
        self.fault = Fault(where=where, rule=rule, got=one_line(got), fix=fix)


def one_line(text: object) -> str:
    """Return a text on one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= 300 else f"{line[:297]}..."


def last_line(output: Path) -> str:
    """Return what a process wrote last into a file."""
    lines = output.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


_READ: dict[str, Adopted] = {}
"""What was read in this process already."""


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


def read_script(
    text: str,
    *,
    args: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    where: str = "config",
) -> Adopted:
    """Run a script in a process of its own and return the configuration that it would train with.

    A second call for the same file and arguments returns the first one's result, and runs nothing.

    Args:
        text: `my_train.py` or `my_train.py:make_config`.
        args: Arguments of the script's command line.
        kwargs: Arguments of the function that `text` names.
        timeout_s: Seconds that it may take once RLlib is imported.
        where: Option or key that names the script, for messages.

    Raises:
        SpaceError: It has no configuration, several, or one that cannot be studied; says why.
    """
    file, name = script_file(text, where=where)
    _check_no_namesake(file, where)
    request = {"file": str(file), "name": name, "args": list(args), "kwargs": dict(kwargs or {})}
    key = json.dumps([request, hashlib.sha256(file.read_bytes()).hexdigest()], sort_keys=True)
    if key not in _READ:
        _READ[key] = _read({**request, "timeout_s": timeout_s}, text, where)
    return _READ[key]


def _check_no_namesake(file: Path, where: str) -> None:
    """Refuse a module called as this package is, beside the script or here: one would be imported for the other.

    Raises:
        SpaceError: There is one; names it.
    """
    for folder in {file.parent, Path.cwd()}:
        for own in (folder / f"{PACKAGE}.py", *sorted((folder / PACKAGE).glob("*.py"))):
            if own.is_file() and not (own.parent / "adopted" / "reading.py").is_file():  # a clone of this project
                rule = f"must do without a module '{PACKAGE}' of your own: this program's package has that name"
                fix = "Rename it and its imports."
                raise SpaceError.of(file.name, where=where, rule=rule, got=str(own), fix=fix)


def _read(request: Mapping[str, Any], text: str, where: str) -> Adopted:
    """Run the script and return what its process has found.

    Raises:
        SpaceError: As of `read_script`.
        RuntimeError: This program has failed there.
    """
    with tempfile.TemporaryDirectory(prefix="study-config-") as folder:
        place = Path(folder)
        (place / "request.json").write_text(json.dumps(request))
        code = _run(place, request["timeout_s"])
        if not (place / "answer.json").exists():
            raise SpaceError(text, [_no_answer(place, request, where, code)])
        answer = json.loads((place / "answer.json").read_text())
        if "crash" in answer:
            raise RuntimeError(f"reading {text} failed:\n{answer['crash']}")
        if "faults" in answer:
            places = (f"{where}: {fault['where']}" if fault["where"] else where for fault in answer["faults"])
            faults = zip(answer["faults"], places, strict=True)
            raise SpaceError(text, [Fault(**{**fault, "where": at}) for fault, at in faults])
        modules = (OwnModule(name=name, paths=tuple(map(Path, paths))) for name, paths in answer.pop("modules"))
        played = answer.pop("speeds")
        return Adopted(
            speeds=None if played is None else Speeds(**played),
            pickled=(place / "config.pkl").read_bytes(),
            facts=ScriptFacts.model_validate(answer.pop("facts")),
            paths=tuple(answer.pop("paths")),
            modules=tuple(modules),
            **answer,
        )


def _run(place: Path, timeout_s: float) -> int | None:
    """Run the process that executes the script; return its exit code, None where it ran past its limit.

    It and its children end with this call.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # finds this package anywhere
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
        # The process ends itself at its limit, and writes where it was; this is for one that cannot.
        return process.wait(IMPORT_TIMEOUT_S + 2 * timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _no_answer(place: Path, request: Mapping[str, Any], where: str, code: int | None) -> Fault:
    """Return why the process ended without an answer: it ran past its limit, or ended by itself."""
    stack = place / "stack.txt"
    frames = stack.read_text() if stack.exists() else ""
    if "Timeout" in frames or code is None:
        lines = re.findall(rf'File "{re.escape(request["file"])}", line (\d+)', frames)
        at = f"it was in line {lines[0]}" if lines else "it was in a module that it imports"
        fix = "Let it come to its training sooner."
        rule = f"must come to its training within {request['timeout_s']:g} s"
        return Fault(where=where, rule=rule, got=at, fix=fix)
    last = last_line(place / "output.txt")
    rule, got = "must come to its training", f"its process ended with code {code}, after it wrote: {last[:200]}"
    fix = "Run the script by itself until it trains."
    if code == -signal.SIGKILL:
        got = "its process was killed, as the system does where memory is short"
        fix = "Let it need less memory before it trains, or give it more."
    return Fault(where=where, rule=rule, got=got, fix=fix)
