"""What plugins say of pods that work, and of those that do not."""

from linkwise.extender.show.explain.idle.idle_pods import view_idle
from linkwise.extender.state.views import IdleView
from linkwise.topology import names
from linkwise.topology.annotations.activity import Activity, PodActivity, write_activity
from tests.extender.cluster import START, Cluster

HOUR = 3600
BEGAN = int(START)


def idle(at: Cluster) -> IdleView:
    at.settle()
    return view_idle(at.core.snapshot(at.now))


def run(at: Cluster, *pods: str) -> None:
    for name in pods:
        assert at.schedule(name), name
        at.start(name)


def say(at: Cluster, node: str, **pods: PodActivity) -> None:
    """What the plugin of the node writes now."""
    told = {f"ml/{name.replace('_', '-')}": pod for name, pod in pods.items()}
    text = write_activity(Activity(at=int(at.now), pods=told))
    at.annotate_node(node, names.ACTIVITY, text)


def quiet(hours: float = 0, **more: int) -> PodActivity:
    """Since it was given its GPUs, or so many hours later."""
    return PodActivity(since=BEGAN, whole=True, idle=BEGAN + round(hours * HOUR), **more)
