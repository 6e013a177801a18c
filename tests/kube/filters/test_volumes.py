import pytest

from tests.kube.filters.cases import (
    DELAYED,
    ZONE,
    Object,
    case,
    claim,
    fits,
    node,
    pod,
    using,
    volume,
    world,
)
from tests.kube.filters.verdicts import rejections

NODES = [node("a", {ZONE: "a"}), node("b", {ZONE: "b"}), node("bare")]
LOCAL = DELAYED | {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner"}
NOW = DELAYED | {"metadata": {"name": "now"}, "volumeBindingMode": "Immediate"}


def test_a_bound_volume_must_reach_the_node() -> None:
    at_a = world(claim(volume="pv"), volumes=(volume(zones=["a"]),))
    assert fits(using("data"), NODES, **at_a) == ["a"]
    found = rejections(case(using("data"), NODES, **at_a))["b"]
    assert found is not None
    assert (found.plugin, found.resolvable) == ("VolumeBinding", False)
    assert found.reasons == ("node(s) didn't match PersistentVolume's node affinity",)


@pytest.mark.parametrize("key", [ZONE, "failure-domain.beta.kubernetes.io/zone"])
def test_zone_labels_of_a_volume_stand_for_an_affinity(key: str) -> None:
    at_a = world(claim(volume="pv"), volumes=(volume(labels={key: "a__c"}),))
    assert fits(using("data"), NODES, **at_a) == ["a", "bare"]
    found = rejections(case(using("data"), NODES, **at_a))["b"]
    assert found is not None
    assert found.reasons == ("node(s) had no available volume zone",)
    unreadable = world(claim(volume="pv"), volumes=(volume(labels={key: "a__"}),))
    assert len(fits(using("data"), NODES, **unreadable)) == 3


EPHEMERAL = [{"name": "scratch", "ephemeral": {}}]
OWNED = {"ownerReferences": [{"kind": "Pod", "name": "new", "uid": "new", "controller": True}]}


@pytest.mark.parametrize(
    ("new", "objects", "plugin", "reason"),
    [
        (
            using("data"),
            {},
            "VolumeRestrictions",
            'persistentvolumeclaim "data" not found',
        ),
        (
            pod(volumes=EPHEMERAL),
            {},
            "VolumeBinding",
            "waiting for ephemeral volume controller to create the persistentvolumeclaim "
            '"new-scratch"',
        ),
        (
            pod(volumes=EPHEMERAL),
            world(claim("new-scratch")),
            "VolumeBinding",
            "PVC default/new-scratch was not created for the pod",
        ),
        (
            using("data"),
            world(claim(storageClassName="now"), classes=(NOW,)),
            "VolumeBinding",
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            using("data"),
            world(claim(storageClassName="unknown")),
            "VolumeBinding",
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            using("data"),
            world(claim(volume="pv", status={"phase": "Lost"})),
            "VolumeBinding",
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
        ),
        (
            using("data"),
            world(claim(volume="pv", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})),
            "VolumeBinding",
            'persistentvolumeclaim "data" is being deleted',
        ),
        (
            using("data"),
            world(claim(volume="pv")),
            "VolumeZone",
            'persistentvolume "pv" not found',
        ),
    ],
)
def test_a_claim_that_cannot_be_used_yet_refuses_every_node(
    new: Object, objects: Object, plugin: str, reason: str
) -> None:
    for found in rejections(case(new, NODES, **objects)).values():
        assert found is not None
        assert (found.plugin, found.reasons, found.resolvable) == (plugin, (reason,), False)


def test_a_volume_that_is_made_where_the_pod_goes_reaches_allowed_topologies() -> None:
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["b", "c"]}]}]
    delayed = claim(storageClassName="delayed")
    assert len(fits(using("data"), NODES, **world(delayed, classes=(DELAYED,)))) == 3
    limited = DELAYED | {"allowedTopologies": terms}
    assert fits(using("data"), NODES, **world(delayed, classes=(limited,))) == ["b"]
    ephemeral = claim("new-scratch", storageClassName="delayed", metadata=OWNED)
    found = fits(pod(volumes=EPHEMERAL), NODES, **world(ephemeral, classes=(limited,)))
    assert found == ["b"]


