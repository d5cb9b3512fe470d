"""Variables of the environment by which Ray and Tune are configured, and setting them for a while. Standard library.

Ray documents few of them: `tests/contract/test_private.py` checks that the installed one still reads each.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping

TUNE_ENVIRONMENT = {
    # Admission is ours (study.driver.admission): Tune may place every trial that we hand out.
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",
    # Records are ours; Tune's snapshots and log files would only cost time in its event loop.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    # Else Tune starts a trial anew by itself, under the same attempt, when its node is drained.
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",
    # The study's own handlers end it cleanly.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}
"""Environment of the driver while Tune runs."""

RAY_ENVIRONMENT = {
    # Ray lowers the priority of its workers, so that any foreign process on the machine disturbs a measurement.
    "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment of every Ray that this project starts."""
SHIPPING_ENVIRONMENT = {
    # What git ignores may well be needed: compiled parts of a package, its data. `.rayignore` is respected.
    "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1",
}
"""Environment of a driver that brings modules to the nodes of a Ray."""
PRIVATE_ENVIRONMENT = {
    **RAY_ENVIRONMENT,
    # No cluster: Ray's processes take the loopback address, and listen nowhere else. So Ray does on macOS and Windows.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Gloo, by which several learners meet, would listen on the address of the host's name.
    "GLOO_SOCKET_IFNAME": "lo",
}
"""Environment of a Ray on one machine, for nobody else."""


@contextlib.contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables for a while; None unsets one."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
