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
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from study.adopted.facts import Adopted, Request
from study.cluster.shipping import OwnModule
from study.errors import Fault, SpaceError
from study.space.script import ScriptFacts

TIMEOUT_S = 60.0
"""Seconds that a script may take to come to its training, once RLlib is imported."""
IMPORT_TIMEOUT_S = 300.0
"""RLlib takes ten seconds to import, minutes where the disk is slow."""
PLAY_S = 60.0
"""Seconds after which no further episode of a random policy begins."""
ROOT, PACKAGE = Path(__file__).resolve().parents[2], __name__.partition(".")[0]
_CHILD = "import sys; sys.path[0] = sys.argv[2]; from study.adopted.finding import main; main(sys.argv[1])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a configuration is.

    Attributes:
        file: The script; None for an importable module.
        module: The module; empty for a script.
        name: Object in it, or number of a choice; empty to look for one.
    """

    file: Path | None = None
    module: str = ""
    name: str = ""

    @classmethod
    def parse(cls, text: str, *, where: str = "config") -> "Target":
        """Return what `my_train.py`, `my_train.py:make_config` or `my_module:config` names.

        Raises:
            SpaceError: No such file, or no module and object.
        """
        before, colon, name = text.rpartition(":")
        place = before if colon and (before.endswith(".py") or not text.endswith(".py")) else text
        name = name if place == before else ""
        if place.endswith(".py"):
            if not Path(place).is_file():
                fix = "Check the path; it begins in the folder in which the command is typed."
                raise SpaceError.of(text, where=where, rule="no such file", got=f"'{place}'", fix=fix)
            return cls(file=Path(place).resolve(), name=name)
        if not name or not all(part.isidentifier() for part in place.split(".")):
            rule, fix = (
                "must be a Python file or module:object",
                "Write my_train.py, my_train.py:make_config or my_module:config.",
            )
            raise SpaceError.of(text, where=where, rule=rule, got=f"'{text}'", fix=fix)
        return cls(module=place, name=name)


class SeveralConfigurationsError(SpaceError):
    """A script would train with several configurations.

    Attributes:
        choices: One line for each, with its number from 1.
    """

    def __init__(self, text: str, where: str, choices: Sequence[str]) -> None:
        fault = Fault(
            where=where,
            rule="must name one of several configurations",
            got="; ".join(choices),
            fix=f"Add its number: {text}:1.",
        )
        super().__init__(text, [fault])
        self.choices = tuple(choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was found in a script, and what goes beyond `Adopted`.

    Attributes:
        adopted: The configuration and its facts.
        searched: Our parameter, or another setting of RLlib -> what the script lets Tune choose from: `choices`, or
            `low`, `high`, `log`.
        starts_ray: Whether the script calls `ray.init`, which was skipped.
        returns: Of each episode of a random policy; empty where none was asked for.
        num_cut: Those of these episodes that did not end.
        unplayed: Why a random policy could not play.
    """

    adopted: Adopted
    searched: Mapping[str, Any]
    starts_ray: bool
    returns: tuple[float, ...]
    num_cut: int
    unplayed: str = ""


def read_script(
    text: str,
    *,
    args: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    episodes: int = 0,
    where: str = "config",
) -> Reading:
    """Run a script in a process of its own and return the configuration that it would train with.

    A second call for the same file and arguments returns the first one's result, and runs nothing.

    Args:
        text: `my_train.py`, `my_train.py:make_config` or `my_module:config`.
        args: Arguments of the script's command line.
        kwargs: Arguments of the function that `text` names.
        timeout_s: Seconds that it may take once RLlib is imported, the random policy included.
        episodes: Episodes to play with random actions.
        where: Option or key that names the script, for messages.

    Raises:
        SpaceError: It has no configuration, several, or one that cannot be studied; says why.
    """
    target = Target.parse(text, where=where)
    _check_no_namesake(target, text, where)
    digest = "" if target.file is None else hashlib.sha256(target.file.read_bytes()).hexdigest()
    request = Request(
        target=str(target.file or target.module),
        name=target.name,
        args=tuple(args),
        kwargs=dict(kwargs or {}),
        timeout_s=timeout_s,
        episodes=episodes,
        play_s=PLAY_S,
    )
    key = json.dumps([request.target, request.name, request.args, request.kwargs, digest], sort_keys=True)
    if key not in _READ or (episodes and not _READ[key].returns):
        _READ[key] = _read(request, text, where)
    return _READ[key]


