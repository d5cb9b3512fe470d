"""Messages have a code, a rule and a fix, and their texts are those of the golden file."""

import re
from collections import defaultdict

from tests.golden.messages import FILE, golden_text, messages

WITHOUT_FIX = frozenset({"no-result-to-draw", "runners-not-built", "trial-process-fails"})
"""Codes of messages that quote another one, whose fix they have: of a table, of a process, of a runner."""
OPEN = ("study/mirrors/", "study/options.py", "study/cli/evaluate.py")
"""Where messages still lack parts, or are made by a function of their own: this list only shrinks."""


def done():
    return [message for message in messages() if not message.file.startswith(OPEN)]


def test_the_texts_are_those_of_the_golden_file():
    assert golden_text() == FILE.read_text(), "python -m tests.golden write messages"


def test_every_message_has_a_code_a_rule_and_a_fix():
    lacking = [
        f"{message.file}:{message.line}"
        for message in done()
        if message.positional
        or not message.parts.get("rule")
        or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", message.code)
        or not (message.parts.get("fix") or message.code in WITHOUT_FIX)
    ]
    assert lacking == []


def test_a_code_is_of_one_class_of_errors():
    makers = defaultdict(set)
    for message in done():
        makers[message.code].add("Fault" if message.maker == "wrong_option" else message.maker)
    assert {code: sorted(each) for code, each in makers.items() if len(each) > 1} == {}
