"""Nodes of which a DRA driver gives out the GPUs: who has which GPU is seen."""

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.claims.book import ClaimBook
from linkwise.extender.state.cache.claims.records import claim_record, slice_record
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.timers import Agenda
from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.extender import claimed
from tests.extender.cluster import GPU, Cluster, change


def states(at: Cluster, node: str) -> list[tuple[str, str]]:
    view = next(view for view in at.core.nodes(at.now) if view.name == node)
    return [(gpu.state, gpu.holder) for gpu in view.gpus]


FREE = ("free", "")


def test_the_gpus_of_a_claim_are_in_use_by_its_pod() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    claimed.add_pod(at, "a", "n1", 1, 2)
    used = ("used", "ml/a")
    assert states(at, "n1") == [FREE, used, used, *[FREE] * 5]
    view = at.core.nodes(at.now)[0]
    assert (view.usable, view.closed) == (True, "")
    assert at.sound()


def test_they_come_free_with_the_claim() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    claimed.add_pod(at, "a", "n1", 1, 2)
    claimed.drop_claim(at, "a-gpus")
    assert states(at, "n1") == [FREE] * 8
    assert at.sound()


def test_nothing_is_placed_there_even_if_a_device_plugin_offers_gpus_too() -> None:
    at = Cluster()
    at.add_node("n1")
    claimed.publish(at, claimed.slice_of("n1", claimed.uuids(at, "n1")))
    at.add_pod("a", 2)
    refused = at.filter("a")
    assert refused.node_names == ()
    assert refused.failed == {"n1": "linkwise: a DRA driver gives out its GPUs, only to claims"}
    assert at.sound()


def test_the_node_is_open_again_once_the_driver_is_gone() -> None:
    at = Cluster()
    at.add_node("n1")
    there = claimed.slice_of("n1", claimed.uuids(at, "n1"))
    claimed.publish(at, there)
    at.add_pod("a", 2)
    assert at.filter("a").node_names == ()
    claimed.withdraw(at, there.metadata.name)
    assert at.filter("a").node_names == ("n1",)
    assert at.sound()


def test_a_plan_is_withdrawn_where_a_driver_begins_to_give_out_the_gpus() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 2, gates=[names.GATE])
    at.settle()
    assert at.plan("a") is not None
    claimed.publish(at, claimed.slice_of("n1", claimed.uuids(at, "n1")))
    at.settle()
    assert at.plan("a") is None
    assert at.sound()


def test_slices_without_a_gpu_of_this_machine_close_no_node() -> None:
    at = Cluster()
    at.add_node("n1")
    claimed.publish(
        at,
        claimed.slice_of("n1", [None, None], driver="compute-domain.nvidia.com"),
        claimed.slice_of("n1", ["GPU-of-another-machine"]),
    )
    at.add_pod("a", 2)
    assert at.filter("a").node_names == ("n1",)


def test_a_tainted_device_counts_as_unhealthy() -> None:
    at = Cluster()
    claimed.add_node(at, "n1", tainted=[0])
    assert states(at, "n1")[:2] == [("unhealthy", ""), FREE]
    assert at.core.counts(at.now).gpus["unhealthy"] == 1


def test_the_node_changes_with_its_driver_and_not_with_each_claim() -> None:
    """What was judged from nodes alone is judged again after the former."""
    at, book = Cluster(), ClaimBook()
    cache = Cache(claims=book)
    cache.put_node(Ingest((GPU,), Agenda()).node(at.add_node("n1")))
    pod = at.add_pod("a", node="n1")

    def rises(changed: set[str]) -> bool:
        before = cache.changed_rows.generation
        assert changed == {"n1"}
        cache.show_claims("n1")
        return cache.changed_rows.generation != before

    assert rises(book.put_slice(slice_record(claimed.slice_of("n1", claimed.uuids(at, "n1")))))
    assert not rises(book.put_claim(claim_record(claimed.claim_of("c", "n1", 0, pods=[pod]))))


def test_claims_before_slices_and_slices_before_the_node() -> None:
    at, first = Cluster(), Cluster()
    claimed.add_node(first, "n1")
    pod = at.add_pod("a", node="n1")
    claimed.claim(at, claimed.claim_of("c", "n1", 0, pods=[pod]))
    claimed.publish(at, *first.slices.values())
    at.put_node(first.nodes["n1"])
    assert states(at, "n1")[:2] == [("used", "ml/a"), FREE]
    assert at.sound()


def test_a_new_leader_knows_the_claims() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    claimed.add_pod(at, "a", "n1", 3)
    at.core.lead(2, at.now)
    assert states(at, "n1")[3] == ("used", "ml/a")


def test_a_claim_shows_the_name_of_a_pod_that_is_gone_and_its_own_without_one() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    claimed.add_pod(at, "a", "n1", 0)
    at.delete("a")
    claimed.claim(at, claimed.claim_of("kept", "n1", 1))
    assert states(at, "n1")[:2] == [("used", "ml/a"), ("used", "ml/kept")]


