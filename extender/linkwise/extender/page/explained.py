"""The pages of one pod, of one gang, of all idle pods, and of planned moves.

Most take searches, so they are worked out less often than what the first page shows.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from linkwise.extender.explain.explainer import Explainer
from linkwise.extender.explain.idle.idle_pods import held_on, view_idle
from linkwise.extender.explain.moves import view_moves
from linkwise.extender.explain.snapshot import GangState, Snapshot
from linkwise.extender.explain.texts import explanation_text
from linkwise.extender.page import links
from linkwise.extender.page.groups import Group
from linkwise.extender.page.idle_rows import IdlePage, idle_page, use_of
from linkwise.extender.page.moves_rows import MovesTables, tables_of
from linkwise.extender.page.search import Hit, nodes_named
from linkwise.extender.page.slots import HIDDEN, SHOWN, Slots
from linkwise.extender.page.timeline import Picture, PodTimes, Step, picture_of, timeline_of
from linkwise.extender.page.times import clock


@dataclass(frozen=True, slots=True)
class ExplainedPage:
    """A pod or a gang."""

    title: str
    seen_also: tuple[Hit, ...]  # its nodes and its gang
    steps: tuple[Step, ...]  # of a gang
    picture: Picture | None  # of a gang
    slots: Slots
    shape: Hashable = field(init=False)

    def __post_init__(self) -> None:
        pods = self.picture and (self.picture.pods, self.picture.more)
        object.__setattr__(self, "shape", (self.seen_also, len(self.steps), pods))


@dataclass(frozen=True, slots=True)
class IdlePodsPage:
    it: IdlePage
    slots: Slots
    shape: Hashable = field(init=False)

    def __post_init__(self) -> None:
        pods = tuple((row.who, row.node, row.gang) for row in self.it.rows)
        object.__setattr__(self, "shape", (pods, self.it.would_start))


@dataclass(frozen=True, slots=True)
class MovesPage:
    it: MovesTables
    slots: Slots

    @property
    def shape(self) -> Hashable:
        return self.it


SearchedPage = ExplainedPage | IdlePodsPage | MovesPage


def pod_page(
    snapshot: Snapshot, groups: Sequence[Group], namespace: str, name: str
) -> ExplainedPage | None:
    """None if there is no such pod."""
    found = Explainer(snapshot).pod(namespace, name, runner_up=True)
    if found is None:
        return None
    also = nodes_named(groups, {found.node} - {""})
    if found.gang is not None:
        gang = f"{found.gang.gang.namespace}/{found.gang.gang.name}"
        also = (*also, Hit("gang", gang, links.to_gang(gang), found.gang.gang.phase))
    use = _use(snapshot, found.node, found.uid)
    slots: dict[str, Mapping[str, str]] = {
        **_text_slots(explanation_text.pod(found, snapshot.at), snapshot.at),
        "use": {"text": use, "hidden": SHOWN if use else HIDDEN},
    }
    return ExplainedPage(f"pod {namespace}/{name}", also, (), None, slots)


def gang_page(
    snapshot: Snapshot, groups: Sequence[Group], gang: GangState, times: Mapping[str, PodTimes]
) -> ExplainedPage | None:
    """*times*: of its pods, by uid."""
    namespace, name = gang.key.namespace, gang.key.name
    found = Explainer(snapshot).gang(namespace, name, runner_up=True)
    if found is None:
        return None
    also = nodes_named(groups, {member.node for member in found.gang.members} - {""})
    steps = timeline_of(snapshot, gang, times)
    picture = picture_of(gang, times, snapshot.at)
    slots: dict[str, Mapping[str, str]] = {
        **_text_slots(explanation_text.gang(found, snapshot.at), snapshot.at),
        **picture.slots,
    }
    for number, step in enumerate(steps):
        unknown = "time not known" if step.state == "done" else ""
        current = "step" if step.state == "now" else "false"
        slots[f"s{number}"] = {"class": step.state, "aria-current": current}
        slots[f"s{number}-at"] = {"text": clock(step.at) or unknown}
        slots[f"s{number}-what"] = {"text": step.what}
        slots[f"s{number}-now"] = {"hidden": SHOWN if step.state == "now" else HIDDEN}
    return ExplainedPage(f"gang {namespace}/{name}", also, steps, picture, slots)


def idle_pods_page(snapshot: Snapshot) -> IdlePodsPage:
    it = idle_page(view_idle(snapshot))
    slots: dict[str, Mapping[str, str]] = {
        "at": {"text": clock(snapshot.at)},
        "counts": {"text": it.counts},
        "verdict": {"text": it.verdict, "hidden": SHOWN if it.verdict else HIDDEN},
    }
    for number, row in enumerate(it.rows):
        for name in ("gpus", "idle", "busy", "memory", "evicted"):
            slots[f"i{number}-{name}"] = {"text": getattr(row, name)}
    return IdlePodsPage(it, slots)


def moves_page(snapshot: Snapshot) -> MovesPage:
    return MovesPage(tables_of(view_moves(snapshot)), {"at": {"text": clock(snapshot.at)}})


def _text_slots(text: str, at: float) -> dict[str, Mapping[str, str]]:
    return {"at": {"text": clock(at)}, "text": {"text": text}}


def _use(snapshot: Snapshot, node: str, uid: str) -> str:
    """What the pod does with its GPUs; empty if that is not known."""
    state = snapshot.node_named.get(node)
    held = held_on(snapshot, state) if state is not None else ()
    idle, busy = use_of(next((each for each in held if each.record.uid == uid), None), snapshot.at)
    parts = []
    if idle:
        parts.append(f"It has been idle for {idle}: none of its GPUs has worked since.")
    if busy:
        parts.append(f"In the last 24 hours, its GPUs worked {busy} of the time.")
    return " ".join(parts)
