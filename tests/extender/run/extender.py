"""The loop with the real core and its routes."""

from typing import Any

from flask.testing import FlaskClient

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.dispatch import Verbs
from linkwise.extender.run.ports.routes import create_app
from tests.extender.world import ApiObjects, asked, body, wait_for


class Extender:
    """The loop and its routes, without a port of its own."""

    def __init__(self, world: ApiObjects, core: Core | None = None) -> None:
        self.metrics = ExtenderMetrics()
        self.core = core or Core(CoreSettings())
        self.loop = Loop(self.core, world.client, self.metrics)
        self.http: FlaskClient = create_app(self.loop, self.metrics).test_client()
        self.verbs = Verbs(self.loop, self.metrics)

    def start(self) -> "Extender":
        self.loop.start()
        wait_for(lambda: not self.loop.waits_for())
        return self

    def ask(self, verb: str, **members: Any) -> Any:
        status, answer = asked(self.verbs, verb, **members)
        assert status == 200, answer
        return answer

    def filter(self, pod: dict[str, Any], *nodes: str) -> Any:
        return self.ask("filter", Pod=pod, Nodes=None, NodeNames=list(nodes))

    def bind(self, pod: dict[str, Any], node: str) -> str:
        """As kube-scheduler does it: only a node that was asked about."""
        self.filter(pod, node)
        meta = pod["metadata"]
        reply = self.ask(
            "bind",
            PodName=meta["name"],
            PodNamespace=meta["namespace"],
            PodUID=meta["uid"],
            Node=node,
        )
        assert isinstance(reply["Error"], str)
        return reply["Error"]

    def get(self, path: str) -> Any:
        return body(self.http.get(path))

    def state(self, pod: str) -> str:
        return str(self.get(f"/explain/ml/{pod}").get("state", "unknown"))

    def free(self) -> dict[str, int]:
        return {node["name"]: node["free"] for node in self.get("/nodes")}

    def closed(self, by: str) -> list[str]:
        """The nodes that are closed for this reason."""
        return [node["name"] for node in self.get("/nodes") if node["closed"] == by]

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"linkwise_extender_{name}", labels) or 0.0
