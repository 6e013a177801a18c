"""What one node writes is its word about itself: others notice nothing.

The table here is the one of docs/operating/security.md. Each row is written by node `evil` in
one of two clusters that are equal otherwise. It takes no new pods, so none comes to it.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.state.records import NotedMove, QueueNote, write_queue_note
from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import Condition, Container, Pod, Resources, Taint
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.annotations.plan import InUse, PlannedMember, write_in_use
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from tests.extender import late_claims
from tests.extender.claimed import publish, slice_of
from tests.extender.cluster import GPU, Cluster, change

EVIL, HONEST = "evil", ("n1", "n2", "n3")
EFA = "vpc.amazonaws.com/efa"


def mirrored(pod: Pod) -> Pod:
    said = {**pod.metadata.annotations, MIRROR_POD: "x"}
    return change(pod, metadata=change(pod.metadata, annotations=said))


def mirror_pods(at: Cluster) -> None:
    for number in range(3):
        at.add_pod(
            f"static-{number}",
            8,
            node=EVIL,
            alter=mirrored,
            gang="waits",
            gang_size="2",
            expected_duration="1s",
        )
        at.set_phase(f"static-{number}", "Running")
    at.set_phase("static-2", "Succeeded")


def another_topology(at: Cluster) -> None:
    for lanes in range(12):
        gpus = tuple(Gpu(f"GPU-{index}", index, "NVIDIA H100", 81920) for index in range(2))
        machine = Machine(gpus=gpus, links=(Link(LinkClass.PIX, lanes),))
        at.annotate_node(EVIL, names.TOPOLOGY, write_topology(machine))
        at.settle()


def gpus_in_use(at: Cluster) -> None:
    theirs = tuple(gpu.uuid for gpu in at.machine("n3").gpus)
    said = InUse(pods={"ml/runs-0": {"main": theirs}, "ml/waits-0": {"main": theirs[:1]}})
    at.annotate_node(EVIL, names.IN_USE, write_in_use(said))


def labels_taints_and_conditions(at: Cluster) -> None:
    node = at.nodes[EVIL]
    labels = {**node.metadata.labels, "kubernetes.io/hostname": "n3", "zone": "n3"}
    at.put_node(
        change(
            node,
            metadata=change(node.metadata, labels=labels),
            spec=change(node.spec, taints=(Taint(key="evil", effect="NoExecute"),)),
            status=change(node.status, conditions=(Condition(type="Ready", status="False"),)),
        )
    )


def the_status_of_its_pods(at: Cluster) -> None:
    for message in (
        "Pod was rejected: Allocate failed due to cannot allocate unregistered device "
        f"{GPU}, which is unexpected",
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{GPU}. Requested: 1, Available: 999999999999, which is unexpected",
    ):
        at.put_pod(
            change(
                at.pod("guest"),
                status=change(
                    at.pod("guest").status,
                    phase="Failed",
                    reason="UnexpectedAdmissionError",
                    message=message,
                ),
            )
        )


def slices(at: Cluster) -> None:
    """In a cluster whose GPUs come of claims, as there are none in *at*."""
    of_claims = late_claims.cluster("n1", EVIL)
    forged = slice_of(EVIL, (), name="forged", generation=999_999)
    pool = change(forged.spec.pool, name="n1")
    forged = change(forged, spec=change(forged.spec, pool=pool))
    publish(of_claims, forged)
    of_claims.cordon(EVIL)
    late_claims.add(of_claims, "asks", 8)
    of_claims.settle()
    assert of_claims.places("asks") == ["n1"]
    at.core.slice_event("ADDED", forged, at.now)


def listed_resources(at: Cluster) -> None:
    node = at.nodes[EVIL]
    made_up = {f"evil.example/r{number}": "1" for number in range(300)}
    allocatable = {**node.status.allocatable, **made_up, GPU: "4096"}
    at.put_node(change(node, status=change(node.status, allocatable=allocatable)))


def notes_of_moves(at: Cluster) -> None:
    uid = at.pod("guest").metadata.uid
    moves = (NotedMove("ml/friend", uid, "uid-of-a-friend", "n3", "ff"),)
    note = QueueNote(uid=uid, moves=moves, moves_at=at.now)
    at.annotate("guest", queue=write_queue_note(note))
    at.terminate("guest")


def places_of_others(at: Cluster) -> None:
    written = at.plan("guest")
    assert written is not None
    wanted = {"waits-0": 255, "two-nics": 1}
    others = tuple(PlannedMember(at.pod(name).metadata.uid, "n3", wanted[name]) for name in wanted)
    at.write_plan("guest", change(written, others=others), at.gpus("guest"))


WRITES: dict[str, Callable[[Cluster], None]] = {
    "mirror pods": mirror_pods,
    "another topology": another_topology,
    "GPUs in use": gpus_in_use,
    "labels, taints and conditions": labels_taints_and_conditions,
    "the status of pods": the_status_of_its_pods,
    "ResourceSlices": slices,
    "resources that it lists": listed_resources,
    "places of others": places_of_others,
    "notes of moves": notes_of_moves,
}


def cluster() -> Cluster:
    """A gang runs on n1 and n2, a guest on evil; a gang of two waits, as n3 alone is free."""
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.CONSENT)))
    for name in (EVIL, *HONEST):
        at.add_node(name, "hgx-h100")
        node = at.nodes[name]
        status = change(node.status, allocatable={**node.status.allocatable, EFA: "1"})
        at.put_node(change(node, status=status))
    at.add_pod("guest", 4)
    at.bind("guest", EVIL)
    at.cordon(EVIL)
    at.add_gang("runs", 2, 8)
    at.settle()
    for member in ("runs-0", "runs-1"):
        assert at.schedule(member) in HONEST
        at.set_phase(member, "Running")
    at.add_gang("waits", 2, 8)
    nics = Resources(requests={GPU: "1", EFA: "2"}, limits={GPU: "1", EFA: "2"})
    pod = Container(name="main", resources=nics)
    at.add_pod("two-nics", containers=(pod,), gates=[names.GATE])
    at.settle()
    return at


def seen(at: Cluster) -> tuple[object, list[str]]:
    """All that others see, now and after the running gang has ended."""
    states: list[object] = []
    for end in (False, True):
        if end:
            for member in ("runs-0", "runs-1"):
                at.set_phase(member, "Succeeded")
                at.delete(member)
        for _ in range(2):
            at.pass_time(60)
        views = [view for view in at.core.nodes(at.now) if view.name in HONEST]
        gangs = [
            (view.name, view.phase, [(each.pod, each.state, each.node) for each in view.members])
            for view in at.core.gangs(at.now)
        ]
        states.append(([(v.name, v.usable, v.free, v.reserved, v.reason) for v in views], gangs))
    states.append(at.plan("two-nics"))  # none, as no node has so many
    return states, [at.schedule(member) for member in ("waits-0", "waits-1")]


@pytest.mark.parametrize("restarts", [False, True], ids=["", "and the extender restarts"])
@pytest.mark.parametrize("row", WRITES)
def test_others_notice_nothing(row: str, restarts: bool) -> None:
    honest, other = cluster(), cluster()
    WRITES[row](other)
    for at in (honest, other):
        at.settle()
        if restarts:
            at.restart()
        assert at.sound()
    found = seen(other)
    assert found == seen(honest)
    assert all(found[1]), "the gang that waited is bound"


def test_the_table_is_that_of_the_page() -> None:
    page = Path(__file__).parents[2] / "docs" / "operating" / "security.md"
    _, _, section = page.read_text().partition("| it writes | it counts as |\n|---|---|\n")
    rows = section.partition("\n\n")[0].splitlines()
    cells = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", row.split("|")[1]).strip() for row in rows]
    assert [next(row for row in WRITES if cell.startswith(row)) for cell in cells] == [*WRITES]
