"""What a person reads who asks why a pod waits."""

from linkwise.extender.explain_text import render
from linkwise.extender.views import (
    Explanation,
    GangView,
    MemberView,
    NearestMiss,
    ReasonCount,
    Wanted,
)

EIGHT = Wanted(
    gpus=8,
    containers={"main": 8},
    require_link="node",
    prefer_link="nvlink",
    models=(),
    memory_mib=0,
)


def test_a_waiting_member_of_a_gang() -> None:
    gang = GangView(
        namespace="ml",
        name="too-large",
        phase="forming",
        reason="no room for the whole gang",
        size=2,
        members=(
            MemberView("too-large-0", 0, "waiting", "", ()),
            MemberView("too-large-1-x", None, "planned", "n2", ("GPU-a",)),
        ),
        plan="",
        made=None,
        deadline=None,
        refusals=0,
        started=False,
    )
    text = render(
        Explanation(
            namespace="ml",
            name="too-large-0",
            uid="u",
            state="waiting",
            summary="Its gang too-large waits: no room for the whole gang.",
            wanted=EIGHT,
            node="",
            gpus={},
            link="",
            gbytes_per_s=0.0,
            reasons=(
                ReasonCount("fewer free GPUs than wanted", 5),
                ReasonCount("no topology published", 2),
            ),
            fitting_nodes=1,
            nearest=NearestMiss("n3", "1 free GPU more"),
            gang=gang,
        )
    )

    assert text.splitlines() == [
        "ml/too-large-0: waiting",
        "  Its gang too-large waits: no room for the whole gang.",
        "  wanted    8 GPUs, link nvlink preferred",
        "  nodes     1 of 8 have GPUs for this pod by itself; the others:",
        "                5  fewer free GPUs than wanted",
        "                2  no topology published",
        "  nearest   n3: 1 free GPU more",
        "  gang      too-large: forming, a gang of 2",
        "            no room for the whole gang",
        "                0  too-large-0    waiting",
        "                -  too-large-1-x  planned on n2",
    ]


def test_a_bound_pod_shows_its_gpus_and_what_they_are_worth() -> None:
    text = render(
        Explanation(
            namespace="ml",
            name="w",
            uid="u",
            state="bound",
            summary="",
            wanted=Wanted(3, {"a": 2, "b": 1}, "switch", "nvlink", ("H100", "H200"), 40960),
            node="n1",
            gpus={"a": ("GPU-1", "GPU-2"), "b": ("GPU-3",)},
            link="NVLINK",
            gbytes_per_s=362.25,
            reasons=(),
            fitting_nodes=0,
            nearest=None,
            gang=None,
        )
    )

    assert text.splitlines() == [
        "ml/w: bound",
        "  wanted    3 GPUs (a 2, b 1), model H100 or H200, 40960 MiB each, link switch required",
        "  node      n1",
        "  GPU       a: GPU-1",
        "  GPU       a: GPU-2",
        "  GPU       b: GPU-3",
        "  link      NVLINK, 362 GB/s estimated",
    ]


def test_a_planned_gang_shows_its_plan_and_its_deadline() -> None:
    gang = GangView("ml", "g", "planned", "", 1, (), "p-1", 0.0, 600.0, 2, False)
    text = render(
        Explanation("ml", "w", "u", "planned", "", None, "n1", {}, "", 0.0, (), 0, None, gang)
    )

    assert text.splitlines() == [
        "ml/w: planned",
        "  node      n1",
        "  gang      g: planned, a gang of 1",
        "  plan      p-1 made 1970-01-01 00:00:00 UTC",
        "  deadline  1970-01-01 00:10:00 UTC; then a partial gang gives all back",
        "  given up  2 plans until now",
    ]
