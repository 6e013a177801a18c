"""The volumes of a random case: classes, claims, PersistentVolumes, and what nodes can attach."""

from collections.abc import Sequence
from itertools import count

from tests.cluster.support.filters.draw import HOSTNAME, REGION, ZONE, ZONES, Draw, Json
from tests.cluster.support.filters.kube_scheduler import Case

DRIVERS = ("csi.example.com", "csi.other.example.com")
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
_CLASSES: Sequence[Json] = tuple(
    {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
    for name, provisioner, mode in (
        ("wait", DRIVERS[0], "WaitForFirstConsumer"),
        ("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
        ("now", DRIVERS[0], "Immediate"),
    )
)


def empty() -> Case:
    return {
        "persistentVolumes": [],
        "persistentVolumeClaims": [],
        "storageClasses": [],
        "csiNodes": [],
    }


def restrictions(draw: Draw, case: Case) -> None:
    """ReadWriteOncePod, and disks that pods name themselves."""
    _classes(draw, case)
    sharing = draw.one(claim=0.5, disk=0.5)
    for each in [*case["pods"], case["pod"]]:
        if sharing == "disk":
            if draw.chance(0.7) or each is case["pod"]:
                _add_volume(each, _disk(draw))
        elif draw.chance(0.2) or each is case["pod"]:
            modes = ["ReadWriteOncePod"] if draw.chance(0.7) else ["ReadWriteOnce"]
            _add_claim(each, _shared_claim(draw, case, each, modes))


def limits(draw: Draw, case: Case) -> None:
    """Drivers that can attach so many volumes to a node."""
    _classes(draw, case)
    for each in case["nodes"]:
        if draw.chance(0.9):
            name = each["metadata"]["name"]
            drivers = [_driver(draw, name, driver) for driver in draw.some(DRIVERS, least=1)]
            case["csiNodes"].append({"metadata": {"name": name}, "spec": {"drivers": drivers}})
    for each in case["pods"]:
        for _ in range(draw.randint(0, 2)):
            _add_claim(each, _any_claim(draw, case, each, good=True))
        if draw.chance(0.05):
            _add_claim(each, "missing")
    for _ in range(draw.randint(1, 3)):
        _add_claim(case["pod"], _any_claim(draw, case, case["pod"], good=True))


def binding(draw: Draw, case: Case) -> None:
    """Claims in every state, and PersistentVolumes that only some nodes reach."""
    _classes(draw, case)
    for _ in range(draw.randint(0, 4)):
        _free_volume(draw, case)
    for each in case["pods"]:
        if draw.chance(0.2):
            _add_claim(each, _any_claim(draw, case, each, good=True))
    for _ in range(draw.choices((1, 2, 3), (4, 2, 1))[0]):
        if draw.chance(0.15):
            _ephemeral(draw, case, case["pod"])
        else:
            _add_claim(case["pod"], _any_claim(draw, case, case["pod"], good=False))


def zone(draw: Draw, case: Case) -> None:
    """Zones as labels of PersistentVolumes, as volumes without node affinity have them."""
    _classes(draw, case)
    for each in case["nodes"]:
        labels = each["metadata"]["labels"]
        if draw.chance(0.3):
            labels["failure-domain.beta.kubernetes.io/zone"] = labels.get(ZONE, "z1")
            if draw.chance(0.5):
                labels.pop(ZONE, None)
    for _ in range(draw.randint(1, 2)):
        claim = _bound_claim(draw, case, case["pod"], reach="anywhere")
        labels = case["persistentVolumes"][-1]["metadata"].setdefault("labels", {})
        key = draw.choice((ZONE, ZONE, "failure-domain.beta.kubernetes.io/zone", REGION))
        labels[key] = (
            "__".join(draw.some(ZONES, least=1))
            if key != REGION
            else draw.choice(("r1", "r1", "r2"))
        )
        _add_claim(case["pod"], claim)
        if draw.chance(0.3):
            _add_claim(case["pod"], _unbound_claim(draw, case, case["pod"], "wait"))


def _classes(draw: Draw, case: Case) -> None:
    if case["storageClasses"]:
        return
    terms = [
        {"matchLabelExpressions": [{"key": key, "values": values}]}
        for key, values in draw.some(
            [(ZONE, draw.some(ZONES, least=1, most=2)), (HOSTNAME, ["n1", "n2"])], least=1
        )
    ]
    if draw.chance(0.2):
        terms = [{"matchLabelExpressions": [each["matchLabelExpressions"][0] for each in terms]}]
    narrow = {**_CLASSES[0], "metadata": {"name": "wait-narrow"}, "allowedTopologies": terms}
    case["storageClasses"].extend([*_CLASSES, narrow])


def _add_volume(pod: Json, volume: Json) -> None:
    volumes = pod["spec"].setdefault("volumes", [])
    volumes.append({"name": f"v{len(volumes)}", **volume})


def _add_claim(pod: Json, claim: str) -> None:
    _add_volume(pod, {"persistentVolumeClaim": {"claimName": claim}})


def _disk(draw: Draw) -> Json:
    read_only = draw.chance(0.4)
    match draw.one(gce=0.3, aws=0.2, iscsi=0.3, rbd=0.3):
        case "gce":
            return {
                "gcePersistentDisk": {"pdName": draw.choice(("d1", "d2")), "readOnly": read_only}
            }
        case "aws":
            return {
                "awsElasticBlockStore": {
                    "volumeID": draw.choice(("d1", "d2")),
                    "readOnly": read_only,
                }
            }
        case "iscsi":
            target = f"iqn.2026-01.com.example:{draw.choice(('d1', 'd2'))}"
            return {
                "iscsi": {
                    "targetPortal": "10.0.0.9",
                    "iqn": target,
                    "lun": 0,
                    "readOnly": read_only,
                }
            }
        case _:
            monitors = draw.some(("m1", "m2", "m3"), least=1, most=2)
            pool = {"pool": "other"} if draw.chance(0.2) else {}
            return {"rbd": {"monitors": monitors, "image": "d1", **pool, "readOnly": read_only}}


def _driver(draw: Draw, node: str, driver: str) -> Json:
    entry: Json = {"name": driver, "nodeID": node, "topologyKeys": []}
    if draw.chance(0.9):
        entry["allocatable"] = {"count": draw.randint(0, 4)}
    return entry


def _any_claim(draw: Draw, case: Case, pod: Json, *, good: bool) -> str:
    """Return a claim for *pod*. A *good* one lets the pod run somewhere."""
    kind = (
        draw.one(bound=0.5, wait=0.3, shared=0.2)
        if good
        else draw.one(
            bound=0.4, wait=0.2, narrow=0.2, local=0.2, now=0.05, missing=0.05, broken=0.1
        )
    )
    match kind:
        case "bound":
            return _bound_claim(draw, case, pod, reach="anywhere" if good else "any")
        case "shared":
            return _shared_claim(draw, case, pod, ["ReadWriteMany"])
        case "narrow":
            return _unbound_claim(draw, case, pod, "wait-narrow")
        case "missing":
            return "missing"
        case "broken":
            return _broken_claim(draw, case, pod)
        case _:
            return _unbound_claim(draw, case, pod, kind)


def _new_name(case: Case) -> str:
    taken = {each["metadata"]["name"] for each in case["persistentVolumeClaims"]}
    return next(name for index in count(1) if (name := f"c{index}") not in taken)


def _shared_claim(draw: Draw, case: Case, pod: Json, modes: list[str]) -> str:
    """Return a claim of *pod*'s namespace that others may use already."""
    place = pod["metadata"]["namespace"]
    there = [
        each["metadata"]["name"]
        for each in case["persistentVolumeClaims"]
        if each["metadata"]["namespace"] == place
    ]
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes", [])
        if "persistentVolumeClaim" in volume
    }
    if (free := sorted({*there} - used)) and draw.chance(0.7):
        return str(draw.choice(free))
    return _bound_claim(draw, case, pod, reach="anywhere", modes=modes)


def _claim(case: Case, pod: Json, class_name: str, modes: Sequence[str]) -> Json:
    name = _new_name(case)
    claim: Json = {
        "metadata": {
            "name": name,
            "namespace": pod["metadata"]["namespace"],
            "uid": f"uid-{name}",
            "annotations": {},
        },
        "spec": {
            "storageClassName": class_name,
            "accessModes": list(modes),
            "resources": {"requests": {"storage": "10Gi"}},
        },
        "status": {"phase": "Pending"},
    }
    case["persistentVolumeClaims"].append(claim)
    return claim


def _unbound_claim(draw: Draw, case: Case, pod: Json, class_name: str) -> str:
    claim = _claim(case, pod, class_name, ["ReadWriteOnce"])
    if draw.chance(0.3):
        claim["spec"]["resources"]["requests"]["storage"] = draw.choice(("9Gi", "15Gi"))
    if draw.chance(0.1):
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n1"
    if draw.chance(0.1):
        claim["spec"]["selector"] = {"matchLabels": {"tier": "1"}}
    if draw.chance(0.05):
        claim["spec"]["volumeMode"] = "Block"
    return str(claim["metadata"]["name"])


def _bound_claim(
    draw: Draw, case: Case, pod: Json, *, reach: str, modes: Sequence[str] = ("ReadWriteOnce",)
) -> str:
    claim = _claim(case, pod, draw.choice(("wait", "now")), modes)
    name = claim["metadata"]["name"]
    volume = _volume(draw, f"pv-{name}", claim["spec"]["storageClassName"], modes)
    volume["spec"]["claimRef"] = {
        "kind": "PersistentVolumeClaim",
        "namespace": claim["metadata"]["namespace"],
        "name": name,
        "uid": claim["metadata"]["uid"],
    }
    volume["status"]["phase"] = "Bound"
    if reach == "any":
        _narrow(draw, volume)
    case["persistentVolumes"].append(volume)
    claim["metadata"]["annotations"] = dict(BOUND)
    claim["spec"]["volumeName"] = volume["metadata"]["name"]
    claim["status"]["phase"] = "Bound"
    return str(name)


def _broken_claim(draw: Draw, case: Case, pod: Json) -> str:
    name = _bound_claim(draw, case, pod, reach="anywhere")
    claim = case["persistentVolumeClaims"][-1]
    match draw.one(deleted=0.2, lost=0.2, no_volume=0.2, half_bound=0.2, no_class=0.2):
        case "deleted":
            claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        case "lost":
            claim["status"]["phase"] = "Lost"
            case["persistentVolumes"].pop()
        case "no_volume":
            case["persistentVolumes"].pop()
        case "half_bound":  # by the PersistentVolume controller, in this moment
            claim["metadata"]["annotations"] = {}
        case _:
            case["persistentVolumes"].pop()
            claim["metadata"]["annotations"] = {}
            del claim["spec"]["volumeName"]
            claim["status"]["phase"] = "Pending"
            claim["spec"]["storageClassName"] = draw.choice(("", "gone"))
    return str(name)


def _volume(draw: Draw, name: str, class_name: str, modes: Sequence[str]) -> Json:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "storageClassName": class_name,
            "accessModes": list(modes),
            "capacity": {"storage": "10Gi"},
            "csi": {
                "driver": draw.choice(DRIVERS),
                # Two PersistentVolumes may be one volume.
                "volumeHandle": "shared" if draw.chance(0.05) else name,
            },
        },
        "status": {"phase": "Available"},
    }


