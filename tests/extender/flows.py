"""Counts the extender's modules that three flows pass through, by tracing them.

    python -m tests.extender.flows

A module counts if one of its functions runs while the core filters for a single pod, takes a gang
from its first pod to bound, or makes room for a gang by evicting another.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import linkwise.extender
from linkwise.extender.next.core_settings import CoreSettings
from tests.extender.cluster import Cluster

_ROOT = Path(linkwise.extender.__path__[0])


def modules_of(flow: Callable[[], object]) -> list[str]:
    """The modules below `linkwise.extender` in which *flow* calls a function."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        flow()
    finally:
        sys.setprofile(None)
    files = (Path(name) for name in seen)
    inside = (file.relative_to(_ROOT) for file in files if file.is_relative_to(_ROOT))
    return sorted(".".join(file.with_suffix("").parts) for file in inside)


def _cluster() -> Cluster:
    at = Cluster(CoreSettings())
    for number in (1, 2):
        at.add_node(f"n{number}")
    return at


def a_filter() -> list[str]:
    at = _cluster()
    at.add_pod("single", 2)
    at.settle()
    return modules_of(lambda: at.filter("single"))


def a_gang() -> list[str]:
    at = _cluster()

    def flow() -> None:
        members = at.add_gang("gang", 2, 8)
        at.settle()
        for member in members:
            assert at.schedule(member)
        at.settle()

    found = modules_of(flow)
    assert at.phase("gang") == "running"
    return found


def a_preemption() -> list[str]:
    at = _cluster()
    for member in at.add_gang("humble", 2, 8, preemptible="true"):
        at.settle()
        assert at.schedule(member)
    for rank in ("0", "1"):
        at.add_pod(
            f"urgent-{rank}", 8, priority=9, said={"gang": "urgent", "gang_size": "2", "rank": rank}
        )
    found = modules_of(at.settle)
    assert sorted(at.evicted) == ["humble-0", "humble-1"]
    return found


def main() -> None:
    for flow in (a_filter, a_gang, a_preemption):
        found = flow()
        print(f"{flow.__name__.replace('_', ' ')}: {len(found)} modules: {', '.join(found)}")


if __name__ == "__main__":
    main()
