"""Which extender the Service points to."""

from typing import Any

from tests.cluster.support.nodes.deployment import EXTENDER, SYSTEM, DeployedLinkwise

SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM}/endpointslices/{EXTENDER}-leader"


def led_to(deployed: DeployedLinkwise) -> str:
    """Return the address behind the Service; "" if there is none."""
    endpoints: list[dict[str, Any]] = deployed.get(SLICE)["endpoints"] or []
    addresses = [address for endpoint in endpoints for address in endpoint["addresses"]]
    assert len(addresses) <= 1
    return "".join(addresses)
