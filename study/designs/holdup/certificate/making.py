"""The certificate of a hold-up study: made from the records and study.json alone, and checked against them.

Reads files; imports no engine.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from study.designs.holdup.certificate.content import Certificate
from study.designs.holdup.certificate.figures import FORMAT, Maker
from study.designs.holdup.certificate.record_rules import broken_chain, broken_rules
from study.designs.holdup.certificate.recorded import same
from study.designs.holdup.machine import requests_of
from study.designs.holdup.phases import check_version
from study.errors import RecordError
from study.records.chain import heads
from study.records.files import below
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger
from study.records.records import Line, StageDecided, read_lines
from study.records.state import fold_lines
from study.space.space_file import as_options
from study.space.spec import StudySpec
from study.space.variants import STAGES
from study.text import count

__all__ = ["Certificate", "make_certificate", "verify"]

ABSOLUTE = 1e-9
"""Figures that differ by less are the same: machines round the last digits differently."""
RESTORE = "Restore the file from a backup."
AT_MOST = 30
"""Differences that a message lists."""


def make_certificate(folder: StudyFolder) -> Certificate:
    """Return the certificate of a study whose confirmation is complete.

    Raises:
        RecordError: There is no study or no hold-up study, it has not been confirmed yet (says how to go on), or its
            records break a rule (names every one).
    """
    return Maker(*_read(folder)).certificate()


def verify(path: str | Path, *, frozen: str | None = None) -> StudyFolder:
    """Recompute a certificate from the records beside it; return the study's folder.

    That finds records that contradict themselves or the certificate. It does not find records that somebody rewrote
    consistently, and a certificate written from these: for that, give the digest that somebody held, or train again.

    Args:
        path: `certificate.json`, or the study folder that holds it.
        frozen: Digest of the records that was printed, and sent to MLflow, before the first test seed ran.

    Raises:
        RecordError: There is no study, it cannot be read, the records break a rule or are others than those of the
            digest, or figures differ: names each one by its place, as it is written and as it is recomputed.
    """
    given = Path(path)
    folder = StudyFolder(given)
    if given.name == folder.certificate.name:
        folder = StudyFolder(given.parent)
    folder.identity()  # a path without a study is refused as such
    file = folder.certificate
    fix = f"Write it again from the records with `python -m study certificate write {shlex.quote(str(file.parent))}`."
    written = _written(file, fix)
    certificate = Maker(*_read(folder, certified=file.name)).certificate()
    if frozen is not None and frozen.strip().lower() != (got := certificate.study["frozen_chain"]):
        raise RecordError(
            where=str(folder.records),
            rule=f"the digest of the records before the first test seed must be {frozen!r}",
            got=f"{got}: what the settings were chosen by was changed, or the digest is of another study",
            fix=f"Compare the id of the study, {certificate.study['id']}; restore the file from a backup.",
            code="records-changed-before-tests",
        )
    differing = list(_differences(written, certificate.to_json(), ""))
    page = folder.certificate_page
    if not differing and page.exists() and _text(page) != certificate.to_markdown():
        differing = [f"{page.name}: must be the page of these figures, got another text"]
    if differing:
        count = "1 figure differs" if len(differing) == 1 else f"{len(differing)} figures differ"
        rule = f"must say what the records say, {count}:\n{_listed(differing)}\n"
        raise RecordError(where=str(file), rule=rule, fix=fix, code="certificate-differs-from-records")
    return folder


def _written(file: Path, fix: str) -> dict[str, Any]:
    """Return the certificate that a file holds.

    Raises:
        RecordError: It holds none.
    """
    where = str(file)
    try:
        if below(file.parent, file.name).exists() and not file.is_file():
            raise RecordError(where=where, rule="must be a file", fix=fix, code="certificate-not-a-file")
        written = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise RecordError(where=where, rule="no certificate here", fix=fix, code="no-certificate") from error
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, RecordError):
            raise
        got = f"a damaged file ({error})"
        raise RecordError(
            where=where, rule="must be a certificate", got=got, fix=fix, code="certificate-damaged"
        ) from error
    found = written.get("format") if isinstance(written, dict) else type(written).__name__
    if found != FORMAT:
        rule = f"this version reads format {FORMAT}"
        raise RecordError(where=where, rule=rule, got=f"{found!r}", fix=fix, code="certificate-of-another-format")
    return dict(written)


def _listed(lines: Sequence[str]) -> str:
    """Return the first of many lines, indented, and how many more there are."""
    more = [f"… and {len(lines) - AT_MOST} more"] if len(lines) > AT_MOST else []
    return "\n".join(f"  {line}" for line in [*lines[:AT_MOST], *more])


def _text(page: Path) -> str | None:
    """Return the page as it is; None when it is no text that can be read."""
    try:
        return page.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _differences(written: Any, recomputed: Any, place: str) -> Iterator[str]:
    """Yield one line for every figure that differs."""
    if isinstance(written, dict) and isinstance(recomputed, dict):
        for key in [*recomputed, *(key for key in written if key not in recomputed)]:
            inner = f"{place}.{key}" if place else str(key)
            if key in written and key in recomputed:
                yield from _differences(written[key], recomputed[key], inner)
            else:
                here, there = (json.dumps(each[key]) if key in each else "nothing" for each in (written, recomputed))
                yield f"{inner}: written {here}, recomputed {there}"
    elif isinstance(written, list) and isinstance(recomputed, list) and len(written) == len(recomputed):
        for index, (first, second) in enumerate(zip(written, recomputed, strict=True)):
            yield from _differences(first, second, f"{place}.{index}")
    elif not same(written, recomputed, least=ABSOLUTE):
        yield f"{place}: written {json.dumps(written)}, recomputed {json.dumps(recomputed)}"


def _read(folder: StudyFolder, *, certified: str = "") -> tuple[StudyIdentity, StudySpec, list[Line], list[str]]:
    """Return identity, spec, lines and heads of the hash chain of the records of a study that may be certified.

    Raises:
        RecordError: As `make_certificate`; where `certified` names a certificate, the records lack what it is about.
    """
    identity, records = folder.identity(), str(folder.records)
    spec = identity.parse()
    if spec.holdup is None:
        raise RecordError(
            where=str(folder.path),
            rule="a certificate needs a hold-up study",
            got="a space without `holdup`",
            fix="Add the section and start a new study.",
            code="certificate-of-another-kind",
        )
    if folder.records == folder.packed_results:
        raise RecordError(
            where=records,
            rule="a certificate rests on the training iterations too",
            got="a study packed without them",
            fix="Pack it without --results-only.",
            code="certificate-without-iterations",
        )
    lines = list(read_lines(folder.records))
    check_version([line.record for line in lines if isinstance(line.record, StageDecided)])
    if spec.digest() != identity.digest:
        raise RecordError(
            where=str(folder.identity_file),
            rule=f"digest of the spec must be {spec.digest()}",
            got=f"{identity.digest}",
            fix=RESTORE,
            code="certificate-spec-changed",
        )
    chain, rule = list(islice(heads(folder.records), len(lines))), "the records must obey the protocol"
    try:
        broken = [*broken_chain(lines, chain), *broken_rules(lines, spec)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        got = f"some that nothing follows from ({type(error).__name__}: {error})"
        raise RecordError(where=records, rule=rule, got=got, fix=RESTORE, code="protocol-not-followed") from error
    if broken:
        raise RecordError(
            where=records,
            rule=rule,
            got=f"{count(len(broken), 'rule')} broken:\n{_listed(broken)}\n",
            fix="Restore the file from a backup; without one, this study proves nothing and has to be run again.",
            code="protocol-broken",
        )
    _check_confirmed(folder, identity, spec, fold_lines(lines, folder.records), certified)
    return identity, spec, lines, chain


def _check_confirmed(
    folder: StudyFolder, identity: StudyIdentity, spec: StudySpec, ledger: Ledger, certified: str
) -> None:
    """Refuse a study whose confirmation is not complete: by a decision on it, or by the study's end."""
    decisions, requests = ledger.decisions, requests_of(spec, ledger.decisions)
    planned = {trial for trial, request in enumerate(requests) if request.stage == "confirm"}
    ended = {trial for trial in planned if trial in ledger.rows and ledger.rows[trial].ended}
    following = [decision.next_stage for decision in decisions if decision.stage == "confirm"]
    if planned and planned == ended and (ledger.complete or (following and following[-1] != "confirm")):
        return
    stage = (decisions[-1].next_stage if decisions else None) or STAGES[0]
    progress = f" ({len(ended)} of {len(planned)} trials)" if stage == "confirm" else ""
    if certified:
        raise RecordError(
            where=str(folder.records),
            rule=f"must hold the confirmation that {certified} speaks of",
            got=f"a study at the stage {stage}{progress}: the records were cut",
            fix=RESTORE,
            code="records-cut",
        )
    place = ["--name", identity.name, "--out", str(folder.path.parent)]
    command = shlex.join(["python", "run_study.py", *as_options(folder.space_file), *place, "--resume"])
    raise RecordError(
        where=str(folder.path),
        rule="a certificate needs a confirmed study",
        got=f"one at the stage {stage}{progress}",
        fix=f"Go on with `{command}`.",
        code="study-not-confirmed",
    )
