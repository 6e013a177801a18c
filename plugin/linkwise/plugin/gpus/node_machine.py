"""The recorded machine that this node plays, as a label of the Node names it.

A DaemonSet is the same on every node, so what differs from node to node has to come from the Node.
The first successful `read` fixes the machine. While the label is missing or names no machine,
`read` raises InventoryError, and the next `read` looks at the label again.
"""

import msgspec

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.kube.objects import Node
from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.inventory import Probe, Stock, Xid
from linkwise.plugin.gpus.recorded import NOTHING_PLAYED, Played, RecordedInventory
from linkwise.topology.machine.model import Machine


class LabelledInventory:
    def __init__(
        self, client: KubeClient, node: str, label: str, *, played: Played = NOTHING_PLAYED
    ) -> None:
        self._client, self._node, self._label, self._files = client, node, label, played
        self._played: RecordedInventory | None = None

    def read(self) -> Stock:
        if self._played is None:
            self._played = RecordedInventory.named(
                self._machine_name(), node=self._node, played=self._files
            )
        return self._played.read()

    def probe(self, machine: Machine) -> Probe:
        return self._played.probe(machine) if self._played else Probe()

    def events(self, machine: Machine, seconds: float) -> tuple[Xid, ...] | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        pass

    def _machine_name(self) -> str:
        try:
            labels = self._client.get(f"/api/v1/nodes/{self._node}", Node).metadata.labels
        except (ApiError, msgspec.MsgspecError) as error:
            raise InventoryError(f"node {self._node}: {error}") from error
        if self._label not in labels:
            raise InventoryError(
                f"node {self._node}: label {self._label} is missing: expected the name of a "
                "recorded machine, as `linkwise machines` lists them"
            )
        return labels[self._label]
