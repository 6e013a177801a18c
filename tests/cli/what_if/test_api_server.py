"""What an API server lists is understood as it comes, and stays unchanged there."""

import json
from pathlib import Path
from typing import Any

import urllib3

from linkwise.simulator.api_server import ApiServer
from tests.cli.what_if.asking import answer, cluster, job, nodes_of, pods_of, runs


def ask(server: ApiServer, method: str, path: str, body: Any = None) -> Any:
    with urllib3.PoolManager(retries=False, timeout=30) as pool:
        sent = None if body is None else json.dumps(body)
        got = pool.request(
            method, server.url + path, body=sent, headers={"content-type": "application/json"}
        )
        assert got.status in (200, 201), got.data
        return json.loads(got.data)


def test_lists_of_an_api_server_are_a_cluster(server: ApiServer, tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100")
    runs(it, "old", 5, "n1")
    for made in nodes_of(it):
        ask(server, "POST", "/api/v1/nodes", made)
    for made in pods_of(it):
        ask(server, "POST", "/api/v1/namespaces/ml/pods", made)
    lists = [ask(server, "GET", path) for path in ("/api/v1/nodes", "/api/v1/pods")]
    assert [each["kind"] for each in lists] == ["NodeList", "PodList"]
    text = "".join(map(json.dumps, lists))
    status, found = answer(tmp_path, text, job("train", 2, 4))
    assert (status, {place["node"] for place in found["parts"][0]["places"]}) == (0, {"n2"})
    assert [ask(server, "GET", path) for path in ("/api/v1/nodes", "/api/v1/pods")] == lists
