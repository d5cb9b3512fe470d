import time

import pytest

from study.errors import TrialError
from study.trial.deadline import within


def test_a_deadline_lets_through_what_ends_in_time_and_ends_what_hangs() -> None:
    assert within(5, lambda: 7, otherwise=TrialError()) == 7
    with pytest.raises(KeyError, match="mine"):
        within(5, lambda: {}["mine"], otherwise=TrialError())
    started = time.perf_counter()
    with pytest.raises(TrialError, match="took too long"):
        within(0.1, lambda: time.sleep(30), otherwise=TrialError("took too long"))
    assert time.perf_counter() - started < 2
