"""Whether the system lets Ray have its files, threads, sockets and shared memory. Judges facts."""

from study.cluster.connection import check_private, session_path
from study.doctor.finding import Check, Verdict, fail, ok, warn
from study.doctor.surroundings import NodeReport, Surroundings, on_every_node

FEW_FILES, ENOUGH_FILES = 1024, 4096
"""Open files: with fewer Ray does not get far, and below the second it warns itself (ray/_private/worker.py)."""
RAISED_FILES = 65536
"""A private Ray raises its own soft limit to this, as far as the hard limit lets it."""
THREADS_PER_PROCESS = 60
"""Of a Ray worker with RLlib and torch: 24 were measured on two cores, and some pools grow with the cores."""
MAX_SOCKET_BYTES = 107
"""Of the path of a socket, on Linux."""
LONGEST_SOCKET = "/r/session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"
"""Of a private Ray, below its folder: a session's name ends with the largest process id."""
SHM_MB = 200
"""What Ray's object store needs at the least; weights and batches pass through it."""
TEMPORARY_MB = 500
"""Logs and the like of one Ray."""
FULL = 0.95
"""Share of a disk from which on Ray creates no objects there (its `local_fs_capacity_threshold`)."""
NETWORK_TYPES = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "lustre", "gpfs", "beegfs", "fhgfs", "ceph", "glusterfs"),
    *("orangefs", "pvfs2", "panfs", "wekafs", "dvs"),
)
"""File systems that other machines serve; not virtiofs, which is the disk of many a container in a virtual machine."""
NETWORK_PROGRAMS = (*NETWORK_TYPES, "sshfs", "s3", "juicefs", "rclone")
"""How the types begin that programs serve, such as `fuse.sshfs`, `fuse.ceph-fuse`, `fuse.beegfs`."""


def is_network(filesystem: str) -> bool:
    """Return whether a type of file system is one that other machines serve."""
    return filesystem in NETWORK_TYPES or (
        filesystem.startswith("fuse.") and filesystem.removeprefix("fuse.").startswith(NETWORK_PROGRAMS)
    )


@on_every_node
def open_files(node: NodeReport, around: Surroundings) -> Verdict:
    """Whether enough files and connections may be open."""
    limits = node.facts["limits"]
    allowed = limits["open_files"]
    if around.cluster is None:  # ray.init raises it itself
        allowed = max(allowed, min(limits["open_files_hard"], RAISED_FILES))
    found = f"{allowed if allowed < 10**9 else 'unlimited'} open files allowed"
    fix = f"`ulimit -n {RAISED_FILES}` before Ray starts; where refused, ask for a higher limit in limits.conf."
    if allowed < FEW_FILES:
        return fail(found, fix)
    return warn(found, fix) if allowed < ENOUGH_FILES else ok(found)


@on_every_node
def threads(node: NodeReport, around: Surroundings) -> Verdict:
    """Whether all processes may start their threads."""
    room, limit = node.facts["limits"]["thread_room"], node.facts["limits"]["thread_limit"]
    if room is None:
        return ok("no limit on processes and threads")
    need = THREADS_PER_PROCESS * max(node.num_cpus, 1)
    found = f"{limit} leaves room for {room} threads; {node.num_cpus} processes of a trial may start {need}"
    fix = "Raise it (`ulimit -u`, or the container's or the job's pids limit)."
    if room < need // 4:
        return fail(found, fix)
    return warn(found, fix) if room < need else ok(found)


@on_every_node
def shared_memory(node: NodeReport, around: Surroundings) -> Verdict:
    """Whether Ray keeps its objects in memory."""
    shm, ray = node.facts["shm"], node.facts["ray"]
    fix = "Make /dev/shm larger (`mount -o remount,size=…`, `docker run --shm-size`), or remove what others left there."
    if ray is not None and not ray["plasma_directory"].startswith("/dev/shm"):
        return warn(f"Ray keeps its objects in {ray['plasma_directory']}, since /dev/shm was too small", fix)
    found = f"{shm['free_mb'] / 1024:.1f} of {shm['total_mb'] / 1024:.1f} GB of /dev/shm are free"
    return warn(f"{found}: Ray would keep its objects on disk", fix) if shm["free_mb"] < SHM_MB else ok(found)


@on_every_node
def temporary(node: NodeReport, around: Surroundings) -> Verdict:
    """Whether Ray's temporary folder is a local disk with space."""
    disk = node.facts["temporary"]
    found = f"{disk['folder']} has {disk['free_mb'] / 1024:.1f} of {disk['total_mb'] / 1024:.1f} GB free"
    if is_network(disk["type"]):
        return fail(
            f"{disk['folder']} is on {disk['type']}, where sockets hang",
            "Give Ray a folder on a local disk (`ray start --temp-dir=/tmp/…`, or TMPDIR for a private one).",
        )
    if disk["free_mb"] < TEMPORARY_MB:
        return fail(found, "Free some space, or give Ray another folder (`ray start --temp-dir`, TMPDIR).")
    if disk["free_mb"] < (1 - FULL) * disk["total_mb"]:
        return warn(f"{found}: over {FULL:.0%} full, where Ray refuses to spill", "Free some space.")
    return ok(found)


@on_every_node
def socket_path(node: NodeReport, around: Surroundings) -> Verdict:
    """Whether the sockets' paths are short enough for the kernel."""
    ray = node.facts["ray"]
    if ray is None:
        folder = session_path()
        if folder.exists():
            check_private(folder)
        path = f"{folder}{LONGEST_SOCKET}"
    else:
        path = ray["socket"]
    size = len(path.encode())
    if size <= MAX_SOCKET_BYTES:
        return ok(f"paths of sockets keep to {MAX_SOCKET_BYTES} bytes")
    found = f"a socket has {size} bytes of path, {MAX_SOCKET_BYTES} are allowed ({path})"
    return fail(found, "Set TMPDIR=/tmp, or `ray start --temp-dir` to a shorter folder.")


CHECKS = (
    Check("limits", "open files", open_files),
    Check("limits", "threads", threads),
    Check("limits", "shared memory", shared_memory),
    Check("limits", "temporary folder", temporary),
    Check("limits", "socket path", socket_path),
)
