"""Whether the nodes have the CPUs, memory, files and quiet that a study needs."""

from collections import defaultdict

from study.doctor.results import CheckResult, NodeReport, Surroundings, fail, ok, on_every_node, some, warn
from study.hosts.mounts import Mount
from study.planning.needs import execution_of, memory_mb
from study.planning.shape import LOCAL, ClusterShape
from study.space.spec import StudySpec
from study.text import count, gigabytes

RUNNER_MB = 250
"""Memory of an environment runner of a small environment, measured: most of it Ray, torch and RLlib."""
MEMORY_LIMIT = 0.95
"""Share of a node's memory from which on Ray kills workers (its `memory_usage_threshold`)."""
FEW_FILES, ENOUGH_FILES = 1024, 4096
"""Open files: with fewer Ray does not get far, and below the second it warns itself (ray/_private/worker.py)."""
RAISED_FILES = 65536
"""A private Ray raises its own soft limit to this, as far as the hard limit lets it."""
SHM_MB = 200
"""Free shared memory that Ray's object store needs at least; weights and batches pass through it."""
TEMPORARY_MB = 500
"""Logs and the like of one Ray."""
FULL = 0.95
"""Share of a disk from which on Ray creates no objects there (its `local_fs_capacity_threshold`)."""
FOREIGN_CORES = 0.25
"""Cores that foreign processes may use: more than a machine's own housekeeping."""
STOLEN_SHARE = 0.01
"""Share of the cores that a hypervisor may withhold."""


@on_every_node
def cpus(node: NodeReport, around: Surroundings) -> CheckResult:
    """Whether Ray hands out CPUs that were not given to us, or hyper-threads."""
    facts, private = node.facts["cpus"], node.address == LOCAL
    given, why = _allocated(node)
    cores = facts["num_cores"]
    # A private Ray hands out more than the cores only for a trial that asks for it; "space: largest trial" covers that.
    taken = min(node.num_cpus, cores) if private else node.num_cpus
    share = min(given, cores)
    what = f"{'a private Ray would hand' if private else 'Ray hands'} out {count(taken, 'CPU')}"
    if taken > given and given < facts["machine"]:
        bind = "Bind the study to its CPUs (`taskset`, `srun --cpu-bind=cores`), or join a Ray started"
        return fail(
            f"{what}, {given} were allocated here by {why}",
            f"{bind if private else 'Start Ray there'} with --num-cpus={share}.",
        )
    if taken > cores:
        threads = " (hyper-threads)" if taken <= facts["allowed"] else ""
        return warn(
            f"{what}{threads} for {count(cores, 'core')}: trials would share them, and their timings are labelled so",
            f"For timings that count, start Ray there with --num-cpus={share}.",
        )
    return ok(f"{what} of {count(cores, 'core')} that this user may use")


def _allocated(node: NodeReport) -> tuple[int, str]:
    """Return the CPUs that processes may use there, and what limits them."""
    facts = node.facts["cpus"]
    limits = [(facts["allowed"], "the affinity (cpuset)")]
    if facts["quota"] is not None:
        limits.append((max(int(facts["quota"]), 1), "the quota of a control group"))
    if facts["granted"] is not None:
        limits.append((facts["granted"], facts["granted_by"]))
    return min(limits, key=lambda limit: limit[0])


def machines(around: Surroundings) -> CheckResult | None:
    """Whether several nodes of the cluster share the cores of one machine, or have different CPUs."""
    if len(around.nodes) < 2:
        return None
    nodes: defaultdict[str, list[NodeReport]] = defaultdict(list)
    models: defaultdict[str, list[str]] = defaultdict(list)
    for node in around.nodes:
        if {"boot_id", "cpu_model", "cpus"} <= node.facts.keys():
            nodes[node.facts["boot_id"]].append(node)
            models[node.facts["cpu_model"]].append(node.address)
    for together in nodes.values():
        taken = sum(node.num_cpus for node in together)
        cores = {core for node in together for core in node.facts["cpus"]["cores"]}
        if len(together) > 1 and taken > len(cores):
            return warn(
                f"{some([node.address for node in together])} are one machine: together they hand out {taken} "
                f"CPUs for {count(len(cores), 'core')}",
                "Start one raylet per machine, or give each its share with --num-cpus. Timings mean nothing here.",
            )
    if len(models) > 1:
        return warn(
            "CPU models differ: " + "; ".join(f"{model} on {some(there)}" for model, there in models.items()),
            "Use nodes of one kind: a trial is as fast as its slowest runner, and no two trials compare.",
        )
    return ok(f"no two nodes share cores, and all have {next(iter(models), 'unknown CPUs')}")


