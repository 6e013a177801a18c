"""What operators and waiting users see of idle pods that may be evicted for others."""

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.idle.idle_pods import view_idle
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.views import ReclaimView
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.next.preemption.idle_for import (
    FOUR_HOURS,
    HOUR,
    NOTICE,
    cluster,
    idle_for,
    run,
    run_gang,
    wait,
)


def reclaim_of(at: Cluster, gang: str) -> ReclaimView | None:
    found = Explainer(at.core.snapshot(at.now)).gang("ml", gang, runner_up=True)
    assert found is not None
    return found.reclaim


def times(at: Cluster) -> dict[str, float | None]:
    """In how many seconds each idle pod may be evicted."""
    return {
        pod.pod.removeprefix("ml/"): pod.reclaim_from and pod.reclaim_from - at.now
        for pod in view_idle(at.core.snapshot(at.now)).pods
    }


def test_each_idle_pod_shows_from_when_on_it_may_be_evicted() -> None:
    at = cluster(2, CoreSettings(reclaim_idle=(("ml", 4 * HOUR),)))
    run(at, "nb", 4, "n1")
    run(at, "never", 4, "n1", said={"reclaim-when-idle": "never"})
    run(at, "longer", 8, "n2", said={"reclaim-when-idle": "6h"})
    idle_for(at, 3 * HOUR, "nb", "never", "longer")
    assert times(at) == {"nb": HOUR + NOTICE, "never": None, "longer": 3 * HOUR + NOTICE}
    idle_for(at, 2 * HOUR, "nb", "never", "longer")
    assert times(at) == {"nb": NOTICE, "never": None, "longer": HOUR + NOTICE}
    idle_for(at, HOUR / 2, "nb", "never", "longer")
    assert times(at) == {"nb": NOTICE - HOUR / 2, "never": None, "longer": HOUR / 2 + NOTICE}


def test_a_gang_that_works_in_part_shows_none() -> None:
    at = cluster(2)
    lazy = run_gang(at, "lazy", 2, reclaim_when_idle="4h")
    idle_for(at, 5 * HOUR, lazy[0], works=[lazy[1]])
    assert times(at) == {lazy[0]: None}
    idle_for(at, 0, *lazy)
    assert times(at) == {lazy[0]: None, lazy[1]: None}
    idle_for(at, 20, *lazy)
    assert times(at) == dict.fromkeys(lazy, NOTICE)


def test_a_waiting_gang_is_explained_with_the_idle_pods_that_will_go_for_it() -> None:
    at = cluster(3)
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    run(at, "important", 8, "n2", said=FOUR_HOURS, priority=1)
    run(at, "stays", 8, "n3")
    wait(at, "train", 2, 4)
    at.now += 1
    wait(at, "large", 2)
    idle_for(at, 4 * HOUR, "nb", "important", "stays")
    assert reclaim_of(at, "train") == ReclaimView(("pod ml/nb",), at.now + NOTICE)
    assert reclaim_of(at, "large") is None
    found = Explainer(at.core.snapshot(at.now)).gang("ml", "train", runner_up=True)
    assert found is not None
    assert (
        "  idle      without pod ml/nb it would start: Linkwise evicts idle pods from "
        "1970-01-12 17:56:41 UTC on (in 10m)"
    ) in explanation_text.gang(found, at.now)
    idle_for(at, NOTICE, "nb", "important", "stays")
    assert at.evicted == ["nb"]
    assert reclaim_of(at, "train") is None  # it says that pods are evicted for it
    text = Explainer(at.core.snapshot(at.now)).gang("ml", "train", runner_up=True)
    assert text is not None
    assert "are being evicted for it" in explanation_text.gang(text, at.now)


def test_a_single_pod_in_the_queue_is_explained_with_them_too() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    at.add_pod("job", 2, gates=[names.GATE])
    idle_for(at, 4 * HOUR, "nb")
    found = at.core.explain("ml", "job", at.now)
    assert found is not None
    assert found.reclaim == ReclaimView(("pod ml/nb",), at.now + NOTICE)
    assert "without pod ml/nb it would start" in explanation_text.pod(found, at.now)


def test_what_may_not_preempt_and_what_has_room_is_explained_without_them() -> None:
    at = cluster(2)
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    idle_for(at, 4 * HOUR, "nb")
    wait(at, "train")
    assert reclaim_of(at, "train") is None
