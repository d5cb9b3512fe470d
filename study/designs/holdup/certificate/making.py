"""The certificate of a hold-up study: made from the records and study.json alone, and checked against them.

Reads files; imports no engine.
"""

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from study.designs.holdup.certificate.content import Certificate
from study.designs.holdup.certificate.figures import FORMAT, Maker
from study.designs.holdup.certificate.record_rules import (
    broken_chain,
    broken_rules,
    cell_of,
    confirmation_is_over,
    planned_cells,
)
from study.errors import RecordError
from study.records.chain import heads
from study.records.files import below
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger
from study.records.records import Line, read_lines
from study.records.state import fold_lines
from study.space.spec import StudySpec
from study.space.variants import STAGES

__all__ = ["Certificate", "make_certificate", "verify"]

RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""Figures that differ by less are the same: machines round the last digits differently."""
AT_MOST = 30
"""Differences that a message lists."""


def make_certificate(folder: StudyFolder) -> Certificate:
    """Return the certificate of a study whose confirmation is complete.

    Raises:
        RecordError: There is no study or no hold-up study, it has not been confirmed yet (says how to go on), or its
            records break a law (names every one).
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
        RecordError: It cannot be read, the records break a law or are others than those of the digest, or figures
            differ: names each one by its place, as it is written and as it is recomputed.
    """
    given = Path(path)
    file = StudyFolder(given).certificate if given.is_dir() else given
    again = f"python -m study certificate write {shlex.quote(str(file.parent))}"
    fix = f"Write it again from the records with `{again}`."
    try:
        if below(file.parent, file.name).exists() and not file.is_file():
            raise RecordError(
                where=str(file), rule="must be a file", got="something else", fix=fix, code="certificate-not-a-file"
            )
        written = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise RecordError(where=str(file), rule="no certificate here", fix=fix, code="no-certificate") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(
            where=str(file),
            rule="must be a certificate",
            got=f"a damaged file ({error})",
            fix=fix,
            code="certificate-damaged",
        ) from error
    if not isinstance(written, dict) or written.get("format") != FORMAT:
        got = written.get("format") if isinstance(written, dict) else type(written).__name__
        raise RecordError(
            where=str(file),
            rule=f"this version reads format {FORMAT}",
            got=f"{got!r}",
            fix=fix,
            code="certificate-of-another-format",
        )
    folder = StudyFolder(file.parent)
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
        listed = differing[:AT_MOST] + [f"… and {len(differing) - AT_MOST} more"] * (len(differing) > AT_MOST)
        lines = "\n".join(f"  {line}" for line in listed)
        raise RecordError(
            where=str(file),
            rule=f"must say what the records say, {count}:\n{lines}\n",
            fix=fix,
            code="certificate-differs-from-records",
        )
    return folder


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
                yield f"{inner}: written {_shown(written, key)}, recomputed {_shown(recomputed, key)}"
    elif isinstance(written, list) and isinstance(recomputed, list) and len(written) == len(recomputed):
        for index, (first, second) in enumerate(zip(written, recomputed, strict=True)):
            yield from _differences(first, second, f"{place}.{index}")
    elif not _equal(written, recomputed):
        yield f"{place}: written {json.dumps(written)}, recomputed {json.dumps(recomputed)}"


def _shown(content: Mapping[str, Any], key: str) -> str:
    return json.dumps(content[key]) if key in content else "nothing"


def _equal(first: Any, second: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (first, second))
    if numbers:
        return math.isclose(first, second, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(first) is type(second) and bool(first == second)


def _read(folder: StudyFolder, *, certified: str = "") -> tuple[StudyIdentity, StudySpec, list[Line], list[str]]:
    """Return identity, spec, lines and heads of the hash chain of the records of a study that may be certified.

    Args:
        folder: The study.
        certified: Name of the certificate that it has already, if there is one.

    Raises:
        RecordError: As `make_certificate`.
    """
    identity = folder.identity()
    spec = identity.parse()
    if spec.holdup is None:
        rule = "a certificate needs a hold-up study"
        raise RecordError(
            where=str(folder.path),
            rule=rule,
            got="a space without `holdup`",
            fix="Add the section and start a new study.",
            code="certificate-of-another-kind",
        )
    if folder.records == folder.packed_results:
        rule = "a certificate rests on the training iterations too"
        raise RecordError(
            where=str(folder.records),
            rule=rule,
            got="a study packed without them",
            fix="Pack it without --results-only.",
            code="certificate-without-iterations",
        )
    lines = list(read_lines(folder.records))
    if spec.digest() != identity.digest:
        rule = f"digest of the spec must be {spec.digest()}"
        raise RecordError(
            where=str(folder.identity_file),
            rule=rule,
            got=f"{identity.digest}",
            fix="Restore the file from a backup.",
            code="certificate-spec-changed",
        )
    chain = list(islice(heads(folder.records), len(lines)))
    try:
        broken = [*broken_chain(lines, chain), *broken_rules(lines, spec)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(
            where=str(folder.records),
            rule="the records must obey the protocol",
            got=f"some that nothing follows from ({type(error).__name__}: {error})",
            fix="Restore the file from a backup.",
            code="protocol-not-followed",
        ) from error
    if broken:
        listed = "\n".join(f"  {rule}" for rule in broken[:AT_MOST])
        more = f"\n  … and {len(broken) - AT_MOST} more" if len(broken) > AT_MOST else ""
        count = f"{len(broken)} rule{'s'[: len(broken) - 1]}"
        raise RecordError(
            where=str(folder.records),
            rule="the records must obey the protocol",
            got=f"{count} broken:\n{listed}{more}\n",
            fix="Restore the file from a backup; without one, this study proves nothing and has to be run again.",
            code="protocol-broken",
        )
    _check_confirmed(folder, identity, fold_lines(lines, folder.records), certified)
    return identity, spec, lines, chain


def _check_confirmed(folder: StudyFolder, identity: StudyIdentity, ledger: Ledger, certified: str) -> None:
    planned = planned_cells(ledger.decisions)
    ended = {cell_of(row) for row in ledger.rows.values() if row.stage == "confirm" and row.ended}
    if planned and not set(planned) - ended and confirmation_is_over(ledger):
        return
    stage = (ledger.decisions[-1].next_stage if ledger.decisions else None) or STAGES[0]
    progress = f" ({len(ended & set(planned))} of {len(planned)} trials)" if stage == "confirm" else ""
    if certified:
        raise RecordError(
            where=str(folder.records),
            rule=f"must hold the confirmation that {certified} speaks of",
            got=f"a study at the stage {stage}{progress}: the records were cut",
            fix="Restore the file from a backup.",
            code="records-cut",
        )
    space, out = shlex.quote(str(folder.space_file)), shlex.quote(str(folder.path.parent))
    raise RecordError(
        where=str(folder.path),
        rule="a certificate needs a confirmed study",
        got=f"one at the stage {stage}{progress}",
        fix=f"Go on with python run_study.py --space {space} --name {shlex.quote(identity.name)} --out {out} --resume",
        code="study-not-confirmed",
    )
