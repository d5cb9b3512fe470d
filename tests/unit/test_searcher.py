import pytest

from study.search.searcher import reason_of

REMOTE = """\x1b[36mray::StudyTrial.train()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=0)
ZeroDivisionError: planted

The above exception was the direct cause of the following exception:

\x1b[36mray::StudyTrial.train()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=0)
  File "x.py", line 3, in step
    raise TrialError("y")
study.errors.TrialError: environment: must not raise, got ZeroDivisionError: planted. Fix: mend it."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (REMOTE, "environment: must not raise, got ZeroDivisionError: planted. Fix: mend it."),
        ("Traceback\n  File x\nModuleNotFoundError: No module named 'x'", "ModuleNotFoundError: No module named 'x'"),
        ("The actor died.\nmore", "The actor died."),
        ("", "a process of the trial ended without a word"),
    ],
)
def test_the_reason_is_the_cause_in_one_line(text, reason):
    assert reason_of(text) == reason
