from typing import Any

import pytest

from linkwise.kube.objects import Container, Pod, PodSpec, Resources
from linkwise.pods.annotations import GangAsk, PodRequest, ask_of, demand_of
from linkwise.pods.requirement import (
    HardwareRequirement,
    TopologyRequirement,
    is_model,
    words_of,
)
from linkwise.pods.spans import Spans
from linkwise.topology.demand import ContainerDemand, Role
from linkwise.topology.errors import AnnotationError
from linkwise.topology.machine.model import LinkClass
from tests.extender.cluster import GPU, container

INDEX = "batch.kubernetes.io/job-completion-index"


def ask(**said: str) -> PodRequest:
    return ask_of({f"linkwise.dev/{key.replace('_', '-')}": text for key, text in said.items()}, {})


def of_each(**hardware: Any) -> TopologyRequirement:
    return TopologyRequirement(hardware=HardwareRequirement(**hardware))


def test_a_pod_that_says_nothing_prefers_nvlink_and_requires_nothing() -> None:
    said = ask_of({"prometheus.io/scrape": "true"}, {})
    assert said.requirement == TopologyRequirement(require=LinkClass.SYS, prefer=LinkClass.NVLINK)
    assert said.gang is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"require_link": "nvlink"}, TopologyRequirement(require=LinkClass.NVLINK)),
        ({"require_link": "switch"}, TopologyRequirement(require=LinkClass.PXB)),
        ({"prefer_link": "node"}, TopologyRequirement(prefer=LinkClass.SYS)),
        (
            {"gpu_model": "H100, h200"},
            of_each(models=(("h100",), ("h200",))),
        ),
        (
            {"gpu_model": "A100-SXM4"},
            of_each(models=(("a100", "sxm4"),)),
        ),
        (
            {"gpu_memory": "40Gi"},
            of_each(memory_mib=40 * 1024),
        ),
        (
            {"gpu_memory": "80G"},
            of_each(memory_mib=76294),
        ),
    ],
)
def test_which_gpus_will_do(said: dict[str, str], expected: TopologyRequirement) -> None:
    assert ask(**said).requirement == expected


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("10m", 600.0), ("1h30m", 5400.0), ("90s", 90.0), ("1h2m3s", 3723.0)]
)
def test_a_gang_says_its_size_and_may_say_how_long_it_waits(timeout: str, seconds: float) -> None:
    said = ask(gang="train", gang_size="4", gang_timeout=timeout)
    assert said.gang == GangAsk("train", size=4, minimum=4, timeout_seconds=seconds)


def test_a_gang_may_say_how_many_of_it_are_enough_to_start() -> None:
    assert ask(gang="train", gang_size="4", gang_min="3").gang == GangAsk("train", 4, 3)
    assert ask(gang="train", gang_size="4").gang == GangAsk("train", 4, 4)


@pytest.mark.parametrize(
    ("said", "levels"),
    [
        ("node", ("node",)),
        ("clique, topology.kubernetes.io/zone", ("clique", "topology.kubernetes.io/zone")),
        ("rack", ("rack",)),
    ],
)
def test_how_near_a_gangs_members_are_to_be(said: str, levels: tuple[str, ...]) -> None:
    assert ask(require_span=said).spans == Spans(require=levels)
    assert ask(prefer_span=said).spans == Spans(prefer=levels)


def test_whether_it_may_be_evicted_and_how_long_it_will_run() -> None:
    assert ask(preemptible="true").preemptible
    assert not ask(preemptible="false").preemptible
    assert ask(expected_duration="2h").expected_seconds == 7200.0
    assert ask(rank="1").expected_seconds is None


