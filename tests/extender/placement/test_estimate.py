"""The reported estimate of a gang's communicator is the value that the search used."""

from tests.extender.cluster import Cluster
from tests.extender.placement.brute_force import LEAF, ZONE
from tests.extender.placement.near_best import LABELS


def test_a_gang_on_one_node_tells_the_ring_through_all_its_gpus() -> None:
    at = Cluster()
    at.add_node("n0", "dgx1-v100")
    at.add_gang("g", 4, 1)
    at.settle()
    (gang,) = at.core.gangs(at.now)
    assert gang.communicator is not None
    assert [(ring.node, ring.gpus) for ring in gang.communicator.rings] == [("n0", 4)]
    assert gang.communicator.rings[0].gbytes_per_s == gang.communicator.gbytes_per_s == 80.0
    assert gang.communicator.between_gbytes_per_s is None


def test_a_gang_over_nodes_tells_what_is_between_them() -> None:
    at = Cluster()
    for number in range(2):
        labels = {LABELS[LEAF]: f"leaf-{number}", LABELS[ZONE]: "a"}
        at.add_node(f"n{number}", "hgx-h100", labels=labels)
    at.add_gang("g", 2, 8)
    at.settle()
    (gang,) = at.core.gangs(at.now)
    assert gang.communicator is not None
    assert [ring.gbytes_per_s for ring in gang.communicator.rings] == [459.6, 459.6]
    # One NIC is assumed where a machine tells none, 48 GB/s, and a tenth is lost between leaves.
    assert gang.communicator.between_gbytes_per_s == gang.communicator.gbytes_per_s == 43.2


def test_a_gang_that_waits_and_a_lone_gpu_have_no_communicator() -> None:
    at = Cluster()
    at.add_node("n0", "dgx1-v100")
    at.add_gang("one", 1, 1)
    at.add_gang("waits", 2, 8)
    at.settle()
    assert [gang.communicator for gang in at.core.gangs(at.now)] == [None, None]
