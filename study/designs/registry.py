"""The kinds of study by their names: one `register` for each. The schema knows a name from `study.space.spec`."""

from collections.abc import Sequence

from study.designs.base import Design
from study.designs.holdup.design import HoldUp
from study.designs.search.design import Search
from study.designs.throughput.design import Throughput
from study.machine.host import this_node
from study.machine.shape import ClusterShape
from study.planning.plan import Plan
from study.records.records import StageDecided
from study.space.spec import StudySpec

_DESIGNS: dict[str, Design] = {}


def register(design: Design) -> None:
    """Make a kind of study known; the space names it by `kind:`."""
    _DESIGNS[design.name] = design


register(Search())
register(Throughput())
register(HoldUp())


def design_of(spec: StudySpec) -> Design:
    """Return the kind of a study."""
    return _DESIGNS[spec.design]


def make_plan(spec: StudySpec, cluster: ClusterShape, decisions: Sequence[StageDecided] = ()) -> Plan:
    """Return what a study will run on a cluster, after the decisions on record.

    Raises:
        ClusterError: A trial can never fit; names the scale, what it needs, what there is, and the ways out.
    """
    return design_of(spec).plan(spec, cluster, decisions)


def private_shape(spec: StudySpec) -> ClusterShape:
    """Return the shape of the private Ray that a study gets on this machine."""
    here = ClusterShape(nodes=(this_node(),))
    return ClusterShape(nodes=(this_node(design_of(spec).num_cpus(spec, here)),))
