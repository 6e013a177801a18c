"""Places of the extender: a process that watches a cluster and answers over HTTP."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import urllib3
from prometheus_client.parser import text_string_to_metric_families

from bench.support.programs import running
from linkwise.extender.place.nodes import reasons
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from tests.bad_input.table import Place
from tests.extender.world import GPU, ApiObjects, wait_for


class Extender:
    """Nodes n1 and n2 of 8 GPUs each, and the program. *numbers* make names that are new."""

    def __init__(self, world: ApiObjects, calls: str, status: str) -> None:
        self.world, self._calls, self._status = world, calls, status
        self._http = urllib3.PoolManager(timeout=30)
        self._numbers = count(1)

    def new_name(self, stem: str) -> str:
        return f"{stem}-{next(self._numbers)}"

    def get(self, path: str) -> Any:
        return json.loads(self._http.request("GET", f"{self._status}{path}").data)

    def post(self, verb: str, body: bytes) -> tuple[int, Any]:
        reply = self._http.request("POST", f"{self._calls}/{verb}", body=body)
        return reply.status, json.loads(reply.data)

    def filter(self, pod: Mapping[str, Any], *nodes: str) -> dict[str, str]:
        """Node -> why not; empty where the pod may go there."""
        asked = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": nodes})
        status, answer = self.post("filter", asked.encode())
        assert (status, answer["Error"]) == (200, "")
        refused = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
        return dict.fromkeys(answer["NodeNames"], "") | refused

    def node(self, name: str) -> dict[str, Any]:
        """As `/nodes` shows it; empty where it does not."""
        found: list[dict[str, Any]] = [n for n in self.get("/nodes") if n["name"] == name]
        return found[0] if found else {}

    def metric(self, name: str) -> float:
        text = self._http.request("GET", f"{self._status}/metrics").data.decode()
        families = text_string_to_metric_families(text)
        return sum(s.value for f in families for s in f.samples if s.name == name)

    def neighbour_goes_on(self) -> None:
        """Another pod passes filter, is scored, and nothing was taken for a defect."""
        pod = good_pod(self.new_name("good"))
        assert self.filter(pod, "n1") == {"n1": ""}
        scored = self.post("prioritize", json.dumps({"Pod": pod, "NodeNames": ["n1"]}).encode())
        assert scored == (200, [{"Host": "n1", "Score": 100}])
        assert self.metric("linkwise_extender_errors_total") == 0
        assert self.metric("linkwise_extender_broken_invariants") == 0


@contextmanager
def extender() -> Iterator[Extender]:
    with ApiServer() as server:
        world = ApiObjects(server)
        world.add_node("n1")
        world.add_node("n2")
        ports = ("--listen-port=0", "--status-port=0", "--plain-http=true")
        flags = ("--api-server", server.url, "--listen-address", "127.0.0.1", *ports)
        with running("linkwise.extender", *flags) as program:
            status = program.logged(r"serving probes, metrics and views on (http://\S+)")
            calls = program.logged(r"serving kube-scheduler on (http://\S+)")
            get = urllib3.PoolManager().request
            program.wait(lambda: get("GET", f"{status}/readyz").status == 200, "readiness")
            yield Extender(world, calls, status)


def good_pod(
    name: str, annotations: Mapping[str, str] | None = None, gpus: object = "2"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "annotations": {**(annotations or {})},
        },
        "spec": {
            "containers": [{"name": "main", "image": "x", "resources": {"limits": {GPU: gpus}}}]
        },
    }


class PodAnnotations:
    """A waiting pod of 2 GPUs that says this: why node n1 is refused to it."""

    def __init__(self, program: Extender) -> None:
        self._program = program
        self.neighbour_goes_on = program.neighbour_goes_on

    def give(self, given: Mapping[str, str]) -> str:
        name = self._program.new_name("bad")
        said = {names.PREFIX + key: text for key, text in given.items()}
        pod = good_pod(name, said)
        self._program.world.client.post("/api/v1/namespaces/ml/pods", pod)
        wait_for(lambda: self._program.get(f"/explain/ml/{name}").get("name") == name)
        explained = self._program.get(f"/explain/ml/{name}")
        assert explained["state"] == "invalid"
        text = self._program.filter(self._program.world.pod(name), "n1")["n1"]
        assert explained["summary"].removeprefix("The pod cannot be placed: ") in text
        return text


class Quantities(PodAnnotations):
    """A pod that wants so many GPUs."""

    def give(self, given: object) -> str:
        return self._program.filter(good_pod(self._program.new_name("bad"), gpus=given), "n1")["n1"]


class Memory:
    """A gang of one pod with two containers that want so much memory each: why it waits."""

    def __init__(self, program: Extender) -> None:
        self._program = program

    def give(self, given: str) -> str:
        name = self._program.new_name("greedy")
        self._create(name, given)
        # The search for a reservation comes after the plan's, and says whether there will be room.
        wait_for(lambda: self._gang(name).get("reason", "").endswith("even without other pods"))
        reason: str = self._gang(name)["reason"]
        self._program.world.delete(name)
        return reason

    def _create(self, name: str, memory: str) -> None:
        notes = {names.GANG: name, names.GANG_SIZE: "1"}
        pod = good_pod(name, notes)
        pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = memory
        side = {"name": "side", "image": "x", "resources": {"limits": {"memory": memory}}}
        pod["spec"]["containers"].append(side)
        self._program.world.client.post("/api/v1/namespaces/ml/pods", pod)

    def _gang(self, name: str) -> dict[str, Any]:
        gangs: list[dict[str, Any]] = self._program.get("/gangs")
        return next((gang for gang in gangs if gang["name"] == name), {})

    def neighbour_goes_on(self) -> None:
        """Another gang is still planned, and its pods still counted."""
        name = self._program.new_name("modest")
        self._create(name, "1Gi")
        wait_for(lambda: self._program.world.is_planned(name))
        self._program.world.delete(name)
        self._program.neighbour_goes_on()


class PlansOfBoundPods:
    """A pod of 2 GPUs that runs on n2 with these annotations: how it counts in the cache."""

    def __init__(self, program: Extender) -> None:
        self._program = program
        self.neighbour_goes_on = program.neighbour_goes_on

    def give(self, given: Mapping[str, str]) -> str:
        program = self._program
        name = program.new_name("bound")
        pod = good_pod(name, {names.PREFIX + key: text for key, text in given.items()})
        pod["spec"]["nodeName"] = "n2"
        program.world.client.post("/api/v1/namespaces/ml/pods", pod)
        wait_for(lambda: program.node("n2")["free"] < 8)
        state, free = program.get(f"/explain/ml/{name}")["state"], program.node("n2")["free"]
        program.world.delete(name)
        wait_for(lambda: program.node("n2")["free"] == 8)
        return f"{state}; {8 - free} GPUs count as taken"


class NodeAnnotations:
    """A node that says this: why nothing is placed on it."""

    def __init__(self, program: Extender) -> None:
        self._program = program
        self._bad = ""

    def give(self, given: Mapping[str, str]) -> str:
        self._bad = self._program.new_name("bad")
        notes = {names.PREFIX + key: text for key, text in given.items()}
        amounts = {"cpu": "64", "memory": "1Ti", "pods": "110", GPU: "8"}
        self._program.world.client.post(
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": self._bad, "annotations": notes},
                "status": {
                    "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )
        wait_for(lambda: self._program.node(self._bad))
        shown = self._program.node(self._bad)
        assert not shown["usable"]
        reason: str = shown["reason"]
        return reason

    def neighbour_goes_on(self) -> None:
        good = good_pod(self._program.new_name("good"))
        assert self._program.filter(good, "n1", self._bad) == {"n1": ""}
        assert self._program.filter(good, self._bad) == {self._bad: reasons.UNREADABLE}
        self._program.neighbour_goes_on()


class Bodies:
    """What POST /<verb> answers to this body: the status and the Error member."""

    def __init__(self, program: Extender) -> None:
        self._program = program
        self.neighbour_goes_on = program.neighbour_goes_on

    def give(self, given: tuple[str, bytes | dict[str, Any]]) -> str:
        verb, body = given
        status, answer = self._program.post(
            verb, body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        return f"{status} {answer['Error']}"


def places(program: Extender) -> dict[str, Place]:
    return {
        "pod annotation": PodAnnotations(program),
        "pod quantity": Quantities(program),
        "memory": Memory(program),
        "plan": PlansOfBoundPods(program),
        "node annotation": NodeAnnotations(program),
        "HTTP body": Bodies(program),
    }
