"""Runs something that might hang, for so long and no longer. Imports the standard library only."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from study.errors import TrialError

Result = TypeVar("Result")


class _Outcome(Generic[Result]):
    value: Result
    error: BaseException | None = None


def within(timeout_s: float, function: Callable[[], Result], *, otherwise: str) -> Result:
    """Return what `function` returns, or raise what it raises.

    It runs in a daemon thread, which is left behind when it hangs: a process that ends does not wait for it.
    Code that never releases the interpreter lock cannot be timed out.

    Args:
        timeout_s: Seconds to wait.
        function: What to run.
        otherwise: Message of the error when it takes longer.

    Raises:
        TrialError: `function` did not end in time.
    """
    outcome: _Outcome[Result] = _Outcome()

    def run() -> None:
        try:
            outcome.value = function()
        except BaseException as error:  # noqa: BLE001 (handed over to the caller's thread)
            outcome.error = error

    thread = threading.Thread(target=run, daemon=True, name="deadline")
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TrialError(otherwise)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
