"""Whether the CPUs, the memory and the clocks of the nodes are what Ray and a study take them for. Judges facts."""

from study.doctor.finding import Check, Verdict, fail, ok, warn
from study.doctor.surroundings import NodeReport, Surroundings, by_value, on_every_node, plural, told
from study.planning.needs import execution_of, memory_mb
from study.planning.shape import LOCAL, ClusterShape
from study.space.spec import StudySpec

RUNNER_MB = 250
"""Memory of an environment runner of a small environment, measured: most of it Ray, torch and RLlib."""
MEMORY_LIMIT = 0.95
"""Share of a node's memory from which on Ray kills workers (its `memory_usage_threshold`)."""
SKEW_WARN_S, SKEW_FAIL_S = 1.0, 60.0
"""Clocks this far apart put records and points in MLflow into the wrong order; this far, a job misses its deadline."""


@on_every_node
def cpus(node: NodeReport, around: Surroundings) -> Verdict:
    """Whether Ray hands out CPUs that were not given to us, or hyper-threads."""
    facts, private = node.facts["cpus"], node.address == LOCAL
    given, why = _allocated(node)
    cores = facts["num_cores"]
    # A private Ray hands out more than the cores only for a trial that asks for it: the space's own check tells that.
    taken = min(node.num_cpus, cores) if private else node.num_cpus
    share = min(given, cores)
    what = f"{'a private Ray would hand' if private else 'Ray hands'} out {plural(taken, 'CPU')}"
    if taken > given and given < facts["machine"]:
        bind = "Bind the study to its CPUs (`taskset`, `srun --cpu-bind=cores`), or join a Ray started"
        return fail(
            f"{what}, {given} were allocated here by {why}",
            f"{bind if private else 'Start Ray there'} with --num-cpus={share}.",
        )
    if taken > cores:
        threads = " (hyper-threads)" if taken <= facts["allowed"] else ""
        return warn(
            f"{what}{threads} for {plural(cores, 'core')}: trials would share them, and their times say so",
            f"For a clean clock start Ray there with --num-cpus={share}.",
        )
    return ok(f"{what} of {plural(cores, 'core')} that are ours")


def _allocated(node: NodeReport) -> tuple[int, str]:
    """Return the CPUs that processes may use there, and what says so."""
    facts = node.facts["cpus"]
    limits = [(facts["allowed"], "the affinity (cpuset)")]
    if facts["quota"] is not None:
        limits.append((max(int(facts["quota"]), 1), "the quota of a control group"))
    if facts["granted"] is not None:
        limits.append((facts["granted"], facts["granted_by"]))
    return min(limits, key=lambda limit: limit[0])


def shared_machines(around: Surroundings) -> Verdict | None:
    """Whether several nodes of the cluster are one machine."""
    if around.cluster is None or len(around.nodes) < 2:
        return None
    cores: dict[str, set[str]] = {}
    nodes: dict[str, list[NodeReport]] = {}
    for node in around.nodes:
        boot = node.facts["host"]["boot_id"]
        cores.setdefault(boot, set()).update(node.facts["cpus"]["cores"])
        nodes.setdefault(boot, []).append(node)
    for boot, together in nodes.items():
        taken = sum(node.num_cpus for node in together)
        if len(together) > 1 and taken > len(cores[boot]):
            return warn(
                f"{', '.join(node.address for node in together[:4])} are one machine: together they hand out {taken} "
                f"CPUs for {plural(len(cores[boot]), 'core')}",
                "Start one raylet per machine, or give each its share with --num-cpus. Timings mean nothing here.",
            )
    return ok("no two nodes share cores")


def hardware(around: Surroundings) -> Verdict | None:
    """Whether all nodes have the same CPUs."""
    if len(around.nodes) < 2:
        return None
    models = by_value(around.nodes, lambda node: node.facts["host"]["cpu_model"])
    if len(models) > 1:
        return warn(
            f"CPU models differ: {told(models)}",
            "Use nodes of one kind: a trial is as fast as its slowest runner, and no two trials compare.",
        )
    return ok(f"all nodes have {next(iter(models), 'unknown CPUs')}")


@on_every_node
def memory(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether the runners that fit by CPUs fit by memory too."""
    facts = node.facts["memory"]
    need, whose = node.num_cpus * RUNNER_MB, "if every CPU gets a runner"
    if around.spec is not None:
        need, whose = _largest_share(around.spec, node, around.shape()), "for the largest trial"
    total = facts["total_mb"]
    room = facts["available_mb"] - (1 - MEMORY_LIMIT) * total
    found = (
        f"{need / 1024:.1f} GB needed {whose}, {facts['available_mb'] / 1024:.1f} of {total / 1024:.1f} GB available"
    )
    if need > MEMORY_LIMIT * total:
        return fail(found, "Use fewer CPUs per node (--num-cpus) or smaller scales: Ray would kill the runners.")
    if need > room:
        return warn(found, "End what holds the memory: Ray kills workers when 95 % of it are in use.")
    return ok(found)


def _largest_share(spec: StudySpec, node: NodeReport, cluster: ClusterShape) -> int:
    """Return the memory that a trial can need on one node: all of it, or what so many CPUs can hold of it."""
    whole = max(memory_mb(spec, scale, execution_of(spec, scale, cluster)) for scale in spec.scales)
    if len(cluster.nodes) == 1:
        return whole
    return min(whole, spec.resources.memory_main_mb + node.num_cpus * spec.resources.memory_per_env_runner_mb)


def clocks(around: Surroundings) -> Verdict | None:
    """Whether the nodes agree on the time."""
    measured = {node.address: node.clock for node in around.nodes if node.clock is not None}
    if not measured:
        return None
    sure = {address: max(abs(clock.ahead_s) - clock.uncertainty_s, 0.0) for address, clock in measured.items()}
    worst = max(sure, key=lambda address: (sure[address], abs(measured[address].ahead_s)))
    clock = measured[worst]
    way = "ahead of" if clock.ahead_s > 0 else "behind"
    uncertain = max(clock.uncertainty_s, 0.001)
    if sure[worst] < SKEW_WARN_S:
        off = max(abs(each.ahead_s) + each.uncertainty_s for each in measured.values())
        return ok(f"within {max(off, 0.001):.3f} s of the driver's clock, by round trips")
    found = f"{worst} is {abs(clock.ahead_s):.3f} s (give or take {uncertain:.3f} s) {way} the driver's clock"
    fix = "Let NTP set the clocks (`timedatectl`, `chronyc makestep`)."
    return fail(found, fix) if sure[worst] > SKEW_FAIL_S else warn(found, fix)


CHECKS = (
    Check("nodes", "CPUs", cpus),
    Check("nodes", "machines", shared_machines),
    Check("nodes", "hardware", hardware),
    Check("nodes", "memory", memory),
    Check("nodes", "clocks", clocks),
)
