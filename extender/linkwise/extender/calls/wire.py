"""Converts kube-scheduler's JSON to calls and back: only this module knows names like `NodeNames`.

The protocol has traps that would silently undo the extender's answers: a score that is no integer
makes kube-scheduler drop the whole reply, a nil map arrives as null, and Go accepts member names in
any case. So the readers ignore case, and the writers spell each member exactly as
k8s.io/kube-scheduler/extender/v1 does. Replies are bytes: 5,000 node names are written once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from linkwise.extender.state.extender_calls import (
    BindCall,
    FilterAnswer,
    FilterCall,
    PreemptAnswer,
    PreemptCall,
    PriorityAnswer,
    Victims,
)
from linkwise.kube.objects import Pod
from linkwise.topology.errors import LinkwiseError

_Decoded = TypeVar("_Decoded")
_NULL = b"null"
_LISTS = 2  # that of a call of `filter`, and that of its answer


class WireError(LinkwiseError):
    """A request body that is not what kube-scheduler sends; names the JSON path."""

    def __init__(self, path: str, expected: str) -> None:
        super().__init__(f"linkwise: request body: {path}: {expected}")
        self.path = path


class _Name(msgspec.Struct, frozen=True):
    name: str = ""


class _NamedNode(msgspec.Struct, frozen=True):
    metadata: _Name = _Name()


@dataclass(frozen=True, slots=True)
class NodesCall:
    """A filter or prioritize call, and the nodes as sent if `nodeCacheCapable` is false.

    `items` has each node's JSON by name, to be sent back unparsed; None if names were sent.
    """

    call: FilterCall
    items: Mapping[str, msgspec.Raw] | None = None


class NodeLists:
    """The lists of node names that were read and written last.

    kube-scheduler sends `prioritize` the very list that `filter` returned. A list of which the JSON
    is known is the same object again, so it is parsed, and its nodes are looked up, only once.
    What its JSON says never changes. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[bytes, tuple[str, ...]], ...] = ()  # the latest first

    def get(self, text: bytes) -> tuple[str, ...] | None:
        for known, names in self._known:
            if known == text:
                self.note(text, names)
                return names
        return None

    def note(self, text: bytes, names: tuple[str, ...]) -> None:
        others = [each for each in self._known if each[0] != text]
        self._known = ((text, names), *others[: _LISTS - 1])


class _FilterResult(msgspec.Struct, rename="pascal"):
    nodes: Any = None
    node_names: msgspec.Raw | None = None
    failed_nodes: Mapping[str, str] | None = None
    failed_and_unresolvable_nodes: Mapping[str, str] | None = None
    error: str = ""


class _HostPriority(msgspec.Struct, rename="pascal", gc=False):  # 5,000 per call
    host: str
    score: int


class _MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID")


class _MetaVictims(msgspec.Struct):
    pods: list[_MetaPod] = msgspec.field(name="Pods")
    pdb_violations: int = msgspec.field(name="NumPDBViolations")


class _PreemptionResult(msgspec.Struct, rename="pascal"):
    node_name_to_meta_victims: dict[str, _MetaVictims]


class _Error(msgspec.Struct, rename="pascal"):
    error: str = ""


def read_nodes_call(body: bytes, lists: NodeLists) -> NodesCall:
    """Read an ExtenderArgs, the body of `filter` and of `prioritize`."""
    members = _members(body, "$")
    pod = _pod(members)
    text = bytes(members.get("nodenames", b""))
    names = lists.get(text)
    if names is None:
        names = _optional(members, "NodeNames", tuple[str, ...])
        if names is not None:
            lists.note(text, names)
    if names is not None:
        return NodesCall(FilterCall(pod=pod, node_names=names))
    nodes = members.get("nodes", msgspec.Raw(_NULL))
    if bytes(nodes) == _NULL:
        raise WireError("$.NodeNames", "expected a list of node names (or Nodes, with items)")
    raw_items = _optional(_members(nodes, "$.Nodes"), "items", list[msgspec.Raw], "$.Nodes") or []
    items: dict[str, msgspec.Raw] = {}
    for position, item in enumerate(raw_items):
        path = f"$.Nodes.items[{position}]"
        name = _decode(item, _NamedNode, path).metadata.name
        if not name:
            raise WireError(f"{path}.metadata.name", "expected the node's name")
        items[name] = item
    return NodesCall(FilterCall(pod=pod, node_names=tuple(items)), items)


def read_bind_call(body: bytes) -> BindCall:
    """Read an ExtenderBindingArgs."""
    members = _members(body, "$")
    return BindCall(
        namespace=_text(members, "PodNamespace"),
        name=_text(members, "PodName"),
        uid=_text(members, "PodUID"),
        node=_text(members, "Node"),
    )


