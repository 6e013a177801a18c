"""People read the vendor's own word for its links, wherever Linkwise names one."""

import re

from linkwise.drawing.shapes import draw
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.usage import view_nodes
from linkwise.extender.show.page.group_page import group_page
from linkwise.extender.show.page.groups import Grouper
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cluster import Cluster

AMD, NVIDIA = "mi250x-frontier", "dgx1-v100"


def words_of(machine: str) -> set[str]:
    """The words for links in what is shown of a node with this machine and one pod."""
    at = Cluster()
    at.add_node("n1", machine)
    at.add_pod("two", 2)
    at.schedule("two")
    snapshot = at.core.snapshot(at.now)
    (node,) = view_nodes(snapshot)
    (group,) = Grouper().groups(snapshot)
    pod = Explainer(snapshot).pod("ml", "two")
    assert node.best is not None
    assert pod is not None
    hovers = [line.hover for line in draw(recorded_machine(machine), {}).lines]
    texts = [node.best.link, group_page(snapshot, group).links, pod.link, *hovers]
    return {found for text in texts for found in re.findall(r"(?i)nvlinks?|xgmi", text)}


def test_nvidias_are_nvlinks() -> None:
    assert words_of(NVIDIA) == {"nvlink", "NVLINK", "NVLink", "NVLinks"}


def test_amds_are_xgmi_links_and_none_is_an_nvlink() -> None:
    assert words_of(AMD) == {"xgmi", "XGMI", "xGMI"}


def test_the_runner_up_of_amds_gpus_has_more_xgmi_links() -> None:
    at = Cluster()
    at.add_node("n1", AMD)
    at.set_health("n1", 1, 2, 5, 6)  # two pairs of equal speed are left
    at.add_gang("pair", 2, 1)
    at.pass_time(5)
    gang = Explainer(at.core.snapshot(at.now)).gang("ml", "pair", runner_up=True)
    assert gang is not None
    assert gang.gang.runner_up is not None
    assert gang.gang.runner_up.why == "xGMI links: 12 against 13"
