import pytest

from tests.kube.filters.cases import Object, fits, node, pod, refused


def ports(*wanted: Object) -> list[Object]:
    return [{"name": "main", "ports": list(wanted)}]


@pytest.mark.parametrize(
    ("wanted", "used", "conflict"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, True),
        ({"hostPort": 80}, {"hostPort": 81}, False),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, True),
        ({"hostPort": 80}, {"hostPort": 80, "hostIP": "10.0.0.1"}, True),
        ({"hostPort": 80, "hostIP": "0.0.0.0"}, {"hostPort": 80, "hostIP": "10.0.0.1"}, True),
        (
            {"hostPort": 80, "hostIP": "10.0.0.2"},
            {"hostPort": 80, "hostIP": "10.0.0.1"},
            False,
        ),
        ({"containerPort": 80}, {"hostPort": 80}, False),
    ],
)
def test_a_port_of_the_node_is_used_once(wanted: Object, used: Object, conflict: bool) -> None:
    there = pod("there", on="n1", containers=ports(used))
    new = pod(containers=ports(wanted))
    assert fits(new, [node("n1"), node("n2")], [there]) == (["n2"] if conflict else ["n1", "n2"])


def test_a_sidecar_keeps_its_port_and_an_init_container_does_not() -> None:
    new = pod(containers=ports({"hostPort": 80}))
    for policy, free in (("Always", False), ("", True)):
        init = [{"name": "i", "restartPolicy": policy, "ports": [{"hostPort": 80}]}]
        found = refused(new, node("n1"), [pod("there", on="n1", initContainers=init)])
        assert (found is None) is free
        assert found is None or (found.plugin, found.resolvable) == ("NodePorts", True)
