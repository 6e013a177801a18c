"""Linkwise in front of a vendor's plugin, on real kubelets: adopted, broken, updated, removed.

The vendor's plugin is made of Kubernetes' own stub of one. The last test takes every step of
docs/operating/adopt-step-by-step.md, with the commands and values of the page.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support.api.chart import values
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import shell, workloads
from tests.cluster.support.nodes.deployment import GPU, MACHINE, MACHINE_LABEL, wait_until_none
from tests.cluster.support.nodes.faults import (
    HERE,
    KUBELET,
    PLUGIN,
    THERE,
    AllocationPhase,
    ClusterFault,
    Work,
)
from tests.cluster.support.nodes.gpu_holders import (
    assert_agreed,
    assert_sound,
    given,
    key_of,
    planned,
    podresources,
    running,
    running_pod,
)
from tests.cluster.support.nodes.in_front import (
    KUBELET_SOCKET,
    LINKWISE_SOCKET,
    MIG,
    SHARED,
    VENDOR,
    VENDOR_PLUGIN,
    InFront,
)
from tests.cluster.support.nodes.installation import ADDRESS, import_scheduler
from tests.cluster.support.nodes.recovery import (
    named,
    sharing_a_node,
    strike,
    undisturbed,
    update_under_load,
)
from tests.doc_pages import OPERATING
from tests.manifests import DAEMONSET
from tests.value_pages import examples, sections

P = AllocationPhase
# Where the kubelet has no list of devices for a moment, or an Allocate fails, it refuses for good a
# pod that it has not admitted.
MAY_REFUSE = {P.CREATED, P.PLANNED, P.BOUND, P.ASKED}
CELLS = [
    *((PLUGIN, phase) for phase in AllocationPhase),
    *((VENDOR_PLUGIN, phase) for phase in (P.ASKED, P.RUNNING)),
    (KUBELET, P.RUNNING),
]
# Nodes without GPUs, which have the image, and a cluster without DNS.
GIVEN = values(
    image__registry="",
    image__pullPolicy="Never",
    plugin__simulatedMachines=True,
    extender__service__clusterIP=ADDRESS,
)
PAGE = (OPERATING / "adopt-step-by-step.md").read_text()
LEAVING = sections("upgrade-and-uninstall.md")["Uninstall"]
(FREED,) = re.findall(r"^```\n(kubectl get pods -A .*?)^```$", LEAVING, re.M | re.S)
TEAM, OTHERS = "team-a", "default"
OURS = "app.kubernetes.io/part-of=linkwise"
DONE = "kubectl rollout status --timeout=90s -n kube-system"
SECOND, STOCK = "linkwise-scheduler", "default-scheduler"


@pytest.fixture(scope="module")
def world(run_directory: Path) -> Iterator[InFront]:
    """Two nodes, at first with the vendor's plugin alone."""
    deployed = InFront(run_directory / "in-front")
    try:
        deployed.start()
        yield deployed
    finally:
        deployed.stop()
        shutil.rmtree(deployed.directory, ignore_errors=True)


@pytest.fixture
def alone(world: InFront) -> Iterator[InFront]:
    """The vendor's plugin without Linkwise; after the test no device may be held."""
    if world.adopted:
        world.leave()
    yield world
    world.clear()
    wait_until_none(world.left)


@pytest.fixture
def in_front(world: InFront) -> Iterator[InFront]:
    """Linkwise in front of the vendor's plugin; after the test nothing of it may be left."""
    if not world.adopted:
        world.adopt()
    yield world
    world.clear()
    wait_until_none(world.left)


def test_adoption_loses_no_pod_and_no_device(alone: InFront) -> None:
    for node in (HERE, THERE):
        alone.apply(workloads.pod(f"early-{node}", 2, node=node, labels={"app": "early"}))
    alone.apply(workloads.pod("early-shared", 1, resource=SHARED, labels={"app": "early"}))
    before, held = running(alone, "app=early", 3), alone.held()
    alone.adopt()
    assert undisturbed(before, running(alone, "app=early", 3))
    assert alone.held() == held
    alone.apply(workloads.job("late", 4, pods=2, gang=True))
    early = {gpu for pods in held[HERE][GPU].values() for gpus in pods.values() for gpu in gpus}
    for pod in running(alone, "job-name=late", 2):
        assert_agreed(alone, pod)
        shares = podresources(alone.cluster.nodes[HERE]).get(f"default/{pod['metadata']['name']}")
        assert early.isdisjoint(frozenset().union(*(shares or {}).values()))


