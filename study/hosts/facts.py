"""What a node tells about itself: the types of what `study.hosts.probe` reads. Pure.

All are plain dictionaries of JSON values: they travel from nodes that may not have this project at all. Memory and disk
are in MB (2**20 bytes), CPU use in CPUs (2.0: two of them were busy all the time).
"""

from typing import TypedDict


class Host(TypedDict):
    """Which machine."""

    hostname: str
    boot_id: str
    """The same for all that runs under one kernel."""
    cpu_model: str


class Software(TypedDict):
    """What runs there."""

    python: str
    prefix: str
    versions: dict[str, str]
    """Every installed distribution, by its normalised name."""
    source: str | None
    """Digest of this project's modules; None where they cannot be imported."""
    source_folder: str | None


class Cpus(TypedDict):
    """What processes there may use."""

    machine: int
    """Logical CPUs of the machine."""
    allowed: int
    """Logical CPUs of this process's affinity, which control groups' cpusets are part of."""
    quota: float | None
    """CPUs of the tightest quota of the control groups around it."""
    cores: list[str]
    """The physical cores behind the allowed CPUs, each by the list of its hyper-threads."""
    num_cores: int
    """How many of them a study reckons with."""
    granted: int | None
    """CPUs that the batch system gave on this node."""
    granted_by: str
    """The variable that says so."""


class Memory(TypedDict):
    """Memory of the machine or of the tightest control group."""

    total_mb: int
    available_mb: int


class Space(TypedDict):
    """A file system."""

    folder: str
    type: str
    total_mb: int
    free_mb: int


class Limits(TypedDict):
    """What the system lets a user have."""

    open_files: int
    """Soft limit."""
    open_files_hard: int
    thread_room: int | None
    """Threads that this user may still start; None: no limit."""
    thread_limit: str
    """Which limit that is."""


class Authentication(TypedDict):
    """Ray's token authentication as a process there finds it."""

    mode: str | None
    """`RAY_AUTH_MODE`; None when it is not set."""
    token_in_environment: bool
    token_file: str | None
    """The file that Ray would take a token from, if there is one."""
    token_readers: str
    """Who beside its owner can read it: `everybody`, `its group` or nobody (empty)."""


class RayProcesses(TypedDict):
    """The Ray that a task runs in."""

    address: str
    temp_dir: str
    socket: str
    """Path of the raylet's socket."""
    plasma_directory: str
    object_store_mb: int
    niceness: int
    """Of a worker."""
    open_ports: list[str]
    """Where its processes listen beyond the loopback interface."""


class Load(TypedDict):
    """What else happens there, over a second or so."""

    sample_s: float
    foreign_cpus: float
    """CPU use, on the CPUs that we may use, by processes that belong neither to this Ray nor to us."""
    foreign: list[str]
    """The busiest of them: user, name and CPUs."""
    steal: float
    """Share of the time that the hypervisor took away."""
    pressure: float | None
    """Share of the last ten seconds in which some task waited for a CPU; None where the kernel does not tell."""
    other_rays: list[str]
    """Address and user of every other Ray."""


class Frequency(TypedDict):
    """What decides the CPUs' clock."""

    governors: list[str]
    driver: str
    turbo: bool | None


class Facts(TypedDict):
    """Everything; what could not be read is missing, and named among the faults."""

    host: Host
    software: Software
    cpus: Cpus
    memory: Memory
    shm: Space
    temporary: Space
    limits: Limits
    authentication: Authentication
    threads_variable: str | None
    """`OMP_NUM_THREADS` as Ray's workers inherit it."""
    ray: RayProcesses | None
    load: Load | None
    frequency: Frequency
