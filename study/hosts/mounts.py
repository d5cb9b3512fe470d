"""File systems: what a path is on, how much room it has, and whether its locks reach other hosts."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict

import psutil

_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "lustre", "gpfs", "beegfs", "fhgfs", "ceph", "glusterfs"),
    *("orangefs", "pvfs2", "panfs", "wekafs", "dvs"),
)
"""File systems that other machines serve; not virtiofs, which is the disk of many a container in a virtual machine."""
_NETWORK_PROGRAMS = (*_NETWORK, "sshfs", "s3", "juicefs", "rclone")
"""How the types begin that programs serve, such as `fuse.sshfs`, `fuse.ceph-fuse`, `fuse.beegfs`."""
_OPTION_OF_SHARED_LOCKS: Mapping[str, str] = MappingProxyType(
    {"nfs": "local_lock=none", "nfs4": "local_lock=none", "lustre": "flock", "gpfs": "", "ceph": ""}
)
"""Network file systems whose locks all hosts see, when they are mounted with the option.

Source: nfs(5), mount.lustre(8).
"""

_LONGEST_TMPDIR = 20
"""Bytes; with Ray's own names behind it, the path of a socket stays below 107, which is the most."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system as it is mounted."""

    kind: str
    """Such as `ext4` or `nfs4`; empty when unknown."""
    options: tuple[str, ...] = ()

    @property
    def is_network(self) -> bool:
        """Whether other machines serve it."""
        program = self.kind.removeprefix("fuse.")
        return self.kind in _NETWORK or (program != self.kind and program.startswith(_NETWORK_PROGRAMS))

    @property
    def locks_reach_all_hosts(self) -> bool:
        """Whether a lock by flock is seen by every host that can write there.

        NFS and Lustre can be mounted with locks that only one host sees, and most file systems in user space have no
        others.
        """
        if self.kind in _OPTION_OF_SHARED_LOCKS:
            needed = _OPTION_OF_SHARED_LOCKS[self.kind]
            return "nolock" not in self.options and (not needed or needed in self.options)
        return bool(self.kind) and not self.is_network and not self.kind.startswith("fuse")


def mount_of(path: Path) -> Mount:
    """Return the file system that a path is on; one without a kind where the system does not tell."""
    place = path.resolve()
    try:
        around = [each for each in psutil.disk_partitions(all=True) if place.is_relative_to(each.mountpoint)]
    except OSError:
        return Mount("")
    around.sort(key=lambda each: len(Path(each.mountpoint).parts))  # of several on one point the last is on top
    return Mount(around[-1].fstype, tuple(around[-1].opts.split(","))) if around else Mount("")


class DiskFacts(TypedDict):
    """The file system of a folder; sizes in MB of 2**20 bytes."""

    folder: str
    type: str
    total_mb: int
    free_mb: int


def short_temporary_folder() -> str:
    """Return where a private Ray keeps its files: TMPDIR, or /tmp where that is too long for the paths of sockets."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _LONGEST_TMPDIR else "/tmp"


def read_disk(folder: str) -> DiskFacts:
    """Return the file system that a folder is on."""
    usage, kind = shutil.disk_usage(folder), mount_of(Path(folder)).kind
    return DiskFacts(folder=folder, type=kind, total_mb=usage.total // 2**20, free_mb=usage.free // 2**20)


def is_locked_by_kernel(file: Path) -> bool:
    """Return whether a process of this machine and container holds a lock on a file, without disturbing it."""
    try:
        status, locks = file.stat(), Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(place in line.split() for line in locks if "->" not in line)
