"""The agent as it runs on a host: a real process, told what to do on its standard input."""

import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from study.launch.node import CommandTask, RayTask
from tests.e2e.commands import ROOT, environment


class Agent:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "study.launch.node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def run(self, *command, files=None, environment=None):
        task = CommandTask(job="1", temp_root="/tmp", environment=environment or {}, command=command, files=files or {})
        self.say(msgspec.json.encode(task).decode())

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def until(self, event):
        while (heard := self.hear())["event"] != event:
            pass
        return heard


@pytest.fixture
def agent():
    agent = Agent()
    yield agent
    agent.process.kill()
    agent.process.wait()


SLEEP = ("bash", "-c", "trap 'echo ended; exit 7' TERM; echo up; while :; do sleep 0.1; done")


def test_it_passes_on_what_a_command_prints_and_how_it_ended(agent):
    line = 'cat "$1"; echo $SECRET >&2; echo $2; exit 3'
    words = ("bash", "-c", line, "-", "{folder}/a.yaml", "{python}")
    agent.run(*words, files={"a.yaml": "content\n"}, environment={"SECRET": "s3cret"})
    assert agent.hear()["event"] == "started"
    assert {agent.until("line")["text"] for _ in range(3)} == {"content", "s3cret", sys.executable}
    assert agent.until("exited")["code"] == 3
    assert agent.process.wait(5) == 0


def test_signals_of_a_scheduler_do_not_end_its_child_and_the_end_of_its_supervisor_does(agent):
    agent.run(*SLEEP)
    pid = agent.until("started")["pid"]
    agent.until("line")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        agent.process.send_signal(number)  # as a scheduler would send to all of a job
    agent.say("more words")
    time.sleep(0.5)
    assert psutil.pid_exists(pid)
    agent.process.stdin.close()  # the supervisor, or the connection to it, is gone
    assert agent.until("line")["text"] == "ended"
    assert agent.until("exited")["code"] == 7


def test_a_killed_agent_leaves_no_child(agent):
    agent.run(*SLEEP)
    pid = agent.until("started")["pid"]
    agent.until("line")
    agent.process.send_signal(signal.SIGKILL)
    agent.process.wait()
    for _ in range(50):
        if not psutil.pid_exists(pid):
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the child outlived its agent")


@pytest.mark.parametrize("line", ["", "{}", "nonsense", '{"type": "command", "extra": 1}'])
def test_words_of_another_version_are_refused_aloud(agent, line):
    agent.say(line)
    assert "same version" in agent.until("failed")["reason"]
    assert agent.process.wait(5) == 1


def test_a_command_that_is_not_there_is_said(agent):
    agent.run("no-such-command-here")
    assert "no-such-command-here" in agent.until("failed")["reason"]


def test_a_node_that_cannot_start_says_why_and_what_to_do(agent):
    task = RayTask(job="1", temp_root="/tmp", environment={}, num_cpus=1, interface="none0")
    agent.say(msgspec.json.encode(task).decode())
    failed = agent.until("failed")
    assert failed["reason"].startswith("--interface none0")
    assert failed["fix"]
    assert agent.process.wait(5) == 1
