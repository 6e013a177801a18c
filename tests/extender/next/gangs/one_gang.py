"""One gang, brought as far as a test needs it."""

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from tests.extender.cluster import Cluster


def cluster(nodes: int = 2, machine: str = "dgx1-v100") -> Cluster:
    made = Cluster(CoreSettings(gang_timeout_seconds=600))
    for number in range(1, nodes + 1):
        made.add_node(f"n{number}", machine)
    return made


def planned(at: Cluster, size: int = 2, gpus: int = 8, **said: str) -> list[str]:
    members = at.add_gang("g", size, gpus, **said)
    at.settle()
    assert at.phase("g") == "planned"
    return members


def running(at: Cluster, size: int = 2, gpus: int = 8) -> list[str]:
    members = planned(at, size, gpus)
    for member in members:
        assert at.schedule(member)
    at.settle()
    assert at.phase("g") == "running"
    return members


def bound_together(at: Cluster) -> list[str]:
    """All at the same time, so that no Binding is known to be the last."""
    members = planned(at)
    plans = [plan for member in members if (plan := at.plan(member))]
    orders = [at.begin_bind(m, plan.node) for m, plan in zip(members, plans, strict=True)]
    for order in orders:
        assert isinstance(order, BindOrder)
        assert at.post_binding(order)
        at.core.end_bind(order, Outcome.DONE, at.now)
    return members
