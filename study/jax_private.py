"""Private accesses of JAX, and its settings, which it reads once, when it is first used in a process.

JAX compiles the fused learner. `tests/contract/test_private.py` has a test for each access.
"""

import os
import sys
from importlib.util import find_spec

_FLAGS = ("--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1")
_PROCESSORS = "PJRT_NPROC"
"""Number of threads of a device, a variable without documentation: the flags alone leave a second one that runs
operations side by side."""


def jax_obstacle() -> str | None:
    """Return in one line why JAX cannot compute on one CPU thread in this process; None where it can.

    Imports and starts nothing. Private: JAX has no public call that says whether it was used without using it, and a
    person's own code may have used it with settings that would time its learning wrongly.
    """
    if find_spec("jax") is None:
        return "JAX is not installed"
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized() and not _is_set():
        return "other code of this process has used JAX before, with other threads or devices"
    return None


def use_one_cpu_thread() -> None:
    """Let JAX compute on one CPU thread of this process, as a trial reserves one; without a `jax_obstacle` alone."""
    if not _is_set():
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip()
        os.environ[_PROCESSORS] = "1"
    import jax

    # Else a graphics card would be taken that the trial has not reserved.
    if not jax.config.jax_platforms:  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cpu")


def _is_set() -> bool:
    flags = os.environ.get("XLA_FLAGS", "").split()
    return os.environ.get(_PROCESSORS) == "1" and all(flag in flags for flag in _FLAGS)