def read_preempt_call(body: bytes) -> PreemptCall:
    """Read an ExtenderPreemptionArgs: victims by uid, or as whole pods if names are not used."""
    members = _members(body, "$")
    pod = _pod(members)
    for key in ("NodeNameToMetaVictims", "NodeNameToVictims"):
        raw = _optional(members, key, dict[str, msgspec.Raw])
        if raw:
            victims = {node: _victims(value, f"$.{key}.{node}") for node, value in raw.items()}
            return PreemptCall(pod=pod, victims=victims)
    return PreemptCall(pod=pod, victims={})


def write_filter_answer(answer: FilterAnswer, asked: NodesCall, lists: NodeLists) -> bytes:
    """An ExtenderFilterResult, in the form in which the nodes were sent."""
    if answer.error:
        return write_filter_error(answer.error)
    result = _FilterResult(
        failed_nodes=answer.failed, failed_and_unresolvable_nodes=answer.unresolvable
    )
    if asked.items is None:
        text = msgspec.json.encode(answer.node_names)
        lists.note(text, answer.node_names)
        result.node_names = msgspec.Raw(text)
    else:
        items = [asked.items[name] for name in answer.node_names]
        result.nodes = {"metadata": {}, "items": items}
    return msgspec.json.encode(result)


def write_filter_error(text: str) -> bytes:
    """An answer that ends this scheduling cycle; kube-scheduler retries the pod after a backoff."""
    return msgspec.json.encode(_FilterResult(error=text))


def write_priorities(answer: PriorityAnswer) -> bytes:
    """A HostPriorityList."""
    return msgspec.json.encode(list(map(_HostPriority, answer.names, answer.of_names)))


def write_bind_result(error: str = "") -> bytes:
    """An ExtenderBindingResult; no text means bound."""
    return msgspec.json.encode(_Error(error))


def write_preempt_answer(answer: PreemptAnswer) -> bytes:
    """An ExtenderPreemptionResult: the nodes on which preemption helps, with their victims."""
    return msgspec.json.encode(
        _PreemptionResult(
            {
                node: _MetaVictims([_MetaPod(uid) for uid in victims.uids], victims.pdb_violations)
                for node, victims in answer.victims.items()
            }
        )
    )


def write_error(text: str) -> bytes:
    """The body of a response with a status other than 200."""
    return msgspec.json.encode(_Error(text))


def _members(raw: bytes | msgspec.Raw, path: str) -> dict[str, msgspec.Raw]:
    """The members of a JSON object by their names in lower case: Go ignores case too."""
    return {key.lower(): value for key, value in _decode(raw, dict[str, msgspec.Raw], path).items()}


def _pod(members: Mapping[str, msgspec.Raw]) -> Pod:
    pod = _decode(members.get("pod", msgspec.Raw(_NULL)), Pod, "$.Pod")
    for key, value in (
        ("name", pod.metadata.name),
        ("namespace", pod.metadata.namespace),
        ("uid", pod.metadata.uid),
    ):
        if not value:
            raise WireError(f"$.Pod.metadata.{key}", f"expected the pod's {key}")
    return pod


def _victims(raw: msgspec.Raw, path: str) -> Victims:
    members = _members(raw, path)
    pods = _optional(members, "Pods", list[msgspec.Raw], path) or []
    return Victims(
        uids=tuple(_victim_uid(pod, f"{path}.Pods[{i}]") for i, pod in enumerate(pods)),
        pdb_violations=_optional(members, "NumPDBViolations", int, path) or 0,
    )


def _victim_uid(raw: msgspec.Raw, path: str) -> str:
    """Of a MetaPod `{"UID": …}`, or of a whole pod `{"metadata": {"uid": …}}`."""
    members = _members(raw, path)
    if "uid" not in members and "metadata" in members:
        path = f"{path}.metadata"
        members = _members(members["metadata"], path)
    return _text(members, "UID", path)


def _text(members: Mapping[str, msgspec.Raw], key: str, path: str = "$") -> str:
    text = _optional(members, key, str, path)
    if not text:
        raise WireError(f"{path}.{key}", "expected a text that is not empty")
    return text


def _optional(
    members: Mapping[str, msgspec.Raw], key: str, kind: type[_Decoded], path: str = "$"
) -> _Decoded | None:
    """The member, or None if it is absent or null (Go writes nil as null)."""
    raw = members.get(key.lower())
    if raw is None or bytes(raw) == _NULL:
        return None
    return _decode(raw, kind, f"{path}.{key}")


def _decode(raw: bytes | msgspec.Raw, kind: type[_Decoded], path: str) -> _Decoded:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        what, _, inside = str(error).partition(" - at `$")
        where = path + inside.rstrip("`")
        raise WireError(where, f"{what[:1].lower()}{what[1:]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(path, f"expected JSON ({error})") from None
