"""A node plays the machine that its label names, from the moment that it names one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from linkwise.kube.client import KubeClient
from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.inventory import Finding
from linkwise.plugin.gpus.node_machine import LabelledInventory
from linkwise.plugin.gpus.recorded import Played
from linkwise.simulator.api_server import ApiServer
from linkwise.topology.machine.recorded import recorded_machine

LABEL = "linkwise.dev/simulated-machine"


@pytest.fixture
def client() -> Iterator[KubeClient]:
    with ApiServer() as running:
        yield KubeClient.load(kubeconfig=None, server=running.url)


def add_node(client: KubeClient, labels: dict[str, str]) -> None:
    metadata = {"name": "n1", "labels": labels}
    client.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})


def test_the_label_names_the_machine_and_the_node_its_uuids(client: KubeClient) -> None:
    add_node(client, {LABEL: "dgx1-v100"})
    played = LabelledInventory(client, "n1", LABEL)
    assert played.read().machine == recorded_machine("dgx1-v100", node="n1")


def test_what_is_wrong_with_the_label_is_said_and_mended_without_a_restart(
    client: KubeClient,
) -> None:
    played = LabelledInventory(client, "n1", LABEL)
    with pytest.raises(InventoryError, match="node n1: 404 NotFound"):
        played.read()
    add_node(client, {})
    with pytest.raises(InventoryError, match=f"label {LABEL} is missing: expected the name of a"):
        played.read()
    client.patch("/api/v1/nodes/n1", {"metadata": {"labels": {LABEL: "dgx9"}}})
    with pytest.raises(InventoryError, match="dgx9"):
        played.read()
    client.patch("/api/v1/nodes/n1", {"metadata": {"labels": {LABEL: "dgx-a100"}}})
    assert len(played.read().machine.gpus) == 8


def test_a_machine_does_not_change_while_it_is_played(client: KubeClient) -> None:
    add_node(client, {LABEL: "dgx1-v100"})
    played = LabelledInventory(client, "n1", LABEL)
    first = played.read()
    client.patch("/api/v1/nodes/n1", {"metadata": {"labels": {LABEL: "dgx-a100"}}})
    assert played.read() == first


def test_its_faults_are_played_too(client: KubeClient, tmp_path: Path) -> None:
    add_node(client, {LABEL: "dgx1-v100"})
    faults = tmp_path / "faults.json"
    faults.write_text('{"3": "XID 79"}')
    played = LabelledInventory(client, "n1", LABEL, played=Played(faults=faults))
    machine = recorded_machine("dgx1-v100", node="n1")
    assert played.probe(machine).findings == {}  # nothing is played yet
    played.read()
    assert played.probe(machine).findings == {machine.gpus[3].uuid: (Finding("played", "XID 79"),)}
    assert played.events(machine, 60) is None
