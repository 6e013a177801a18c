"""The runner-up of a gang's placement, as `explain` tells it."""

from linkwise.extender.api.views import RunnerUpView
from linkwise.extender.explain.explainer import Explainer
from tests.extender.cluster import Cluster


def runner_up(at: Cluster, gang: str = "g") -> RunnerUpView | None:
    found = Explainer(at.core.snapshot(at.now)).gang("ml", gang, runner_up=True)
    assert found is not None
    return found.gang.runner_up