def test_whole_gpus_are_as_planned_and_all_else_as_the_vendor_says(in_front: InFront) -> None:
    gang = workloads.job("train", 4, pods=2, gang=True)
    single = workloads.pod("single", {"c1": 1, "c2": 1}, init={"i1": 2}, sidecars={"side": 1})
    shared = [workloads.pod(f"shared-{number}", 2, resource=SHARED) for number in range(2)]
    cut = [workloads.pod(f"mig-{number}", 1, resource=MIG) for number in range(2)]
    in_front.apply(gang, single)
    for pod in (*shared, *cut):  # one after the other: which devices are free is then known
        in_front.apply(pod)
        running_pod(in_front, pod["metadata"]["name"])
    gpu_pods = [*running(in_front, "job-name=train", 2), running_pod(in_front, "single")]
    assert_sound(in_front)  # the kubelet, which asks about no sidecar, may have chosen for it
    for pod in gpu_pods:
        assert_agreed(in_front, pod)

    offers, held = in_front.offers(THERE), in_front.held()[THERE]
    first, second, third, fourth = offers[SHARED]
    assert held[SHARED] == {
        "default/shared-0": {"main": frozenset({third, fourth})},
        "default/shared-1": {"main": frozenset({first, second})},
    }
    one, two = offers[MIG]
    assert held[MIG] == {
        "default/mig-0": {"main": frozenset({two})},
        "default/mig-1": {"main": frozenset({one})},
    }
    assert given(in_front, "shared-0", "main") == {first.partition("::")[0]}
    assert given(in_front, "mig-0", "main") == {two}
    log = in_front.vendor_log(THERE).splitlines()
    for device in (third, two):
        assert [line for line in log if '"PreStartContainer"' in line and device in line]


@named(CELLS)
def test_each_part_is_killed_at_each_moment(
    in_front: InFront, fault: ClusterFault, phase: AllocationPhase
) -> None:
    strike(in_front, fault, phase, sharing_a_node(phase), may_refuse=phase in MAY_REFUSE)


@pytest.mark.parametrize("daemonset", ["linkwise-plugin", VENDOR])
def test_an_update_under_load_disturbs_no_running_pod(in_front: InFront, daemonset: str) -> None:
    steady = Work([workloads.job("steady", 2, pods=2, gang=True)], "job-name=steady", 2)
    load = Work([workloads.deployment("load", 2, replicas=1)], "app=load", 5)
    update_under_load(in_front, daemonset, steady, load)


def test_back_to_the_vendors_plugin_alone_loses_no_pod(in_front: InFront) -> None:
    in_front.apply(
        *(workloads.pod(f"w-{n}", 2, node=n, labels={"app": "w"}) for n in (HERE, THERE)),
        workloads.pod("w-shared", 1, resource=SHARED, labels={"app": "w"}),
    )
    before = running(in_front, "app=w", 3)
    assert_sound(in_front)
    held = in_front.held()
    in_front.leave()
    assert undisturbed(before, running(in_front, "app=w", 3))
    assert in_front.held() == held
    wait_until_none(in_front.unoffered)
    wait_until_none(in_front.traces)
    in_front.apply(workloads.pod("after", 6, node=HERE))  # all that is free there
    running_pod(in_front, "after")
    assert len(given(in_front, "after", "main")) == 6


def command(text: str, begin: str) -> str:
    """The command of a page that begins so, in a line or among words."""
    (found,) = set(re.findall(rf"^{begin}.*$|(?<=`){begin}[^`\n]*(?=`)", text, re.M))
    return str(found)


