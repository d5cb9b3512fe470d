"""The kinds of study by their names. The schema knows a name from `study.space.spec`."""

from collections.abc import Sequence

from study.designs.base import Design
from study.designs.holdup.design import HoldUp
from study.designs.search import Search
from study.designs.throughput import Throughput
from study.machine.host import this_node
from study.machine.shape import ClusterShape
from study.planning import Plan, execution_of, num_cpus
from study.records.records import StageDecided
from study.space.spec import StudySpec

DESIGNS: dict[str, Design] = {each.name: each for each in (Search(), Throughput(), HoldUp())}
"""Name, as a space gives it, -> kind of study."""


def design_of(spec: StudySpec) -> Design:
    """Return the kind of a study."""
    return DESIGNS[spec.design]


def make_plan(spec: StudySpec, cluster: ClusterShape, decisions: Sequence[StageDecided] = ()) -> Plan:
    """Return what a study will run on a cluster, after the decisions on record: `Design.plan`."""
    return design_of(spec).plan(spec, cluster, decisions)


def private_shape(spec: StudySpec) -> ClusterShape:
    """Return the shape of the private Ray that a study gets on this machine: a trial of each kind can run on it."""
    here, kinds = ClusterShape(nodes=(this_node(),)), design_of(spec).kinds(spec)
    ways = ((each.spec, each.num_env_runners, execution_of(each.spec, each.num_env_runners, here)) for each in kinds)
    return ClusterShape(nodes=(this_node(max(num_cpus(*way) for way in ways)),))
