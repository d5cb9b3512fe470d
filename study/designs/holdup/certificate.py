"""The certificate of a hold-up study: made from the records and study.json alone, and checked against them.

It is one value, `certificate.json`; `certificate.md` is a page of it. Decisions and figures are made again by the
functions that decided.
"""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from study.designs.holdup.figures import FORMAT, as_json, content_of
from study.designs.holdup.page import page
from study.designs.holdup.stages import SEARCH, check_version, decide, requests_of
from study.errors import RecordError
from study.records.files import write_atomically
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger
from study.records.records import RESTORE, Line, StageDecided, StudyOpened, TrialEnded, read_lines
from study.space.parsing import parse_space, read_space
from study.space.spec import StudySpec
from study.text import count

ABSOLUTE, RELATIVE = 1e-9, 2e-6
"""Figures that differ by less are the same: machines round the last digits differently, and packed records can have
seven digits."""
AT_MOST = 30
"""Differences that a message lists."""
BY_THE_CLOCK = ("cpu_s_reserved", "foreign_cores", "stolen_cores")
"""What the summary of a trial holds beside sums and means of its records."""


def make_certificate(folder: StudyFolder) -> dict[str, Any]:
    """Return the certificate of a study whose confirmation is complete; its keys are those of `content_of`.

    Raises:
        RecordError: There is no study or no hold-up study, it has not been confirmed yet (says how to go on), or its
            decisions are others than its records lead to (names the first ones).
    """
    identity = folder.identity()
    spec, where = identity.parse(), str(folder.records)
    if spec.holdup is None:
        rule, got = "a certificate needs a hold-up study", "a space without `holdup`"
        raise RecordError(where=str(folder.path), rule=rule, got=got, fix="Add the section and start a new study.")
    lines = list(read_lines(folder.records))
    check_version([line.record for line in lines if isinstance(line.record, StageDecided)])
    _check_registered(folder, identity, spec, lines)
    try:
        differing, ledger = followed(lines, spec)
        if not differing:
            _check_confirmed(folder, identity, spec, ledger)
            return content_of(identity, spec, ledger, lines)
    except RecordError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        rule, got = "a certificate must follow from the records", f"{type(error).__name__}: {error}"
        raise RecordError(where=where, rule=rule, got=got, fix=RESTORE) from error
    raise RecordError(where=where, rule=_told(differing, "lead to what it says was decided"), fix=RESTORE)


def write_certificate(folder: StudyFolder) -> dict[str, Any]:
    """Write `certificate.json` and `certificate.md` into the study folder, and return the certificate.

    Raises:
        RecordError: As `make_certificate`; or the folder cannot be written.
    """
    content = make_certificate(folder)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        write_atomically(folder.certificate, text + "\n")
        write_atomically(folder.certificate_page, page(content))
    except OSError as error:
        rule, fix = f"must be writable ({error.strerror})", "Free some space, or check its permissions."
        raise RecordError(where=str(folder.path), rule=rule, fix=fix) from error
    return content


def verify(path: str | Path) -> StudyFolder:
    """Make every decision and every figure again from the records, and compare; return the study's folder.

    That shows that the arithmetic is right. It does not show that the records are those of a training.

    Args:
        path: `certificate.json`, or the study folder that holds it.

    Raises:
        RecordError: As `make_certificate`; or no certificate can be read, or figures differ: names the first ones.
    """
    given = Path(path)
    folder = StudyFolder(given.parent if given.name == StudyFolder(given).certificate.name else given)
    content, file, shown = make_certificate(folder), folder.certificate, folder.certificate_page
    fix = f"Write it again from the records with `python -m study certificate write {shlex.quote(str(file.parent))}`."
    try:
        written = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(
            where=str(file), rule="must be a certificate", got=f"{type(error).__name__}: {error}", fix=fix
        ) from error
    if (found := written.get("format") if isinstance(written, dict) else type(written).__name__) != FORMAT:
        raise RecordError(where=str(file), rule=f"this version reads format {FORMAT}", got=repr(found), fix=fix)
    differing = list(differences(written, content, ""))
    if not differing and shown.exists() and not (shown.is_file() and shown.read_bytes() == page(content).encode()):
        differing = [f"{shown.name}: must be the page of these figures, got another text"]
    if differing:
        raise RecordError(where=str(file), rule=_told(differing, "say what the records say"), fix=fix)
    return folder