@pytest.mark.parametrize(
    ("said", "key", "expected"),
    [
        ({"require_link": "nvlnk"}, "require-link", "nvlink, switch, host-bridge, numa, node"),
        ({"prefer_link": ""}, "prefer-link", "nvlink, switch, host-bridge, numa, node"),
        ({"gpu_model": "H100,,A100"}, "gpu-model", "model names like H100,H200"),
        ({"gpu_memory": "lots"}, "gpu-memory", "a quantity like 40Gi"),
        ({"gpu_memory": "0"}, "gpu-memory", "a quantity like 40Gi"),
        ({"gang": "g", "gang_size": "four"}, "gang-size", "a whole number from 1 to 4096"),
        ({"gang": "g", "gang_size": "0"}, "gang-size", "a whole number from 1 to 4096"),
        ({"gang": "g", "gang_size": "+4"}, "gang-size", "a whole number from 1 to 4096"),
        ({"gang": "g", "gang_size": "2", "gang_timeout": "soon"}, "gang-timeout", "10m, 1h30m"),
        ({"gang": "g", "gang_size": "2", "gang_timeout": "0s"}, "gang-timeout", "10m, 1h30m"),
        ({"gang": "g"}, "gang", "linkwise.dev/gang-size beside it, with the number of members"),
        ({"gang_size": "4"}, "gang-size", "linkwise.dev/gang beside it, with a gang's name"),
        ({"gang_timeout": "10m"}, "gang-timeout", "linkwise.dev/gang beside it"),
        (
            {"gang": "g", "gang_size": "4", "gang_min": "5"},
            "gang-min",
            "from 1 to 4, the linkwise.dev/gang-size",
        ),
        ({"gang": "g", "gang_size": "4", "gang_min": "0"}, "gang-min", "from 1 to 4, the linkw"),
        ({"gang_min": "4"}, "gang-min", "linkwise.dev/gang beside it"),
        ({"gang_to_come": "cpu=4"}, "gang-to-come", "linkwise.dev/gang beside it"),
        *[
            ({"gang": "g", "gang_size": "4", "gang_to_come": wrong}, "gang-to-come", "cpu=4,mem")
            for wrong in ("", "8", "cpu", "cpu=", "cpu=0", "cpu=-1", "cpu=4,cpu=4", "c pu=1")
        ],
        ({"gang": "g", "gang_size": "4", "gang_to_come": "a/gpu=0.5"}, "gang-to-come", "gpu=8"),
        ({"gang": " ", "gang_size": "2"}, "gang", "a name of 1 to 253 characters"),
        ({"gang": "ok\nrow", "gang_size": "2"}, "gang", "characters that can be printed"),
        ({"gang": "\x1b]0;title\a", "gang_size": "2"}, "gang", "that can be printed"),
        ({"gang": "\u202egnp", "gang_size": "2"}, "gang", "that can be printed"),
        ({"require_span": ""}, "require-span", "node, clique or keys of node labels"),
        ({"require_span": "node,,clique"}, "require-span", "node, clique or keys of node labels"),
        ({"prefer_span": "rack!"}, "prefer-span", "node, clique or keys of node labels"),
        ({"prefer_span": "a/b/c"}, "prefer-span", "node, clique or keys of node labels"),
        ({"preemptible": "yes"}, "preemptible", "true or false"),
        ({"preemptible": "True"}, "preemptible", "true or false"),
        ({"expected_duration": "a day"}, "expected-duration", "10m, 1h30m"),
        ({"expected_duration": "0s"}, "expected-duration", "10m, 1h30m"),
        ({"rank": "-1"}, "rank", "a whole number from 0"),
    ],
)
def test_a_wrong_word_names_the_key_the_value_and_what_is_allowed(
    said: dict[str, str], key: str, expected: str
) -> None:
    with pytest.raises(AnnotationError) as caught:
        ask(**said)
    assert caught.value.key == f"linkwise.dev/{key}"
    assert expected in str(caught.value)
    assert repr(said[key.replace("-", "_")]) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("requre-link", "linkwise.dev/require-link"),
        ("gnag", "linkwise.dev/gang"),
        (
            "colour",
            "linkwise.dev/ and one of communicator, expected-duration, gang, gang-min, gang-size, "
            "gang-timeout, gang-to-come, gpu-memory, gpu-model, movable, move-cost, preemptible, "
            "prefer-link, prefer-span, rank, reclaim-when-idle, require-link, require-span, share",
        ),
    ],
)
def test_an_unknown_annotation_is_answered_with_one_that_is_like_it(
    key: str, expected: str
) -> None:
    with pytest.raises(AnnotationError) as caught:
        ask_of({f"linkwise.dev/{key}": "4"}, {})
    assert str(caught.value) == f"linkwise.dev/{key}: no such annotation: expected {expected}"


def test_the_rank_is_said_or_is_the_jobs_completion_index() -> None:
    assert ask(rank="3").rank == 3
    assert ask_of({INDEX: "5"}, {}).rank == 5
    assert ask_of({}, {INDEX: "6"}).rank == 6
    assert ask_of({INDEX: "5", "linkwise.dev/rank": "1"}, {}).rank == 1
    assert ask_of({INDEX: "five"}, {}).rank is None  # not Linkwise's annotation, so not its error


def test_a_model_is_matched_by_whole_words_in_any_case() -> None:
    assert is_model("NVIDIA A100-SXM4-80GB", words_of("a100"))
    assert is_model("NVIDIA A100-SXM4-80GB", words_of("A100-SXM4"))
    assert not is_model("NVIDIA A100-SXM4-80GB", words_of("A10"))
    assert not is_model("NVIDIA A100-SXM4-80GB", words_of("A100 80GB"))


def test_a_pods_demand_is_read_from_all_its_containers_in_the_kubelets_order() -> None:
    pod = Pod(
        spec=PodSpec(
            init_containers=(container("i", 2), container("side", 1, restart_policy="Always")),
            containers=(container("log", 0), container("main", 4)),
        )
    )
    demand = demand_of(pod, GPU)
    assert demand.containers == (
        ContainerDemand("i", Role.INIT, 2),
        ContainerDemand("side", Role.SIDECAR, 1),
        ContainerDemand("main", Role.MAIN, 4),
    )
    assert demand.gpus == 5


def test_a_request_counts_where_no_limit_is_said() -> None:
    only_request = Container(name="main", resources=Resources(requests={GPU: 2}))
    assert demand_of(Pod(spec=PodSpec(containers=(only_request,))), GPU).gpus == 2


def test_what_members_request_that_do_not_exist_yet_is_read_by_resource() -> None:
    gang = ask(gang="g", gang_size="4", gang_to_come="nvidia.com/gpu=8,cpu=500m").gang
    assert gang is not None
    assert gang.to_come == (("nvidia.com/gpu", "8"), ("cpu", "500m"))
