"""Reads which object or collection a path names."""

from dataclasses import dataclass

from linkwise.simulator.api_server.kinds import KINDS, POD, ResourceKind
from linkwise.simulator.api_server.refusals import unknown_route


@dataclass(frozen=True, slots=True)
class Target:
    kind: ResourceKind
    namespace: str  # "" for all namespaces, or for a kind without them
    name: str = ""  # "" for the collection
    subresource: str = ""


_SUBRESOURCES = {
    kind: ({"status"} if kind.has_status else set())
    | ({"binding", "eviction"} if kind is POD else set())
    for kind in KINDS
}


def read_path(path: str) -> Target:
    """Return what *path* names. Raises RequestRefusedError 404 if the stand-in has no such
    resource."""
    for kind in KINDS:
        if path.startswith(f"{kind.root}/"):
            found = _below(kind, path[len(kind.root) + 1 :].split("/"))
            if found is not None:
                return found
    raise unknown_route()


def _below(kind: ResourceKind, steps: list[str]) -> Target | None:
    namespace = ""
    if kind.namespaced and len(steps) > 2 and steps[0] == "namespaces":
        namespace, steps = steps[1], steps[2:]
    if steps[0] != kind.plural or len(steps) > 3 or "" in steps:
        return None
    name, subresource = (*steps[1:], "", "")[:2]
    if kind.namespaced and name and not namespace:
        return None
    if subresource and subresource not in _SUBRESOURCES[kind]:
        return None
    return Target(kind, namespace, name, subresource)