def _told(differing: Sequence[str], must: str) -> str:
    """Return what must hold, with the number of differences and the first ones."""
    listed = "\n".join(f"  {line}" for line in differing[:AT_MOST])
    return f"must {must}, {count(len(differing), 'difference')}:\n{listed}\n"


def followed(lines: Sequence[Line], spec: StudySpec) -> tuple[list[str], Ledger]:
    """Return what differs where summaries and decisions are made again from the records before them, and the end."""
    ledger, differing = Ledger(), list[str]()
    for line in lines:
        record, place = line.record, f"line {line.seq + 1}"
        if isinstance(record, TrialEnded) and (row := ledger.rows.get(record.trial)) is not None:
            again = row.summarise(spec, record.status, moment=line.time)
            known = [name for name in again if name in record.summary and name not in BY_THE_CLOCK]
            written, made = ({name: summary[name] for name in known} for summary in (record.summary, again))
            differing += differences(written, as_json(made), f"{place}: trial {record.trial}")
        elif isinstance(record, StageDecided):
            place += f": decision {record.number} ({record.phase})"
            try:
                decision, frozen = decide(spec, ledger.rows, ledger.decisions)
            except RecordError as error:
                return [*differing, f"{place}: {error}"], ledger
            differing += differences(as_json(asdict(record)), as_json(asdict(decision)), place)
            if frozen is not None:
                on_record = None if ledger.frozen is None else asdict(ledger.frozen)
                differing += differences(on_record, as_json(asdict(frozen)), f"{place}: settings_frozen")
        ledger.apply(record, line.time)
    return differing, ledger


def differences(written: Any, again: Any, place: str) -> Iterator[str]:
    """Yield one line for every figure of two JSON values that differs."""
    one, two = dict(_figures(written, place)), dict(_figures(again, place))
    for each in {**two, **one}:
        if each not in one or each not in two or not _same(one[each], two[each]):
            here, there = (json.dumps(found[each]) if each in found else "nothing" for found in (one, two))
            yield f"{each}: written {here}, recomputed {there}"


def _figures(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield place and value of every figure in a JSON value; an empty list or mapping is one."""
    inner = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    for key, each in inner.items():
        yield from _figures(each, f"{place}.{key}" if place else str(key))
    if not inner:
        yield place, value


def _same(first: Any, second: Any) -> bool:
    """Return whether two figures are equal; floats but for the last digits."""
    kinds = {type(first), type(second)}
    if float in kinds and kinds <= {float, int}:
        return math.isclose(first, second, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return len(kinds) == 1 and bool(first == second)


def _check_registered(folder: StudyFolder, identity: StudyIdentity, spec: StudySpec, lines: Sequence[Line]) -> None:
    """Refuse a study whose space is not the one that its first record names: its rules were changed afterwards.

    The space file of a script is not read: that would run the script.
    """
    first = next((line.record for line in lines if isinstance(line.record, StudyOpened)), None)
    spaces = {folder.identity_file: spec}
    if folder.space_file.exists() and spec.config is None:
        spaces[folder.space_file] = identity.settle(parse_space(read_space(folder.space_file)))
    for file, space in spaces.items():
        if first is not None and space.digest() != first.space_digest:
            rule, got = f"must be the space of the first record, {first.space_digest or 'none'}", space.digest()
            raise RecordError(where=str(file), rule=rule, got=got, fix=RESTORE)


def _check_confirmed(folder: StudyFolder, identity: StudyIdentity, spec: StudySpec, ledger: Ledger) -> None:
    """Refuse a study that is not at the end of the protocol; says how far its stage is."""
    decisions = ledger.decisions
    if (stage := decisions[-1].next_stage if decisions else SEARCH) is None:
        return
    here = [trial for trial, each in enumerate(requests_of(spec, decisions)) if each.stage == stage]
    ended = sum(trial in ledger.rows and ledger.rows[trial].ended for trial in here)
    got = f"one at the stage {stage} ({ended} of {len(here)} trials)"
    place = ["--name", identity.name, "--out", str(folder.path.parent)]
    command = shlex.join(["python", "run_study.py", "--space", str(folder.space_file), *place, "--resume"])
    rule, fix = "a certificate needs a confirmed study", f"Go on with `{command}`."
    raise RecordError(where=str(folder.records), rule=rule, got=got, fix=fix)
