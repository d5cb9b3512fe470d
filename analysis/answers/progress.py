"""What can be said of a study that has no answer yet: how far it is, and what to do. Pure."""

import shlex
from pathlib import Path

from analysis.answers.answer import Answer, Unknown
from analysis.load.study_data import StudyData
from study.space.space_file import as_options


def progress(data: StudyData) -> str:
    """Return `12 of 40 trials have ended`, with the failed ones."""
    runs = data.runs
    ended, failed = int(runs["status"].isin(["finished", "failed"]).sum()), int((runs["status"] == "failed").sum())
    planned = ended if complete(data) else data.sheet.get("num_trials")
    of = f" of {int(planned):,}" if planned else ""
    lost = f" ({failed:,} failed)" if failed else ""
    return f"{ended:,}{of} trial{'' if (planned or ended) == 1 else 's'} {'has' if ended == 1 else 'have'} ended{lost}"


def complete(data: StudyData) -> bool:
    """Return whether the study ended so, which may have cancelled trials, or every planned trial ended."""
    sessions, planned = data.sheet.get("sessions") or [], data.sheet.get("num_trials") or 0
    if sessions and sessions[-1].get("end") == "complete":
        return True
    return bool(data.runs["status"].isin(["finished", "failed"]).sum() >= planned)


def resume(data: StudyData) -> str:
    """Return the command that goes on with a study; empty where it is complete or its space is not known.

    While a driver works, a resume would be refused: then the command that watches the study.
    """
    if complete(data):
        return ""
    if data.is_running:
        return shlex.join(["python", "-m", "study", "status", data.source, "--watch"])
    if data.space_file is None:
        return ""
    place = ["--name", data.name]
    if "://" not in data.source:
        folder = Path(data.source)
        place += ["--out", str(folder.parent if folder.name not in ("", "..") else folder.absolute().parent)]
    return shlex.join(["python", "run_study.py", *as_options(data.space_file), *place, "--resume"])


def unfinished(data: StudyData) -> tuple[Unknown, ...]:
    """Return that the rest of a study is missing, with the command that goes on; nothing where it is complete."""
    if complete(data):
        return ()
    text = f"what the rest of the study says: {progress(data)}. An answer may change until its end."
    if data.is_running:
        text += " It is running: wait, or watch it."
    return (Unknown(text=text, command=resume(data)),)


def nothing_yet(data: StudyData, missing: str) -> Answer:
    """Return the answer of a study from which nothing can be said."""
    runs, sentence, facts = data.runs, f"No answer yet: {progress(data)}.", []
    if len(runs) and bool((runs["status"] == "failed").all()):
        lines = (line for reason in runs["reason"].dropna() for line in str(reason).splitlines())
        first = next(lines, "no reason was recorded")[:160]
        count = f"All {len(runs):,} trials failed" if len(runs) > 1 else "The only trial failed"
        sentence, facts = f"{count}, so that nothing was learnt from this study.", [f"First reason: {first}"]
    unknown = (Unknown(text=missing, command=resume(data)),)
    return Answer(kind=data.kind, sentence=sentence, facts=tuple(facts), unknown=unknown)
