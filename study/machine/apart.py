"""Calls a function in a process of its own, for a person's code that may hang, end its process or leave threads."""

import contextlib
import os
import pickle
import pkgutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from study.errors import StudyError

_CHILD = "import sys; from study.machine.apart import answer_call; answer_call(sys.argv[1])"
_CALL, _ANSWER, _OUTPUT = "call.pkl", "answer.pkl", "output.txt"
"""Files of a call's folder: the function with its arguments, what came of it, what its process wrote."""
_imported_elsewhere: set[str] = set()
"""Top-level modules that other processes imported, which were called from this one."""
_folder = Path()
"""Of the call that this process answers."""


def called_apart(
    function: Callable[..., Any] | str, *args: Any, limit_s: float, otherwise: Callable[..., StudyError]
) -> Any:
    """Return what a function returns in a process of its own, which sees the same modules as this one.

    The function may be a name, `module:function`, whose module is then imported there alone. What is written there is
    lost, but for the last line of a process that does not answer. Whatever is imported there counts as imported here: a
    study brings it to other nodes.

    Raises:
        StudyError: `otherwise(got=…)`, where the process ended, or was ended after `limit_s` seconds.
        Exception: Whatever the function raises, with its traceback there as a note.
    """
    with tempfile.TemporaryDirectory(prefix="study-call-") as place:
        folder = Path(place)
        (folder / _CALL).write_bytes(pickle.dumps((function, args)))
        code = _run(folder, limit_s)
        if not (answer := folder / _ANSWER).exists():
            ended = f"no answer within {limit_s:g} s" if code is None else f"exit code {code}"
            killed = "it was killed, as the system does where memory is short"
            got = killed if code == -signal.SIGKILL else f"{ended}, after it wrote: {last_line(folder)}"
            raise otherwise(got=got)
        value, error, names = pickle.loads(answer.read_bytes())  # of the process that has run that code already
    _imported_elsewhere.update(names)
    if error is not None:
        raise error
    return value


def _run(folder: Path, limit_s: float) -> int | None:
    """Run the process that answers a call; return its exit code, None where it ran past its limit."""
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    with (folder / _OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": paths},
            start_new_session=True,
        )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answer_call(place: str) -> None:
    """Call what stands in a folder, write there what came of it, and end: the other end of `called_apart`."""
    global _folder
    _folder, value, error = Path(place), None, None
    sys.path[0] = str(Path.cwd())  # a script may change the folder
    try:
        function, args = pickle.loads((_folder / _CALL).read_bytes())
        value = (pkgutil.resolve_name(function) if isinstance(function, str) else function)(*args)
    except (Exception, SystemExit) as raised:  # noqa: BLE001 (raised again at the other end)
        error, note = raised, "".join(traceback.format_exception(raised))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 (whatever the error's own class does: then its text alone)
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        error.add_note(note)
    (_folder / _ANSWER).write_bytes(pickle.dumps((value, error, loaded_names())))
    os._exit(0)  # threads and exit handlers of that code may wait for ever


def last_line(folder: Path | None = None) -> str:
    """Return what the process of a call wrote last, by its folder; by default this process."""
    lines = ((folder or _folder) / _OUTPUT).read_text(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "nothing")


def loaded_names() -> set[str]:
    """Return the top-level modules that this process has imported, or another one for it."""
    return {name.partition(".")[0] for name in tuple(sys.modules)} | _imported_elsewhere
