"""The runner-up of a gang's placement, as `explain` tells it."""

from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.state.views import RunnerUpView
from tests.extender.cluster import Cluster


def runner_up(at: Cluster, gang: str = "g") -> RunnerUpView | None:
    found = Explainer(at.core.snapshot(at.now)).gang("ml", gang, runner_up=True)
    assert found is not None
    return found.gang.runner_up
