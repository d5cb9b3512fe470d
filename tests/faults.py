"""Forty small wrong changes, each of which some test should notice: `python -m tests.faults [--only K] [--json FILE]`.

A fault is found by a piece of the program's text that is there once, wherever the file has moved to; where that text is
rewritten, the fault here is rewritten with it. Each is put into a copy of the checkout, with the tests that should see
it: those of the files whose names match `tests`. `--clean` runs the same tests without a fault, which must pass, else
the table says nothing.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("study", "analysis")
LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A wrong change."""

    subject: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Names of test files, with `*`."""


FAULTS = (
    Fault(
        subject="space",
        what="the learning rate falls with the minibatch instead of rising",
        old='(values["minibatch_size"] / REFERENCE_MINIBATCH) ** exponent',
        new='(REFERENCE_MINIBATCH / values["minibatch_size"]) ** exponent',
        tests=("test_space*.py", "test_holdup_spaces.py", "test_sequences.py"),
    ),
    Fault(
        subject="space",
        what="a sampled batch may be rounded to below its range",
        old="math.ceil(smallest(domain) / unit)",
        new="math.floor(smallest(domain) / unit)",
        tests=("test_holdup_spaces.py", "test_sequences.py"),
    ),
    Fault(
        subject="planning",
        what="the memory of all lanes is reckoned to every sampling process",
        old="round(LANE_MB * lanes / max(num_samplers, 1))",
        new="round(LANE_MB * lanes)",
        tests=("test_needs.py", "test_plan*.py"),
    ),
    Fault(
        subject="planning",
        what="hyper-threads count as cores where it is decided what is emulated",
        old="_Room(node.capacity, node.memory_mb, node.num_gpus)",
        new="_Room(node.num_cpus, node.memory_mb, node.num_gpus)",
        tests=("test_needs.py", "test_plan*.py"),
    ),
    Fault(
        subject="planning",
        what="hours of a trial are minutes",
        old="iterations=iterations) / 3600",
        new="iterations=iterations) / 60",
        tests=("test_plan*.py", "test_throughput_plan.py"),
    ),
    Fault(
        subject="timing label",
        what="trials side by side are forgotten when their clock is judged",
        old="num_cpus(spec, num_env_runners, execution) + beside, cluster.capacity",
        new="num_cpus(spec, num_env_runners, execution), cluster.capacity",
        tests=("test_timing.py", "test_throughput*.py", "test_sequences.py"),
    ),
    Fault(
        subject="admission",
        what="a trial overtakes though it would end too late",
        old="now + (1 - SLACK) * trial.duration",
        new="now + (1 - 10 * SLACK) * trial.duration",
        tests=("test_admission.py", "test_sequences.py"),
    ),
    Fault(
        subject="proposals",
        what="the model sees losses as gains",
        old="[value - median for value, median in zip(",
        new="[median - value for value, median in zip(",
        tests=("test_samplers.py", "test_sequences.py"),
    ),
    Fault(
        subject="race",
        what="of an odd number of settings the smaller half survives",
        old="math.ceil(len(scores) / 2)",
        new="math.floor(len(scores) / 2)",
        tests=("test_stages.py", "test_sequences.py"),
    ),
    Fault(
        subject="confirmation",
        what="the first run of the confirmation plays the episodes that the search has played",
        old="first_episode=(1 + after + number) * size",
        new="first_episode=(after + number) * size",
        tests=("test_stages.py", "test_confirmation_episodes.py", "test_sequences.py"),
    ),
    Fault(
        subject="stages",
        what="what runs now is forgotten when the budget is counted",
        old="spent + (num_running + 1) * each + later <=",
        new="spent + each + later <=",
        tests=("test_stages.py", "test_sequences.py"),
    ),
    Fault(
        subject="certificate",
        what="the verdict looks at the value and not at its lower bound",
        old="passed=difference.low > -tolerance",
        new="passed=difference.value > -tolerance",
        tests=("test_verdict.py", "test_certificate.py"),
    ),
    Fault(
        subject="certificate",
        what="a decision that does not follow from the records is not noticed",
        old="differing += _differences(asdict(record), _as_json(asdict(step.decision)), place)",
        new="pass",
        tests=("test_certificate.py",),
    ),
    Fault(
        subject="ledger",
        what="the warm-up counts in the rate",
        old="        if iteration <= WARMUP_ITERATIONS:\n            return self.timed_env_steps",
        new="        if iteration < WARMUP_ITERATIONS:\n            return self.timed_env_steps",
        tests=("test_conductor.py", "test_throughput_study.py", "test_sequences.py"),
    ),
    Fault(
        subject="records",
        what="a last line that is no record is cut off without a word",
        old="if not _BEGINNING.startswith(written[: len(_BEGINNING)]):",
        new="if written.startswith(_BEGINNING):",
        tests=("test_records.py", "test_corrupt_state.py"),
    ),
    Fault(
        subject="lock",
        what="a driver that may be at work elsewhere counts as gone",
        old="theirs.is_gone(mine, path, lock_is_free=lock_is_free)",
        new="theirs.is_gone(mine, path, lock_is_free=True)",
        tests=("test_lock.py",),
    ),
    Fault(
        subject="resume",
        what="a trial that lost its node is given up one time too early",
        old="if self._losses[trial, loss] > TAKEN_BACK[loss]:",
        new="if self._losses[trial, loss] >= TAKEN_BACK[loss]:",
        tests=("test_conductor.py", "test_losses.py", "test_sequences.py"),
    ),
    Fault(
        subject="trust",
        what="a folder that others may write to is resumed",
        old="if _others_may_write(status):",
        new="if False:",
        tests=("test_folder.py", "test_pickles.py"),
    ),
    Fault(
        subject="security",
        what="passwords in queries are shown",
        old="for secret in (_SECRET_OPTION, _SECRET_ENTRY, _SECRET_VALUE):",
        new="for secret in (_SECRET_OPTION, _SECRET_ENTRY):",
        tests=("test_received_folders.py", "test_provenance.py"),
    ),
    Fault(
        subject="MLflow mirror",
        what="the summary may stand before the last iteration",
        old="max(time_ms, attempt.time_ms + 1)",
        new="time_ms",
        tests=("test_mlflow_mirror.py",),
    ),
    Fault(
        subject="TensorBoard mirror",
        what="records of an attempt that is over are written to the file of the next one",
        old="if run is None or run.attempt != record.attempt:",
        new="if run is None:",
        tests=("unit/test_tensorboard.py", "contract/test_mirrors.py"),
    ),
    Fault(
        subject="Optuna mirror",
        what="trials that chose nothing are shown too",
        old="if row.ended and row.optuna_number is not None and row.trial not in self._there",
        new="if row.ended and row.trial not in self._there",
        tests=("test_optuna*.py", "test_mirror*.py"),
    ),
    Fault(
        subject="sampling",
        what="later processes get more than their share of an uneven batch",
        old="longer = min(max(extra - first, 0), lanes)",
        new="longer = min(max(extra, 0), lanes)",
        tests=("test_lanes.py",),
    ),
    Fault(
        subject="sampling",
        what="neighbouring runners share seeds",
        old="_seed(seed, _TRAINING, runner_index * _LANES_PER_RUNNER + env_index)",
        new="_seed(seed, _TRAINING, runner_index + env_index)",
        tests=("test_lanes.py",),
    ),
    Fault(
        subject="learning",
        what="an episode that terminated is bootstrapped",
        old="np.where(terminated, 0.0, bootstrap)",
        new="bootstrap",
        tests=("test_advantages.py",),
    ),
    Fault(
        subject="learning",
        what="PPO's surrogate takes the larger of the two",
        old="surrogate = jnp.minimum(advantages * ratio, advantages * clipped)",
        new="surrogate = jnp.maximum(advantages * ratio, advantages * clipped)",
        tests=("test_fused_learner.py",),
    ),
    Fault(
        subject="measures",
        what="CPU time of learner processes is not counted",
        old="main.cpu_time_s + step.learners_cpu_time_s + math.fsum",
        new="main.cpu_time_s + math.fsum",
        tests=("test_measure.py",),
    ),
    Fault(
        subject="evaluation",
        what="an episode is cut one step too late",
        old="self._steps[active] >= self._limit",
        new="self._steps[active] > self._limit",
        tests=("test_evaluation.py",),
    ),
    Fault(
        subject="launch",
        what="SLURM's nodes with equal CPUs count once",
        old="counts += [int(count)] * int(times or 1)",
        new="counts += [int(count)]",
        tests=("test_launch_schedulers.py", "test_launchers.py"),
    ),
    Fault(
        subject="launch",
        what="the minutes of a walltime run past sixty",
        old="{seconds // 60 % 60:02d}:{seconds % 60:02d}",
        new="{seconds // 60:02d}:{seconds % 60:02d}",
        tests=("test_launch_schedulers.py",),
    ),
    Fault(
        subject="doctor",
        what="the size of /dev/shm counts and not what is free",
        old='if shm["free_mb"] < SHM_MB',
        new='if shm["total_mb"] < SHM_MB',
        tests=("unit/test_doctor.py",),
    ),
    Fault(
        subject="statistics",
        what="a one-sided bound is that of a two-sided interval",
        old='(1 + level) / 2 if side == "both" else level',
        new="(1 + level) / 2",
        tests=("test_statistics.py", "test_verdict.py", "test_examples.py"),
    ),
    Fault(
        subject="scaling",
        what="an efficiency is divided by the wrong one of two resources",
        old="scaled(speed_up, reference / resources)",
        new="scaled(speed_up, resources / reference)",
        tests=("test_scaling*.py", "test_examples.py"),
    ),
    Fault(
        subject="models",
        what="the peak of the scalability law has a wrong sign",
        old="np.sqrt((1 - contention) / coherency)",
        new="np.sqrt((1 + contention) / coherency)",
        tests=("test_models_laws.py", "test_models*.py"),
    ),
    Fault(
        subject="tables",
        what="an interval without an upper end is closed",
        old='("]" if math.isfinite(high) else ")")',
        new='"]"',
        tests=("test_tables*.py", "test_examples.py"),
    ),
    Fault(
        subject="CSV",
        what="what begins with a minus is a formula for spreadsheets",
        old='_BEGINNING = r"[=+\\-@',
        new='_BEGINNING = r"[=+@',
        tests=("test_received_folders.py", "test_harmless.py", "test_csv*.py"),
    ),
    Fault(
        subject="loading",
        what="the last iteration of the warm-up is timed",
        old="        if iteration <= WARMUP_ITERATIONS:\n            return self.timed_env_steps",
        new="        if iteration < WARMUP_ITERATIONS:\n            return self.timed_env_steps",
        tests=("test_load*.py", "test_examples.py"),
    ),
    Fault(
        subject="status",
        what="a driver counts as hanging after any short silence",
        old="max(QUIET_S, QUIET_FACTOR * longest_pause_s)",
        new="min(QUIET_S, QUIET_FACTOR * longest_pause_s)",
        tests=("test_status.py",),
    ),
    Fault(
        subject="report",
        what="the answer of a search is the setting with the lowest score",
        old="first = -float(scores.where(",
        new="first = float(scores.where(",
        tests=("test_answers*.py", "test_report.py"),
    ),
    Fault(
        subject="command line",
        what="replicates share seeds",
        old="moved = [seed + number * span for seed in seeds]",
        new="moved = [seed + number for seed in seeds]",
        tests=("test_holdup_spaces.py",),
    ),
)


def places_of(text: str, checkout: Path) -> list[Path]:
    """Return the files of the program that hold a text, one for each time."""
    everything = (path for place in PLACES for path in sorted((checkout / place).rglob("*")))
    files = [path for path in everything if path.suffix in (".py", ".j2")]
    return [path for path in files for _ in range(path.read_text().count(text))]


def selection(fault: Fault, checkout: Path) -> list[str]:
    """Return the test files that should notice a fault, units first; end-to-end and other long ones are not asked."""
    found = {path for name in fault.tests for path in (checkout / "tests").rglob(name)}
    names = (str(path.relative_to(checkout)) for path in found if not {"e2e", "chaos"} & set(path.parts))
    return sorted(names, key=lambda name: (not name.startswith("tests/unit"), name))


def copy_checkout(target: Path) -> None:
    """Copy what git has or would take of this checkout."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(files: list[str], checkout: Path) -> tuple[int, str]:
    """Return pytest's exit code and what it printed."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            words, cwd=checkout, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, "no end"
    return done.returncode, done.stdout + done.stderr


def tried(fault: Fault, checkout: Path, *, clean: bool) -> dict[str, object]:
    """Return what the tests make of a fault."""
    places, files = places_of(fault.old, checkout), selection(fault, checkout)
    started = time.monotonic()
    if len(places) != 1:
        outcome, by = "not placed", f"the text is there {len(places)} times"
    elif not files:
        outcome, by = "missed", "no test file has such a name"
    else:
        (place,) = places
        before = place.read_text()
        try:
            if not clean:
                place.write_text(before.replace(fault.old, fault.new))
            code, text = run_tests(files, checkout)
        finally:
            place.write_text(before)
        first = re.search(r"^(?:FAILED|ERROR) (\S+)", text, flags=re.MULTILINE)
        by = first[1] if first else text.strip().splitlines()[-1] if text.strip() else ""
        outcome = {0: "missed", 1: "caught", 2: "caught"}.get(code, "no answer")
    return {
        "subject": fault.subject,
        "what": fault.what,
        "outcome": outcome,
        "by": by,
        "files": [str(path.relative_to(checkout)) for path in places],
        "seconds": round(time.monotonic() - started, 1),
    }


def chosen(only: str) -> Iterator[tuple[int, Fault]]:
    """Yield the faults that are asked for: numbers, ranges such as 3-5, or words of their subjects."""
    wanted = [part.strip() for part in only.split(",") if part.strip()]
    for number, fault in enumerate(FAULTS, start=1):
        spans = [part.partition("-") for part in wanted if part[0].isdigit()]
        in_span = any(int(low) <= number <= int(high or low) for low, _, high in spans)
        if not wanted or in_span or any(part.lower() in fault.subject.lower() for part in wanted):
            yield number, fault


def main() -> None:
    """Try the faults one by one and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="Numbers, ranges (3-5) or words of subjects, with commas.")
    parser.add_argument("--json", type=Path, help="File for the results.")
    parser.add_argument("--clean", action="store_true", help="Run the same tests without the faults.")
    parser.add_argument("--list", action="store_true", help="List the faults and the files that they are in.")
    asked = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        checkout = Path(folder)
        copy_checkout(checkout)
        for number, fault in chosen(asked.only):
            if asked.list:
                found = ", ".join(str(path.relative_to(checkout)) for path in places_of(fault.old, checkout))
                count = len(selection(fault, checkout))
                print(f"{number:2d} {fault.subject}: {fault.what} ({found}); {count} test files")
                continue
            result = {"number": number, **tried(fault, checkout, clean=asked.clean)}
            results.append(result)
            said = f"{result['outcome']:10} {result['seconds']:6} s  {fault.subject}: {fault.what}  [{result['by']}]"
            print(f"{number:2d} {said}", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(results, indent=1) + "\n")
    if results:
        print(", ".join(f"{count} {name}" for name, count in Counter(str(r["outcome"]) for r in results).items()))


if __name__ == "__main__":
    main()
