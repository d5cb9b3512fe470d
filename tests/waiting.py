"""Waiting for something to become true, with a limit and a reason."""

import time

import pytest


def until(condition, what="the condition is true", timeout_s=60.0, period_s=0.1):
    """Return the first true value of `condition()`; fail the test with `what` when it stays false.

    Args:
        condition: Called again and again.
        what: What was waited for: text, or a function that returns it, called only on failure.
        timeout_s: Limit.
        period_s: Pause between two calls.
    """
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"after {timeout_s:g} s still not: {what() if callable(what) else what}")
        time.sleep(period_s)
    return value
