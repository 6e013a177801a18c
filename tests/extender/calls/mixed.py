"""Nodes of several kinds of links."""

from tests.extender.cluster import Cluster


def mixed() -> Cluster:
    at = Cluster()
    at.add_node("cube", "dgx1-v100")  # 8 V100, NVLink
    at.add_node("pcie", "p100-pcie-8")  # 8 P100, no NVLink
    at.add_node("switch", "hgx-h100")  # 8 H100, NVSwitch
    return at