def _check_no_namesake(target: Target, text: str, where: str) -> None:
    """Refuse a module called as this package is: where the command is typed, or imported by the script.

    There Ray's processes would import it in place of this package; a script that imports its own would get this one.

    Raises:
        SpaceError: There is one; names it.
    """
    here, beside = Path.cwd(), target.file.parent if target.file else Path.cwd()
    files = [target.file or beside / f"{target.module.partition('.')[0]}.py"]
    names: set[str] = set()
    for file in files:  # which grows
        content = file.read_text(errors="replace") if file.is_file() else ""
        names.update(re.findall(r"^\s*(?:from|import)\s+(\w+)", content, re.MULTILINE))
        files += [each for each in beside.glob("*.py") if each.stem in names and each not in files]
    shadows = [here / f"{PACKAGE}.py", here / PACKAGE / "__init__.py"]
    if PACKAGE in names:
        shadows += [beside / f"{PACKAGE}.py", *(beside / PACKAGE).glob("*.py"), *(here / PACKAGE).glob("*.py")]
    for file in shadows:
        if file.is_file() and not (file.parent / "adopted" / "reading.py").is_file():  # a clone of this project
            raise SpaceError.of(
                text,
                where=where,
                rule=f"must do without a module '{PACKAGE}' of your own: this program's package has that name",
                got=str(file),
                fix="Rename it and its imports, or type the command in another folder where the script needs none.",
            )


_READ: dict[str, Reading] = {}
"""What was read in this process already."""


def _read(request: Request, text: str, where: str) -> Reading:
    with tempfile.TemporaryDirectory(prefix="study-config-") as folder:
        place = Path(folder)
        (place / "request.json").write_text(json.dumps(asdict(request)))
        code = _run(place, request.timeout_s)
        if not (place / "answer.json").exists():
            raise _no_answer(place, text, where, request.timeout_s, code)
        answer = json.loads((place / "answer.json").read_text())
        if "crash" in answer:
            raise RuntimeError(f"reading {text} failed:\n{answer['crash']}")
        if (fault := answer.get("fault")) is not None:
            del fault["line"]
            if fault["where"] and fault["where"] != where:
                fault["where"] = f"{where}: {fault['where']}"
            raise SpaceError(text, [Fault(**{**fault, "where": fault["where"] or where})])
        if (choices := answer.get("choices")) is not None:
            raise SeveralConfigurationsError(text, where, choices)
        if (faults := answer.get("faults")) is not None:
            raise SpaceError(text, [Fault(**fault) for fault in faults])
        played = answer.get("returns", {"returns": [], "num_cut": 0})
        return Reading(
            adopted=Adopted(
                pickled=(place / "config.pkl").read_bytes(),
                facts=ScriptFacts.model_validate(answer["facts"]),
                paths=tuple(answer["paths"]),
                modules=tuple(
                    OwnModule(name=each["name"], paths=tuple(map(Path, each["paths"]))) for each in answer["modules"]
                ),
                variables=answer["variables"],
                folder=answer["folder"],
                jax_obstacle=answer["jax_obstacle"],
            ),
            searched=answer["searched"],
            starts_ray=answer["starts_ray"],
            returns=tuple(played["returns"]),
            num_cut=played["num_cut"],
            unplayed=played.get("problem", ""),
        )


def _run(place: Path, timeout_s: float) -> int | None:
    """Run the process that executes the script; return its exit code, None where it ran past its limit.

    It and its children end with this call.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # finds this package anywhere
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path}
    with (place / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(place), os.getcwd()],  # noqa: PTH109 (text for the child)
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + IMPORT_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline and not (place / "ready").exists():
            time.sleep(0.02)
        # The process ends itself at its limit, and writes where it was; this is for one that cannot.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 * (timeout_s + PLAY_S) + 10)
    finally:
        code = process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code


def _no_answer(place: Path, text: str, where: str, timeout_s: float, code: int | None) -> SpaceError:
    """Return why the process ended without an answer: it ran past its limit, or ended by itself."""
    stack = place / "stack.txt"
    frames = stack.read_text() if stack.exists() else ""
    file = Target.parse(text, where=where).file
    if "Timeout" in frames and (place / "found").exists():
        rule = "its environment must be made, and a random episode must end, within minutes"
        fix = "Make the environment in Python by itself; without random episodes: --episodes 0."
        return SpaceError.of(text, where=where, rule=rule, fix=fix)
    if "Timeout" in frames or code is None:
        lines = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', frames)
        at = f"it was in line {lines[0]}" if lines else "it was in a module that it imports"
        fix = "Let it come to its training sooner, or raise the limit: --config-timeout 5m."
        rule = f"must come to its training within {timeout_s:g} s"
        return SpaceError.of(text, where=where, rule=rule, got=at, fix=fix)
    output = (place / "output.txt").read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(output) if line.strip()), "nothing")
    rule, got = "must come to its training", f"its process ended with code {code}, after it wrote: {last[:200]}"
    fix = "Run the script by itself until it trains."
    if code == -signal.SIGKILL:
        got = "its process was killed, as the system does where memory is short"
        fix = "Let it need less memory before it trains, or give it more."
    return SpaceError.of(text, where=where, rule=rule, got=got, fix=fix)
