"""The worth of GPUs together, and the runner-up, as lines of text."""

from collections.abc import Iterator

from linkwise.drawing.words import fact, some
from linkwise.extender.state.views import (
    CommunicatorView,
    Explanation,
    GangView,
    RunnerUpView,
    Verdict,
)


def of_pod(it: Explanation) -> Iterator[str]:
    if it.link:
        yield fact("link", f"{it.link}, {it.gbytes_per_s:.0f} GB/s estimated")
    if (planned := it.communicator) is not None:
        apart = planned.between
        between = "" if apart is None else f", between nodes {apart:.1f}"
        ring = f"ring on this node {planned.inside:.1f}"
        yield fact(
            "planned", f"in a gang of {planned.together:.1f} GB/s estimated: {ring}{between}"
        )
    if it.runner_up is not None:
        yield from _runner_up(it.runner_up)


def of_gang(it: GangView) -> Iterator[str]:
    if it.communicator is not None:
        yield fact("worth", _worth(it.communicator))
    if it.runner_up is not None:
        yield from _runner_up(it.runner_up)


def _worth(it: CommunicatorView) -> str:
    slowest = min(it.rings, key=lambda ring: ring.gbytes_per_s)
    which = "slowest ring" if len(it.rings) > 1 else "ring"
    ring = f"{which} on {slowest.node} {slowest.gbytes_per_s:.1f}"
    between = it.between_gbytes_per_s
    nodes = "" if between is None else f", between nodes {between:.1f}"
    return f"{it.gbytes_per_s:.1f} GB/s estimated: {ring}{nodes}"


def _runner_up(it: RunnerUpView) -> Iterator[str]:
    where = some(it.nodes)
    if it.gpus:
        plural = "s" if len(it.gpus) > 1 else ""
        where += f", GPU{plural} {','.join(map(str, it.gpus))}"
    speed = "" if it.gbytes_per_s is None else f": {it.gbytes_per_s:.1f} GB/s"
    yield fact("runner-up", f"{where}{speed}, as the cluster is now")
    yield fact("", f"{_verdict_in_words(it.verdict)} {it.why}")


def _verdict_in_words(verdict: Verdict) -> str:
    match verdict:
        case Verdict.LOST:
            return "lost by"
        case Verdict.EQUAL:
            return "as good, except for"
        case Verdict.BETTER:
            return "would win now by"