class Operator:
    """Someone who types the commands of the page, in a directory with the chart."""

    def __init__(self, world: InFront, home: Path) -> None:
        self.world, self.home = world, home
        (home / "daemonset").symlink_to(DAEMONSET)

    def type(self, *commands: str) -> None:
        typed = self.home / "typed"
        typed.write_text("\n".join(("set -ex", *commands, "")))
        with typed.open() as stdin:
            assert shell.run_shell(self.world.control, self.home, 0, stdin) == 0, commands

    def take(self, step: str, **changed: object) -> None:
        """Take the step of the page, with these of its values changed."""
        (example,) = (each for each in examples() if each.section == step)
        (self.home / "my-values.yaml").write_text(example.text)
        more = shlex.join((*GIVEN, *values(**changed)))
        self.type(f"{command(PAGE, 'helm upgrade')} {more}", f"{DONE} deployments -l {OURS}")

    def check(self) -> None:
        """Let the doctor look once the plugin runs."""
        self.type(f"{DONE} daemonset/linkwise-plugin", "kubectl linkwise doctor")
        wait_until_none(self.world.unoffered)

    def puts_in_front(self, *nodes: str) -> None:
        self.world.wait_registry(*nodes)
        self.world.register(LINKWISE_SOCKET, *nodes)
        self.check()

    def starts(self, namespace: str, node: str = "") -> tuple[str, bool]:
        """Return the scheduler of a new pod, and whether it has the GPUs of a plan."""
        manifest = workloads.pod("new", 2, node=node)
        manifest["metadata"]["namespace"] = namespace
        self.world.apply(manifest)
        new = (f"-n={namespace}", "pod/new")
        self.world.kubectl("wait", "--for=condition=Ready", *new, "--timeout=60s")
        pod = json.loads(self.world.kubectl("get", *new, "-o=json"))
        held = podresources(self.world.cluster.nodes[pod["spec"]["nodeName"]])[key_of(pod)]
        assert len(held["main"]) == 2
        is_planned = "linkwise" in str(pod["metadata"].get("annotations"))
        assert planned(pod) == (held if is_planned else {})
        self.world.kubectl("delete", *new)
        return pod["spec"]["schedulerName"], is_planned

    def waiting(self) -> list[tuple[str, bool]]:
        """Of each pod of the waiting Job: its scheduler, and whether a gate holds it."""
        specs = [
            pod["spec"]
            for pod in self.world.pods("job-name=waiting", namespace=TEAM)
            if "deletionTimestamp" not in pod["metadata"]
        ]
        return [(spec["schedulerName"], bool(spec.get("schedulingGates"))) for spec in specs]


def test_every_step_of_the_adoption_page_and_each_way_back(alone: InFront, tmp_path: Path) -> None:
    operator = Operator(alone, tmp_path)
    label = command(PAGE, "kubectl label node").replace("gpu-1", HERE)
    import_scheduler(alone.cluster)
    alone.kubectl("create", "namespace", TEAM)
    for node in (HERE, THERE):
        alone.kubectl("label", "--overwrite", "node", node, f"{MACHINE_LABEL}={MACHINE}")
        alone.apply(workloads.pod(f"early-{node}", 1, node=node, labels={"app": "early"}))
    before = running(alone, "app=early", 2)

    operator.take("1. Observe")
    operator.check()
    assert operator.starts(TEAM) == (STOCK, False)

    # A canary by namespace.
    operator.take("2. Canary", plugin__nodeSelector=None)
    operator.type(command(PAGE, "kubectl -n kube-system delete pods"))
    operator.puts_in_front(HERE, THERE)
    assert operator.starts(TEAM, THERE) == (SECOND, True)
    assert operator.starts(OTHERS, THERE) == (STOCK, False)
    # By node too, as on the way back from the third step.
    operator.type(label)
    alone.register(KUBELET_SOCKET, THERE)
    operator.take("2. Canary")
    operator.check()
    assert operator.starts(TEAM) == (SECOND, True)
    assert [operator.starts(OTHERS, node) for node in (HERE, THERE)] == [(STOCK, False)] * 2
    # Back for one node: there, pods are placed by count.
    alone.register(KUBELET_SOCKET, HERE)
    operator.type(label.replace("=true", "-"))
    wait_until_none(alone.traces)
    wait_until_none(alone.unoffered)
    assert operator.starts(TEAM, HERE) == (SECOND, False)
    operator.type(label)
    operator.puts_in_front(HERE)

    operator.take("3. Enforce")
    operator.puts_in_front(THERE)
    assert operator.starts(OTHERS, THERE) == (SECOND, True)
    gang = workloads.job("waiting", 8, pods=2, gang=True)
    alone.kubectl("create", f"-n={TEAM}", "-f=-", stdin=json.dumps(gang))
    wait_for(lambda: operator.waiting() == [(SECOND, True)] * 2, "both pods are gated")

    # Back: a namespace, without pods; then to observing, and to nothing.
    operator.take("2. Canary", plugin__nodeSelector=None, extender__flags__namespace=["none"])
    wait_for(lambda: operator.waiting() == [(SECOND, False)] * 2, "the gates are lifted")
    operator.check()
    assert operator.starts(OTHERS, THERE) == (STOCK, False)
    alone.register(KUBELET_SOCKET, HERE, THERE)
    operator.take("1. Observe")
    operator.type(FREED)
    wait_for(lambda: operator.waiting() == [(STOCK, False)] * 2, "nothing of Linkwise holds them")
    operator.check()
    assert operator.starts(TEAM, HERE) == (STOCK, False)
    operator.type(command(LEAVING, "helm uninstall linkwise"), label.replace("=true", "-"))
    wait_until_none(alone.traces)
    assert not alone.unoffered()
    assert undisturbed(before, running(alone, "app=early", 2))
    alone.kubectl("delete", "namespace", TEAM)
