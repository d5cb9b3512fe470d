"""What a reader of a study must know before its tables: plain sentences. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.load.frames import Trials
from analysis.load.sheet import Session
from study.records.ledger import Ledger
from study.text import count


def folder_problems(runs: pd.DataFrame, trials: Trials, *, results: str) -> Iterator[str]:
    """Yield what is missing, unfinished or odd in a study folder, and what can still be shown."""
    if trials.torn_bytes:
        yield (
            f"The last line of {results} is cut ({trials.torn_bytes} bytes): it was being written, or its writer was "
            f"killed. The {trials.num_lines:,} lines before it are whole and are shown."
        )
    yield from _state(runs, trials.ledger)
    yield from outcome_problems(runs)
    yield from _phases(runs, results)
    yield from label_problems(runs)
    yield from session_problems(trials.sessions)


def _state(runs: pd.DataFrame, ledger: Ledger) -> Iterator[str]:
    counts = ledger.counts()
    begun, planned = len(runs), max(ledger.num_trials, len(runs))
    if ledger.closed is None:
        yield (
            f"The study is still running, or its driver was killed: {begun} of {planned} trials have started, "
            f"{counts['running']} of them have no end. All figures are as of the last record."
        )
    elif ledger.closed.reason != "complete":
        detail = f" ({ledger.closed.detail})" if ledger.closed.detail else ""
        yield (
            f"The study is not complete: its last session ended with {ledger.closed.reason!r}{detail}, "
            f"{counts['finished'] + counts['failed']} of {planned} trials have ended. `--resume` finishes it."
        )
    if ledger.closed is not None and counts["running"]:
        yield f"{count(counts['running'], 'trial')} without an end, though no driver is at work: shown as running."
    if counts["interrupted"]:
        yield f"{count(counts['interrupted'], 'interrupted trial')}: shown as such, without a score, in no mean."


def outcome_problems(runs: pd.DataFrame) -> Iterator[str]:
    """Yield how many trials failed, and why."""
    failed = runs[runs["status"] == "failed"]
    if len(runs) and len(failed) == len(runs):
        yield (
            f"All {len(runs)} trials failed: no time and no return can be shown, only the reasons. "
            f"Most often: {most_frequent(failed['reason'])}"
        )
    elif len(failed):
        how = "rows with score 0" if runs["score"].notna().any() else "rows without a result"
        yield (
            f"{len(failed)} of {len(runs)} trials failed: {how}, counted in every table. "
            f"Most often: {most_frequent(failed['reason'])}"
        )


def _phases(runs: pd.DataFrame, results: str) -> Iterator[str]:
    finished = runs["status"] == "finished"
    short = int((finished & (runs["timed_iterations"].fillna(0) == 0)).sum())
    if runs["iterations"].isna().all() and finished.any():
        yield (
            f"{results} holds no training iterations: rates and totals are those of the trials' summaries, phases of "
            "an iteration cannot be shown."
        )
    elif short:
        yield f"{count(short, 'finished trial')} without an iteration after the warm-up: no times there."


def label_problems(runs: pd.DataFrame) -> Iterator[str]:
    """Yield that no clock was measured, where that is so."""
    labels = runs["timing"].value_counts()
    if len(labels) and "measured" not in labels:
        shown = ", ".join(f"{number} {label}" for label, number in labels.items())
        yield f"No trial has a measured clock ({shown}): times and rates say nothing about scaling."


def session_problems(sessions: Sequence[Session]) -> Iterator[str]:
    """Yield in what the drivers of a study differed, as far as figures may depend on it."""
    for name, meaning in (("commit", "of this project"), ("cpu_model", "of the driver")):
        values = [value for session in sessions if (value := _of_session(session, name)) is not None]
        if len(distinct := dict.fromkeys(values)) > 1:
            word = "commits" if name == "commit" else "CPU models"
            yield f"The {len(sessions)} sessions ran with {len(distinct)} {word} {meaning}: {', '.join(distinct)}."
    if any((session.opened.provenance.get("git") or {}).get("dirty") for session in sessions):
        yield "At least one session ran with uncommitted changes: its commit does not tell the whole code."


def _of_session(session: Session, name: str) -> Any:
    provenance = session.opened.provenance
    return ((provenance.get("git") or {}).get("commit") or "")[:7] or None if name == "commit" else provenance.get(name)


def most_frequent(reasons: pd.Series) -> str:
    """Return the commonest reason, with its number where there are several."""
    known = reasons.dropna()
    if known.empty:
        return "no reason was recorded."
    top = known.value_counts()
    return f"{top.index[0].splitlines()[0]} ({top.iloc[0]} of {len(reasons)})."
