import pytest

from study.driver.losses import loss_of, reason_of

REMOTE = """\x1b[36mray::StudyTrial.train()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=0)
ZeroDivisionError: planted

The above exception was the direct cause of the following exception:

\x1b[36mray::StudyTrial.train()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=0)
  File "x.py", line 3, in step
    raise TrialError("y")
study.errors.TrialError: environment: must not raise, got ZeroDivisionError: planted. Fix: mend it."""

DEAD = """The actor died unexpectedly before finishing this task.
\tclass_name: StudyTrial
\tactor_id: 5a
\tpid: 77
\tnamespace: study-1
\tip: 10.0.0.7
The actor is dead because {why}"""
NODE = DEAD.format(why="its node has died. Node Id: 12\n\tthe actor's node was terminated unexpectedly: no heartbeats")
PROCESS = DEAD.format(why="its worker process has died. Worker exit type: SYSTEM_ERROR")

RUNNER = """\x1b[36mray::StudyTrial.train()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=0)
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.

The above exception was the direct cause of the following exception:

\x1b[36mray::StudyTrial.train()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=0)
study.errors.TrialLostError: env runners: all 2 must stay alive, got ActorDiedError: {died}. Fix: look."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (REMOTE, "environment: must not raise, got ZeroDivisionError: planted. Fix: mend it."),
        ("Traceback\n  File x\nModuleNotFoundError: No module named 'x'", "ModuleNotFoundError: No module named 'x'"),
        ("A worker died.\nmore", "A worker died."),
        ("", "a process of the trial ended without a word"),
        (
            NODE,
            "trial: the node of its main process must stay in reach (10.0.0.7), got: The actor is dead because its "
            "node has died. Node Id: 12",
        ),
        (
            RUNNER.format(died="its node has died"),
            "env runners: all 2 must stay alive, got ActorDiedError: its node has died. Fix: look.",
        ),
    ],
)
def test_the_reason_is_the_cause_in_one_line(text, reason):
    assert reason_of(text) == reason


def test_where_ray_does_not_say_which_node_is_out_of_reach_the_caller_may():
    said = "The actor 5a is unavailable: connection reset."
    law = "trial: the node of its main process must stay in reach"
    assert reason_of(said) == f"{law}, got: {said}"
    assert reason_of(said, address="10.0.0.7") == f"{law} (10.0.0.7), got: {said}"


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        (NODE, "node"),
        (PROCESS, "process"),
        ("The actor died unexpectedly before finishing this task.", "node"),
        ("The actor 5a is unavailable: connection reset. The task may or may not have been executed.", "node"),
        (RUNNER.format(died="The actor is dead because its node has died"), "node"),
        (RUNNER.format(died="The actor is dead because its worker process has died"), "process"),
        (REMOTE, None),
        (REMOTE.replace("planted", "its node has died"), None),  # an environment may say what it likes
        ("study.errors.TrialError: start-up: must be up. The actor died unexpectedly", None),
        ("", None),
    ],
)
def test_a_loss_is_told_from_a_failure(text, loss):
    assert loss_of(text) == loss
