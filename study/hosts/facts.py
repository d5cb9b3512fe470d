"""The types of what `study.hosts.probe` reads on a node. Pure.

All are plain dictionaries of JSON values: they travel from nodes that may not have this project at all. Memory and disk
are in MB (2**20 bytes). None stands for "the system does not tell", unless a field says otherwise.
"""

from typing import TypedDict


class IdentityFacts(TypedDict):
    """Which machine."""

    hostname: str
    boot_id: str
    """The same for all that runs under one kernel."""
    cpu_model: str


class SoftwareFacts(TypedDict):
    """Python and the distributions there."""

    python: str
    versions: dict[str, str]
    """By normalised name."""
    source: str | None
    """Digest of this project's modules; None where they cannot be imported."""
    source_folder: str | None


class CpuFacts(TypedDict):
    """CPUs that processes there may use."""

    machine: int
    """Logical CPUs of the machine."""
    allowed: int
    """Logical CPUs of this process's affinity."""
    quota: float | None
    """CPUs of the tightest quota of the control groups; None without one."""
    cores: list[str]
    """The physical cores behind the allowed CPUs, each by the list of its hyper-threads."""
    num_cores: int
    """How many of them a study uses."""
    granted: int | None
    """CPUs that the batch system gave on this node; None outside of a job."""
    granted_by: str
    """The variable that says so."""


class MemoryFacts(TypedDict):
    """Memory of the machine or of the tightest control group."""

    total_mb: int
    available_mb: int


class DiskFacts(TypedDict):
    """A file system."""

    folder: str
    type: str
    total_mb: int
    free_mb: int


class LimitFacts(TypedDict):
    """Limits of the system on what a user has."""

    open_files: int
    """Soft limit."""
    open_files_hard: int
    thread_room: int | None
    """Threads that this user may still start; None: no limit."""
    thread_limit: str
    """Which limit that is."""


class TokenFacts(TypedDict):
    """Ray's token authentication as a process there finds it."""

    mode: str | None
    """`RAY_AUTH_MODE`; None when it is not set."""
    token_file: str | None
    """The file that Ray would take a token from; None without one."""
    token_readers: str
    """Who beside its owner can read it: `everybody`, `its group` or nobody (empty)."""


class RayFacts(TypedDict):
    """The Ray that a task runs in."""

    plasma_directory: str
    niceness: int
    """Of a worker."""
    open_ports: list[str]
    """Where its processes listen beyond the loopback interface."""


class LoadFacts(TypedDict):
    """What else happens on the cores that we may use."""

    seconds: float
    foreign_cores: float | None
    """Mean cores kept busy by processes that belong neither to this Ray nor to us."""
    stolen_cores: float | None
    """Mean cores that the hypervisor withheld."""
    largest: str
    """Name of the foreign programs that used most; empty where the system does not show them."""
    pressure: float | None
    """Share of the last ten seconds in which some task waited for a CPU."""


class FrequencyFacts(TypedDict):
    """What decides the CPUs' clock."""

    governors: list[str]
    driver: str
    turbo: bool | None


class NodeFacts(TypedDict):
    """Everything; what could not be read is missing, and named among the faults."""

    identity: IdentityFacts
    software: SoftwareFacts
    cpus: CpuFacts
    memory: MemoryFacts
    shm: DiskFacts
    temporary: DiskFacts
    limits: LimitFacts
    token: TokenFacts
    threads_variable: str | None
    """`OMP_NUM_THREADS` as Ray's workers inherit it; None: not set."""
    ray: RayFacts | None
    """None outside of Ray."""
    load: LoadFacts | None
    """None: not watched."""
    frequency: FrequencyFacts
