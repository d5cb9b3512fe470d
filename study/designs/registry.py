"""The kinds of study by their names. The schema knows a name from `study.space.spec`."""

from collections.abc import Sequence

from study.designs.base import Design
from study.designs.holdup.design import HoldUp
from study.designs.search import Search
from study.designs.throughput import Throughput
from study.machine.host import this_node
from study.machine.shape import ClusterShape
from study.planning import Plan, largest_of
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
    """Return the shape of the private Ray that a study gets on this machine."""
    here = ClusterShape(nodes=(this_node(),))
    return ClusterShape(nodes=(this_node(largest_of(design_of(spec).kinds(spec), here)),))
