"""A new study or a resumed one: what a person asked for against what is in the folder, and what runs it."""

import contextlib
import platform
import shlex
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from msgspec import structs

from study.designs.registry import design_of
from study.errors import RecordError, SpaceError, wrong_option
from study.machine.host import cpu_model, current_job, usable_cpus
from study.mirrors.tracking_uri import DEFAULT_TRACKING_URI, ask_mlflow, asked_uri, check_tracking_uri
from study.records.files import check_own
from study.records.folder import FORMAT, NAME, NAME_RULE, StudyFolder, StudyIdentity
from study.records.ledger import Ledger, ledger_of
from study.records.records import RESTORE
from study.space.spec import StudySpec, as_of_now
from study.text import count, mask_credentials

Address = Annotated[
    str | None,
    typer.Option(
        help="Ray to join: auto, or host:port. Without it RAY_ADDRESS if set, else a private local Ray ('local')."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder that holds the studies.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything about a run that is not part of the study's question; most are options of `study run` too."""

    address: Address = None
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            help="MLflow: http://…, postgresql://…; else MLFLOW_TRACKING_URI, else sqlite:///mlflow.db. A resume goes "
            "on with the study's own."
        ),
    ] = None
    optuna_storage: Annotated[
        str | None,
        typer.Option(help="Database that shows the trials to optuna-dashboard, e.g. postgresql://… or sqlite:///…."),
    ] = None
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files for TensorBoard too; a resume goes on with them.")
    ] = False
    out: Out = Path("studies")
    name: Annotated[str, typer.Option(help="Name of the study; by default that of the space.")] = ""
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study of that name.")] = False
    resume_or_start: Annotated[
        bool, typer.Option("--resume-or-start", help="Continue it if there is one, else start: for requeued jobs.")
    ] = False
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Resume although another host holds the study: you know that its driver is gone."
        ),
    ] = False
    until: Annotated[str | None, typer.Option(help="Last stage of a hold-up study, such as race.")] = None
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on where the first trials all fail in the same way.")
    ] = False
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the logs of Ray and of the trials.")] = False
    time_budget_s: float | None = None
    space: str = "python"
    """Where the spec came from, for people."""
    space_text: str = ""
    """The space file as written; kept beside the records."""


def checked_name(name: str) -> str:
    """Return a study's name, which becomes a folder's; refuse what cannot be one."""
    if not NAME.fullmatch(name):
        raise wrong_option("--name", NAME_RULE, got=f"'{name}'", fix="Choose another name.")
    return name


def is_resumed(folder: StudyFolder, options: RunOptions) -> bool:
    """Return whether a study is resumed.

    Raises:
        SpaceError: The name cannot be one, or is taken; or there is nothing to resume.
        RecordError: The folder is another user's, or cannot be used.
    """
    checked_name(options.name)  # from Python; the command line has looked
    exists = folder.exists()
    if exists and not (options.resume or options.resume_or_start):
        raise name_taken(folder, options)
    if options.resume and not (exists or options.resume_or_start):
        rule, got = "there must be a study to resume", f"'{options.name}' ({folder.path} holds none)"
        fix = "Check --name and --out, or start it without --resume."
        raise SpaceError.of(options.space, where="--resume", rule=rule, got=got, fix=fix)
    if exists:
        check_own(folder.path)
        folder.check_unpacked()
    return exists


def name_taken(folder: StudyFolder, options: RunOptions) -> SpaceError:
    """Return the error of a start where a study is already."""
    rule, got = "a new study needs a new name", f"'{options.name}' ({folder.path} exists)"
    fix = "Continue that study with --resume, or choose another --name."
    return SpaceError.of(options.space, where="--name", rule=rule, got=got, fix=fix)


def new_identity(spec: StudySpec, options: RunOptions) -> StudyIdentity:
    """Return the identity of a new study.

    Raises:
        ClusterError: There can be no MLflow, or the Optuna storage is not a database that Optuna can use.
    """
    storage = options.optuna_storage
    return StudyIdentity(
        format=FORMAT,
        study_id=uuid.uuid4().hex[:12],
        name=options.name,
        created=time.time(),
        tracking_uri=check_tracking_uri(asked_uri(options.tracking_uri) or DEFAULT_TRACKING_URI),
        space=options.space,
        spec=spec.to_json(),
        digest=spec.digest(),
        optuna_storage=None if storage is None else check_tracking_uri(storage, "Optuna storage"),
    )