def test_of_claims_that_share_a_gpu_the_first_one_counts_as_its_holder() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    pods = [at.add_pod(name, node="n1") for name in "ab"]
    claimed.claim(at, *(claimed.claim_of(f"c-{p.metadata.name}", "n1", 0, pods=[p]) for p in pods))
    assert states(at, "n1")[0] == ("used", "ml/a")
    assert at.sound()


def test_a_pod_whose_request_is_served_by_a_claim_counts_with_that_claim_alone() -> None:
    """kube-scheduler makes such a claim for `nvidia.com/gpu` (DRAExtendedResource)."""
    at = Cluster()
    claimed.add_node(at, "n1")
    pod = at.add_pod("a", 2, node="n1")
    claimed.claim(at, claimed.claim_of("a-extended", "n1", 6, 7, pods=[pod]))
    assert [state for state, _ in states(at, "n1")] == [*["free"] * 6, "used", "used"]
    assert at.sound()


def test_metrics_count_the_gpus_in_use_and_the_nodes() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    at.add_node("n2")
    claimed.add_pod(at, "a", "n1", 0, 1)
    counts = at.core.counts(at.now)
    assert (counts.gpus["used"], counts.gpus["free"]) == (2, 14)
    assert (counts.nodes["usable"], counts.nodes["unusable"], counts.nodes["claims"]) == (1, 0, 1)


def test_explain_shows_the_gpus_the_node_and_what_they_are_worth() -> None:
    at = Cluster()
    claimed.add_node(at, "n1", "hgx-h100")
    claimed.add_pod(at, "a", "n1", 2, 3)
    found = at.core.explain("ml", "a", at.now)
    assert found is not None
    assert (found.state, found.node, found.gpus) == ("bound", "n1", {})
    real = at.uuids("n1", 2, 3)
    assert found.claims == {"ml/a-gpus": real}
    assert found.indices == dict(zip(real, (2, 3), strict=True))
    assert found.link == "NVLINK"
    assert found.gbytes_per_s > 0


def test_one_gpu_has_no_link() -> None:
    at = Cluster()
    claimed.add_node(at, "n1", "hgx-h100")
    claimed.add_pod(at, "a", "n1", 2)
    found = at.core.explain("ml", "a", at.now)
    assert found is not None
    assert (found.link, found.gbytes_per_s) == ("", 0.0)


def test_a_pod_that_waits_with_claims_is_not_said_to_take_no_gpu() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    pod = claimed.add_pod(at, "a", "")
    claimed.claim(at, claimed.claim_of("a-gpus", "n1", pods=[pod]))
    found = at.core.explain("ml", "a", at.now)
    assert found is not None
    assert found.summary.startswith("The pod has resource claims")


def test_a_claim_that_watches_others_devices_takes_none() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    pod = at.add_pod("monitor", node="n1")
    claimed.claim(at, claimed.claim_of("c", "n1", 0, 1, pods=[pod], admin=True))
    assert states(at, "n1") == [FREE] * 8


def test_what_the_kubelet_lists_of_claims_counts_once() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    claimed.add_pod(at, "a", "n1", 0, 1)
    at.set_in_use("n1", {"ml/a": {"main": at.uuids("n1", 0, 1)}})
    assert states(at, "n1")[:3] == [("used", "ml/a"), ("used", "ml/a"), FREE]
    assert at.sound()


def test_a_gpu_that_the_node_lacks_takes_nothing() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    old = at.slices["n1-gpu.nvidia.com"]
    devices = (*old.spec.devices[:7], change(old.spec.devices[7], attributes={}))
    claimed.publish(at, change(old, spec=change(old.spec, devices=devices)))
    claimed.add_pod(at, "a", "n1", 7)
    assert states(at, "n1") == [*[FREE] * 7, ("unhealthy", "")]


def test_a_kubelet_may_offer_any_amount_too() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    node = at.nodes["n1"]
    plenty = dict.fromkeys(("cpu", "memory", "pods", GPU), "9223372036854775807")
    at.put_node(change(node, status=change(node.status, allocatable=plenty)))
    at.add_node("n2")
    at.add_pod("a", 8)
    assert at.filter("a").node_names == ("n2",)
    at.add_gang("g", 2, gpus=4)
    at.settle()
    assert at.places("g-0", "g-1") == ["n2", "n2"]
    assert at.sound()


def test_a_mirror_pod_with_a_wrong_claim_says_nothing_of_pods_that_are_alike() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")

    def mirror(pod: Pod) -> Pod:
        said = {MIRROR_POD: "x", names.CLAIMS: "{"}
        return change(pod, metadata=change(pod.metadata, annotations=said))

    at.add_pod("m", 1, node="n1", alter=mirror)
    at.add_pod("a", 1)
    assert at.filter("a").node_names
