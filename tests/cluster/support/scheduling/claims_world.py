"""A `SchedulingWorld` whose GPUs come from claims, as people get it: the webhook changes the pods,
and kube-scheduler has no configuration.

The slices are published by hand, as a DRA driver would.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from linkwise.pods.podgrouper.workloads.kinds import OwnerKind
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.scheduling.dra import add_nodes
from tests.cluster.support.scheduling.extender_process import (
    ADMISSION_OFF,
    ExtenderProcess,
    allow_extender,
    guard_plans,
)
from tests.cluster.support.scheduling.late_claims import of_chart
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    NODES,
    SchedulingWorld,
    started_world,
)
from tests.cluster.support.scheduling.webhook import Webhook
from tests.cluster.support.scheduling.workload_pods import define, wait_defined

PLUGIN, CLAIMS = "plugin", "claims"
both_ways = pytest.mark.parametrize("started", [PLUGIN, CLAIMS], indirect=True, scope="module")
"""That a test's fixture `started` takes, for `world_with`."""
by_plugin = pytest.mark.parametrize("started", [PLUGIN], indirect=True, scope="module")
_CONTROLLERS = "resourceclaim-controller", "garbage-collector-controller"


class ClaimsWorld(SchedulingWorld):
    def start(self, nodes: Sequence[str] = NODES) -> None:
        self.control.kubectl("create", "namespace", NAMESPACE)
        allow_extender(self.control)
        self.control.kubectl("apply", "-f=-", stdin=of_chart("account.yaml"))
        self.extender = ExtenderProcess(self.control, *self._extender_flags)
        guard_plans(self.control)
        self._nodes = sorted(nodes)
        add_nodes(self, *nodes, labels=self._labels)
        self.extender.start()
        self.webhook = Webhook(self.control, "--gpus-from-claims", manifests=_manifests)
        self.webhook.register(timeoutSeconds=30)
        self.webhook.start()
        self.webhook.wait_asked()
        self.scheduler = self.control.start_scheduler(flags=self._scheduler_flags)

    def stop(self) -> None:
        self.webhook.process.stop()
        super().stop()

    def wait_without_room(self, name: str) -> None:
        self.wait_waiting(name, "free and suitable")

    def wait_in_gang(self, name: str) -> None:
        self.wait_waiting(name, "gang")

    def reason(self, name: str) -> str:
        """kube-scheduler says nothing of a pod behind a gate."""
        return self.extender.explain(NAMESPACE, name)


def _manifests(file: str) -> list[dict[str, object]]:
    return [each for each in yaml.safe_load_all(of_chart(file, "webhook")) if each]


@contextmanager
def world_with(
    way: str,
    directory: Path,
    nodes: Sequence[str] = NODES,
    *,
    controllers: Sequence[str] = (),
    kinds: Iterable[OwnerKind] = (),
    extender_flags: Sequence[str] = (),
    labels: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[SchedulingWorld]:
    """A world whose GPUs come from device plugins, or from claims. *kinds* of operators exist."""
    needed = [*controllers, *(_CONTROLLERS if way == CLAIMS else ())]
    control = ControlPlane(
        directory.with_name(f"{directory.name}-{way}"),
        controllers=bool(needed),
        controller_flags=(f"--controllers={','.join(needed)}",),
        disable_admission=ADMISSION_OFF,
    )
    control.start()
    if kinds := [*kinds]:
        define(control, kinds)
    kind = ClaimsWorld if way == CLAIMS else SchedulingWorld
    with started_world(kind(control, extender_flags=extender_flags, labels=labels), nodes) as world:
        if kinds:
            wait_defined(control)
        yield world
