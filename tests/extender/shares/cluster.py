"""The cluster of `tests.extender.cluster`, with nodes whose GPUs are divided."""

from collections.abc import Mapping

from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.kube.objects import Container, Pod, Quantity, Resources
from linkwise.topology import names
from linkwise.topology.annotations.plan import InUse, read_plan, write_in_use
from linkwise.topology.machine.model import Machine
from tests.divided import GPU
from tests.extender.cluster import Cluster, change

Held = dict[str, dict[str, tuple[str, ...]]]
"""container -> resource -> ids of shares"""


def asks(name: str, limits: Mapping[str, int], *, restart_policy: str = "") -> Container:
    amounts: dict[str, Quantity] = {resource: str(count) for resource, count in limits.items()}
    return Container(
        name=name,
        restart_policy=restart_policy,
        resources=Resources(limits=amounts, requests={"cpu": "1", **amounts}),
    )


class ShareCluster(Cluster):
    def add_divided(self, name: str, machine: Machine) -> None:
        """A node whose kubelet offers whole GPUs and shares."""
        self.add_node(name, machine)
        offers: dict[str, int] = {GPU: machine.healthy_gpus.bit_count()}
        for gpu in machine.gpus:
            for part in gpu.parts or ():
                offers[part.resource] = offers.get(part.resource, 0) + part.shares
        node = self.nodes[name]
        amounts = {resource: str(count) for resource, count in offers.items() if resource}
        allocatable = {**node.status.allocatable, **amounts}
        self.put_node(change(node, status=change(node.status, allocatable=allocatable)))

    def add_taker(self, name: str, *limits: Mapping[str, int], share: str = "", **said: str) -> Pod:
        """A pod with a container for each of *limits*: resource -> how many."""
        words = {"share": share, **said} if share else said
        containers = [asks(f"c{number}", each) for number, each in enumerate(limits)]
        return self.add_pod(name, containers=containers, said=words)

    def try_to_place(self, name: str) -> str:
        """One attempt, as kube-scheduler makes it; the node, or empty."""
        return self.schedule(name)

    def bind_on(self, name: str, node: str) -> None:
        """`bind`, after a filter call that names this node alone."""
        assert self.filter(name, [node]).node_names == (node,)
        self.bind(name, node)

    def planned_shares(self, name: str) -> Held:
        text = self.pod(name).metadata.annotations.get(names.PLAN)
        found: Held = {}
        for planned in read_plan(text).shares if text is not None else ():
            found.setdefault(planned.container, {})[planned.resource] = planned.ids
        return found

    def ids_of(self, name: str) -> list[str]:
        held = self.planned_shares(name)
        return [each for of in held.values() for ids in of.values() for each in ids]

    def put_in_use(self, node: str, key: str, shares: Held | None, gpus: tuple[str, ...]) -> None:
        """What podresources shows for one pod; None and no *gpus*: nothing."""
        said = self.in_use(node)
        whole, of_shares = dict(said.pods), dict(said.shares)
        whole.pop(key, None)
        of_shares.pop(key, None)
        if gpus:
            whole[key] = {"c0": gpus}
        if shares:
            of_shares[key] = shares
        text = write_in_use(InUse(pods=whole, shares=of_shares))
        self.annotate_node(node, names.IN_USE, text)

    def land(self, order: BindOrder, outcome: Outcome = Outcome.DONE) -> None:
        done = outcome is not Outcome.REFUSED and self.post_binding(order)
        self.core.end_bind(order, outcome if done else Outcome.REFUSED, self.now)