@on_every_node
def memory(node: NodeReport, around: Surroundings) -> CheckResult:
    """Whether the runners that fit by CPUs fit by memory too."""
    facts = node.facts["memory"]
    need, whose = node.num_cpus * RUNNER_MB, "if every CPU gets a runner"
    if around.spec is not None:
        need, whose = _largest_share(around.spec, node, around.shape()), "for the largest trial"
    total, available = facts["total_mb"], facts["available_mb"]
    found = f"{gigabytes(need)} needed {whose}, {gigabytes(available)} of {gigabytes(total)} available"
    if need > MEMORY_LIMIT * total:
        return fail(found, "Use fewer CPUs per node (--num-cpus) or smaller scales: Ray would kill the runners.")
    if need > available - (1 - MEMORY_LIMIT) * total:
        return warn(found, "End what holds the memory: Ray kills workers when 95 % of it are in use.")
    return ok(found)


def _largest_share(spec: StudySpec, node: NodeReport, cluster: ClusterShape) -> int:
    """Return the memory (MB) that a trial can need on one node: all of it, or what so many CPUs can hold of it."""
    whole = max(memory_mb(spec, scale, execution_of(spec, scale, cluster)) for scale in spec.scales)
    if len(cluster.nodes) == 1:
        return whole
    return min(whole, spec.resources.memory_main_mb + node.num_cpus * spec.resources.memory_per_env_runner_mb)


@on_every_node
def open_files(node: NodeReport, around: Surroundings) -> CheckResult:
    """Whether Ray may open enough files and connections."""
    files, hard = node.facts["open_files"]
    if around.cluster is None:  # ray.init raises it itself
        files = max(files, min(hard, RAISED_FILES))
    if files >= ENOUGH_FILES:
        return ok("enough open files allowed")
    found = f"{files} open files allowed"
    fix = f"Run `ulimit -n {RAISED_FILES}` before Ray starts; where refused, ask for a higher limit in limits.conf."
    return fail(found, fix) if files < FEW_FILES else warn(found, fix)


@on_every_node
def shared_memory(node: NodeReport, around: Surroundings) -> CheckResult:
    """Whether Ray keeps its objects in memory."""
    shm, ray = node.facts["shm"], node.facts["ray"]
    fix = "Make /dev/shm larger (`mount -o remount,size=…`, `docker run --shm-size`), or remove what others left there."
    if ray is not None and not ray["plasma_directory"].startswith("/dev/shm"):
        return warn(f"Ray keeps its objects in {ray['plasma_directory']}, since /dev/shm was too small", fix)
    found = f"{gigabytes(shm['free_mb'])} of {gigabytes(shm['total_mb'])} of /dev/shm are free"
    return warn(f"{found}: Ray would keep its objects on disk", fix) if shm["free_mb"] < SHM_MB else ok(found)


@on_every_node
def temporary(node: NodeReport, around: Surroundings) -> CheckResult:
    """Whether Ray's temporary folder is a local disk with space."""
    disk = node.facts["temporary"]
    found = f"{disk['folder']} has {gigabytes(disk['free_mb'])} of {gigabytes(disk['total_mb'])} free"
    if Mount(disk["type"]).is_network:
        return fail(
            f"{disk['folder']} is on {disk['type']}, where sockets hang",
            "Give Ray a folder on a local disk (`ray start --temp-dir=/tmp/…`; for a private one a short TMPDIR).",
        )
    if disk["free_mb"] < TEMPORARY_MB:
        return fail(found, "Free some space, or give Ray another folder (`ray start --temp-dir`, a short TMPDIR).")
    if disk["free_mb"] < (1 - FULL) * disk["total_mb"]:
        return warn(f"{found}: over {FULL:.0%} full, where Ray refuses to spill", "Free some space.")
    return ok(found)


@on_every_node
def other_work(node: NodeReport, around: Surroundings) -> CheckResult | None:
    """Whether anything but a study takes CPU time: foreign processes, or a hypervisor."""
    load, cores = node.facts["load"], node.facts["cpus"]["num_cores"]
    if load is None:
        return None
    if load["foreign_cores"] is None or load["stolen_cores"] is None:
        return warn(
            "the system's clocks (/proc/stat) are not those of the CPUs: other work cannot be seen",
            "Look at the load on the host of this container.",
        )
    if load["foreign_cores"] > FOREIGN_CORES:
        return warn(
            f"other processes use {load['foreign_cores']:.1f} of {count(cores, 'core')} over {load['seconds']:.1f} s "
            f"(most by {load['largest'] or 'processes that cannot be seen from here'})",
            "End them, or take an exclusive node: they slow trials down, and the timings do not always show it.",
        )
    if load["stolen_cores"] > STOLEN_SHARE * cores:
        return warn(
            f"the hypervisor took {load['stolen_cores'] / cores:.0%} of the CPU time",
            "Repeat timings at other hours, or use dedicated hardware: this virtual machine shares its CPUs.",
        )
    return ok(f"quiet: less than {FOREIGN_CORES:g} cores used by others over {load['seconds']:.1f} s")
