"""A pod that asks for more GPUs than any machine has costs itself alone."""

import numpy as np
import pytest

from linkwise.extender.placement.room.room import _sets
from linkwise.topology import names
from tests.extender.cluster import Cluster


@pytest.mark.parametrize("gpus", [113, 128, 1000, 2**31, 2**63 - 1])
def test_it_is_refused_in_words_and_others_are_placed(gpus: int) -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("slip", gpus)
    at.add_pod("gated-slip", gpus, gates=[names.GATE])
    at.settle()
    at.add_pod("single", 1)
    at.add_pod("gated", 2, gates=[names.GATE])
    at.add_gang("gang", 2, 2)
    at.settle()
    assert at.schedule("single") == "n1"
    assert at.places("gated", "gang-0", "gang-1") == ["n1"] * 3
    (why,) = at.filter("slip").unresolvable.values()
    assert why.startswith(f"linkwise: nvidia.com/gpu: {gpus} in one pod: expected 112 at most")
    assert "expected 112 at most" in repr(at.core.explain("ml", "gated-slip", at.now))
    assert not at.core.take_defects()


def test_112_are_no_slip_and_wait_for_a_machine_that_has_them() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("large", 112)
    assert at.filter("large").failed.keys() | at.filter("large").unresolvable.keys() == {"n1"}
    assert "expected" not in repr(at.filter("large"))


@pytest.mark.parametrize("size", [9, 127, 128, 2**40])
def test_no_machine_has_room_for_more_gpus_than_it_has(size: int) -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    kind = at.core._cache.nodes["n1"].kind
    assert kind is not None
    assert not np.any(_sets(kind, size, 0.0))
