"""The pages of one pod and of one gang.

They take searches, so they are worked out less often than what the first page shows.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.idle.idle_pods import held_on
from linkwise.extender.show.explain.snapshot import GangState, Snapshot
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.show.page import elements
from linkwise.extender.show.page.elements import Slots, clock
from linkwise.extender.show.page.groups import Group
from linkwise.extender.show.page.idle_rows import IdlePage, use_of
from linkwise.extender.show.page.moves_rows import MovesPage
from linkwise.extender.show.page.search import Hit, nodes_named
from linkwise.extender.show.page.timeline import Picture, Step, Times, picture_of, timeline_of


@dataclass(frozen=True, slots=True)
class ExplainedPage:
    """A pod or a gang."""

    title: str
    seen_also: tuple[Hit, ...]  # its nodes and its gang
    steps: tuple[Step, ...]  # of a gang
    picture: Picture | None  # of a gang
    slots: Slots

    @property
    def shape(self) -> Hashable:
        pods = self.picture and (self.picture.pods, self.picture.more)
        return self.seen_also, len(self.steps), pods


SearchedPage = ExplainedPage | IdlePage | MovesPage


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
        also = (*also, Hit("gang", gang, elements.to_gang(gang), found.gang.gang.phase))
    slots: dict[str, Mapping[str, str]] = {
        **_text_slots(explanation_text.pod(found, snapshot.at), snapshot.at),
        "use": elements.shown(_use(snapshot, found.node, found.uid)),
    }
    return ExplainedPage(f"pod {namespace}/{name}", also, (), None, slots)


def gang_page(
    snapshot: Snapshot, groups: Sequence[Group], gang: GangState, times: Times
) -> ExplainedPage | None:
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
        slots[f"s{number}-now"] = elements.shown_if(step.state == "now")
    return ExplainedPage(f"gang {namespace}/{name}", also, steps, picture, slots)


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