def _free_volume(draw: Draw, case: Case) -> None:
    """Add a PersistentVolume that a waiting claim may get."""
    name = f"pv-free-{len(case['persistentVolumes'])}"
    volume = _volume(draw, name, draw.choice(("local", "local", "wait")), ["ReadWriteOnce"])
    _narrow(draw, volume)
    volume["spec"]["capacity"]["storage"] = draw.choice(("9Gi", "10Gi", "10Gi", "20Gi"))
    if draw.chance(0.2):
        volume["metadata"]["labels"] = {"tier": draw.choice(("1", "2"))}
    if draw.chance(0.1):
        volume["spec"]["accessModes"] = ["ReadOnlyMany"]
    if draw.chance(0.05):
        volume["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if draw.chance(0.05):
        volume["status"]["phase"] = "Released"
    if draw.chance(0.15):  # an administrator may keep a PersistentVolume for a claim to come
        kept_for = {"namespace": case["pod"]["metadata"]["namespace"], "name": "c1"}
        if draw.chance(0.3):
            kept_for["uid"] = "another"
        volume["spec"]["claimRef"] = kept_for
    case["persistentVolumes"].append(volume)


def _narrow(draw: Draw, volume: Json) -> None:
    """Let only some nodes reach *volume*."""
    if draw.chance(0.2):
        return
    terms = [
        {
            "matchExpressions": [
                draw.choice(
                    (
                        {
                            "key": ZONE,
                            "operator": "In",
                            "values": draw.some(ZONES, least=1, most=2),
                        },
                        {"key": HOSTNAME, "operator": "In", "values": ["n1", "n2"]},
                        {"key": "disk", "operator": "NotIn", "values": ["ssd"]},
                        {"key": "cores", "operator": "Gt", "values": ["8"]},
                        {"key": "rack", "operator": "Exists"},
                    )
                )
            ]
        }
        for _ in range(draw.choices((1, 2), (5, 1))[0])
    ]
    volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}


def _ephemeral(draw: Draw, case: Case, pod: Json) -> None:
    """Add a volume whose claim is made of the pod, or not yet made, or another's."""
    spec = {
        "storageClassName": "wait",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    }
    _add_volume(pod, {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
    kind = draw.one(owned=0.7, missing=0.15, another=0.15)
    if kind == "missing":
        return
    claim = _claim(case, pod, "wait-narrow" if draw.chance(0.3) else "wait", ["ReadWriteOnce"])
    name = f"{pod['metadata']['name']}-{pod['spec']['volumes'][-1]['name']}"
    claim["metadata"]["name"] = name
    if kind == "owned":
        claim["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
                "controller": True,
            }
        ]