def test_a_claim_with_a_selected_node_goes_nowhere_else() -> None:
    selected = {"annotations": {"volume.kubernetes.io/selected-node": "b"}}
    delayed = claim(storageClassName="delayed", metadata=selected)
    assert fits(using("data"), NODES, **world(delayed, classes=(DELAYED,))) == ["b"]


@pytest.mark.parametrize(
    ("more", "suits"),
    [
        ({}, True),
        ({"capacity": {"storage": "1Mi"}}, False),
        ({"accessModes": ["ReadOnlyMany"]}, False),
        ({"volumeMode": "Block"}, False),
        ({"volumeAttributesClassName": "fast"}, False),
        ({"storageClassName": "other"}, False),
        ({"phase": "Released"}, False),
        ({"claimRef": {"namespace": "default", "name": "other"}}, False),
        ({"claimRef": {"namespace": "default", "name": "data"}, "phase": "Pending"}, True),
    ],
)
def test_a_volume_that_waits_is_taken_if_it_suits_the_claim(more: Object, suits: bool) -> None:
    objects = world(
        claim(storageClassName="local"),
        volumes=(volume(zones=["a"], **({"storageClassName": "local"} | more)),),
        classes=(LOCAL,),
    )
    assert fits(using("data"), NODES, **objects) == (["a"] if suits else [])
    found = rejections(case(using("data"), NODES, **objects))["b"]
    assert found is not None
    assert found.reasons == ("node(s) didn't find available persistent volumes to bind",)


def test_two_claims_need_two_volumes() -> None:
    both = [claim("x", storageClassName="local"), claim("y", storageClassName="local")]

    def local(name: str, *zones: str) -> Object:
        return volume(name, list(zones), storageClassName="local")

    one = world(*both, volumes=(local("p", "a"), local("q", "b")), classes=(LOCAL,))
    assert fits(using("x", "y"), NODES, **one) == []
    two = world(*both, volumes=(local("p", "a"), local("q", "a")), classes=(LOCAL,))
    assert fits(using("x", "y"), NODES, **two) == ["a"]


def test_a_claim_for_one_pod_is_not_for_a_second() -> None:
    objects = world(claim(volume="pv", accessModes=["ReadWriteOncePod"]), volumes=(volume(),))
    assert len(fits(using("data"), NODES, **objects)) == 3
    runs = [using("data", name="first", on="a")]
    for found in rejections(case(using("data"), NODES, runs, **objects)).values():
        assert found is not None
        assert (found.plugin, found.resolvable) == ("VolumeRestrictions", True)
    shared = world(claim(volume="pv"), volumes=(volume(),))
    assert len(fits(using("data"), NODES, runs, **shared)) == 3


def test_a_node_attaches_no_more_volumes_of_a_driver_than_it_can() -> None:
    def csi(name: str) -> Object:
        return volume(name, csi={"driver": "ebs.csi.aws.com", "volumeHandle": name})

    names = ["v1", "v2", "v3"]
    objects = world(*(claim(name, volume=name) for name in names), volumes=tuple(map(csi, names)))
    driver = {"name": "ebs.csi.aws.com", "nodeID": "x", "allocatable": {"count": 2}}
    objects["csiNodes"] = [{"metadata": {"name": "a"}, "spec": {"drivers": [driver]}}]
    runs = [using("v1", name="x", on="a"), using("v2", name="y", on="a")]
    assert fits(using("v3"), NODES, runs, **objects) == ["b", "bare"]
    assert len(fits(using("v2"), NODES, runs, **objects)) == 3  # attached already
    assert fits(using("v1", "v2", "v3"), NODES, **objects) == ["b", "bare"]
    unbound = claim("v4", storageClassName="delayed")
    objects["persistentVolumeClaims"] = (*objects["persistentVolumeClaims"], unbound)
    objects["storageClasses"] = [DELAYED]
    assert fits(using("v4"), NODES, runs, **objects) == ["b", "bare"]