def resumed_identity(folder: StudyFolder, spec: StudySpec, options: RunOptions) -> StudyIdentity:
    """Return the identity of the study in `folder`, with the MLflow and the Optuna storage that the person names now.

    Raises:
        RecordError: It was started with another space.
        ClusterError: Another MLflow or storage that the person names does not answer.
    """
    identity, where = folder.identity(), str(folder.path)
    before, gone = as_of_now(identity.spec)
    try:
        begun, unknown = identity.parse(), " and ".join(gone)
    except SpaceError as error:
        unknown = str(error.faults[0])
    if unknown:
        rule = "this version must know the study's space"
        fix = "Resume it with the version that started it, or start a new study with --name."
        raise RecordError(where=where, rule=rule, got=unknown, fix=fix)
    if begun.digest() != spec.digest():
        now, script = spec.to_json(), before.get("script")
        rule, fix = "a resume needs the space that the study was started with", f"Name its own: {folder.space_file}"
        got = f"other values of {', '.join(_differences(begun.to_json(), now))}"
        if script and now["script"] and before.get("config") == spec.config and script != now["script"]:
            rule = "a resume needs the script that the study was started with"
            fix = f"Restore {now['script']['source']['file']}, and the modules, files and versions that it reads"
        raise RecordError(where=where, rule=rule, got=got, fix=f"{fix}, or start a new study with --name.")
    # What it has already is not probed: an outage does not stop a resume.
    uri, storage = options.tracking_uri, options.optuna_storage
    if uri is not None and (other := check_tracking_uri(uri)) != identity.tracking_uri:
        ask_mlflow(other)
        identity = structs.replace(identity, tracking_uri=other)
    if storage is not None:
        identity = structs.replace(identity, optuna_storage=check_tracking_uri(storage, "Optuna storage"))
    return identity


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if (place, key) in (("search", "num_trials"), ("", "description")) or before == after:  # these may change
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from (f"{key}.{name}" for name in _differences(before, after, key))
        else:
            yield key


def take_up(spec: StudySpec, folder: StudyFolder) -> tuple[StudySpec, Ledger]:
    """Return the spec with at least the trials that were planned before, and the state of a locked study."""
    ledger = ledger_of(folder.records)
    if not ledger.sessions and folder.table.exists():
        rule, got = "must hold the trials that trials.csv shows", "none"
        raise RecordError(where=str(folder.records), rule=rule, got=got, fix=f"{RESTORE} Or move away trials.csv.")
    if spec.search.num_trials is not None and spec.search.num_trials < ledger.num_trials:
        spec = spec.having(search={"num_trials": ledger.num_trials})
    return spec, ledger


def nothing_left(spec: StudySpec, ledger: Ledger) -> bool:
    """Return whether a study is complete, and asks for no further trial: then no Ray needs to start."""
    ended = {trial for trial, row in ledger.rows.items() if row.ended}
    return ledger.complete and {each.trial for each in design_of(spec).requests(spec, ledger.decisions)} <= ended


def continuing(spec: StudySpec, ledger: Ledger) -> str:
    """Return how far the study is that a driver goes on with, as a line."""
    counts, planned = ledger.counts(), max(spec.search.num_trials or 0, ledger.num_trials)
    again = counts["interrupted"] + counts["running"]
    word = "Complete" if ledger.complete and planned == ledger.num_trials else "Continuing"
    ended = f"{counts['finished'] + counts['failed']:,} of {count(planned, 'trial')} ended"
    return f"{word}: {ended}" + (f"; to run again: {again:,}." if again else ".")


# --- where and with what a driver runs, as it is recorded -------------------------------------------------------------

_PACKAGES = "runner-scaling-study ray torch gymnasium optuna mlflow numpy jax jaxlib envpool"
_CHECKOUT = Path(__file__).resolve().parents[2]


def provenance(own_modules: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what a reader needs to know about this driver, years later, as JSON values; no secrets.

    `usable_cpus` are the logical CPUs that a scheduler or a container lets it use; `own_modules` are the user's own
    that the environment consists of, with their digests where these were taken.
    """
    job, versions = current_job(), dict[str, str | None].fromkeys(_PACKAGES.split())
    for name in versions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    words = [mask_credentials(shlex.join(sys.argv))]
    with contextlib.suppress(ValueError):  # the mask has taken a quote
        words = shlex.split(words[0])
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_state(_CHECKOUT),
        "versions": {"python": platform.python_version(), **versions},
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "physical_cpus": psutil.cpu_count(logical=False),
        "logical_cpus": psutil.cpu_count(),
        "usable_cpus": len(usable_cpus()),
        "memory_mb": psutil.virtual_memory().total // 10**6,
        "command": words,
        "scheduler": None if job is None else {"name": job.scheduler, "job": job.id},
        "own_modules": dict(own_modules),
    }


def git_state(checkout: Path) -> dict[str, Any] | None:
    """Return commit and dirty flag of a checkout; None where there is none, as after an installation."""
    words = ["git", "--no-optional-locks", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*"]
    if (checkout / ".git").exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([*words, "--dirty"], capture_output=True, timeout=5.0, check=True)
            commit, dash, _ = done.stdout.decode().strip().partition("-")
            return {"commit": commit, "dirty": bool(dash)}
    return None
