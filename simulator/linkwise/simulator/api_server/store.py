"""The stand-in's objects and every change to them. Pure: no I/O, no clock, no thread.

One counter gives every write of any kind its resourceVersion, as in etcd. Stored objects never
change in place, so lists, pages and watch events share them.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from linkwise.simulator.api_server import disruption, metadata, rules
from linkwise.simulator.api_server.history import ChangeHistory, Stored, StoredChange
from linkwise.simulator.api_server.kinds import BUDGET, KINDS, LEASE, POD, ResourceKind
from linkwise.simulator.api_server.patches import PATCHES
from linkwise.simulator.api_server.refusals import (
    Object,
    already_exists,
    bad_request,
    expired,
    internal_error,
    invalid,
    not_found,
    unsupported_media_type,
)
from linkwise.simulator.api_server.selectors import Selector

Key = tuple[str, str]  # namespace ("" for kinds without one), name

_MAX_OPEN_LISTS = 64
_TOKEN = "page-"


@dataclass(frozen=True, slots=True)
class ListPage:
    items: tuple[Stored, ...]
    version: int
    rest: str = ""  # the token that asks for the next page
    remaining: int = 0


class Store:
    """The store calls `now` and `new_uid` whenever it needs a value.

    `first_version` is where versions begin. A store that replaces another one begins beyond that
    one's last version.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        new_uid: Callable[[], str],
        history_limit: int = 20_000,
        first_version: int = 1,
    ) -> None:
        self.version = first_version
        self._now, self._new_uid = now, new_uid
        self._objects: dict[ResourceKind, dict[Key, Stored]] = {kind: {} for kind in KINDS}
        self._histories = {kind: ChangeHistory(history_limit, self.version) for kind in KINDS}
        self._open_lists: OrderedDict[str, ListPage] = OrderedDict()

    # Reading

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Stored:
        """Return the object. Raises RequestRefusedError 404."""
        try:
            return self._objects[kind][namespace, name]
        except KeyError:
            raise not_found(kind.plural, name) from None

    def list(
        self, kind: ResourceKind, namespace: str | None = None, selector: Selector | None = None
    ) -> ListPage:
        """Return all that match, by namespace and name; *namespace* None or "" means all."""
        items = tuple(
            stored
            for key, stored in sorted(self._objects[kind].items())
            if (not namespace or key[0] == namespace)
            and (selector is None or selector.matches(stored.obj))
        )
        return ListPage(items, self.version)

    def page(self, full: ListPage, limit: int) -> ListPage:
        """Return the first *limit* entries of a list. A token keeps the rest as it is now."""
        if not limit or len(full.items) <= limit:
            return full
        token = _TOKEN + self._new_uid()
        self._open_lists[token] = ListPage(full.items[limit:], full.version)
        if len(self._open_lists) > _MAX_OPEN_LISTS:
            self._open_lists.popitem(last=False)
        return ListPage(full.items[:limit], full.version, token, len(full.items) - limit)

    def rest_of_list(self, token: str) -> ListPage:
        """Return the rest of the list behind *token*. An answer may be lost, so every call returns
        the same.

        Raises RequestRefusedError 410 if the token has expired.
        """
        found = self._open_lists.get(token)
        if found is None:
            if not token.startswith(_TOKEN):
                raise bad_request("continue key is not valid: none that was handed out")
            raise expired("The provided continue parameter is too old to display a consistent list")
        return found

    def since(self, kind: ResourceKind, version: int) -> "tuple[StoredChange, ...]":
        """Return the changes of a kind after *version*; none if that version is in the future.

        Raises RequestRefusedError 410 if it is too old.
        """
        return tuple(self._histories[kind].since(version))

    def compact(self) -> None:
        """Forget all changes: watches from an older version and open lists get 410."""
        for history in self._histories.values():
            history.forget(self.version)
        self._open_lists.clear()

    # Writing

    def create(self, kind: ResourceKind, namespace: str, body: Any) -> Stored:
        obj = metadata.read_object(kind, body)
        meta = {k: v for k, v in obj["metadata"].items() if v is not None}
        if meta.pop("resourceVersion", ""):
            raise internal_error("resourceVersion should not be set on objects to be created")
        meta["name"] = meta.get("name") or self._generate_name(kind, namespace, meta)
        if kind.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on "
                    "the request"
                )
        else:
            meta.pop("namespace", None)
        key = (namespace if kind.namespaced else "", meta["name"])
        if key in self._objects[kind]:
            raise already_exists(kind.plural, meta["name"])
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            meta.pop(field, None)
        now = self._now()
        meta |= {"uid": self._new_uid(), "creationTimestamp": rules.timestamp(now)}
        obj = rules.prepare_new(kind, obj | {"metadata": meta}, now)
        metadata.check(kind, obj)
        return self._write(kind, key, obj, None)

    def _generate_name(self, kind: ResourceKind, namespace: str, meta: Object) -> str:
        prefix = meta.get("generateName")
        if not prefix:
            why = "Required value: name or generateName is required"
            raise invalid(kind.name, "", "metadata.name", why)
        name = ""
        for _ in range(8):  # as often as the real API server, before AlreadyExists
            name = prefix + self._new_uid().replace("-", "")[-5:]
            if (namespace, name) not in self._objects[kind]:
                break
        return name

    def replace(
        self, kind: ResourceKind, namespace: str, name: str, body: Any, *, status: bool = False
    ) -> Stored:
        """Carry out a PUT: a uid or resourceVersion in *body* must match.

        A PUT of a Lease that does not exist creates it, whatever version *body* names, unless it
        names a uid.
        """
        new = metadata.read_object(kind, body)
        if kind is LEASE and (namespace, name) not in self._objects[kind]:
            metadata.check_preconditions(
                kind, {"metadata": {"name": name, "uid": ""}}, {"uid": new["metadata"].get("uid")}
            )
            fresh = {k: v for k, v in new["metadata"].items() if k != "resourceVersion"}
            return self.create(kind, namespace, new | {"metadata": fresh})
        old = self.get(kind, namespace, name)
        metadata.check_preconditions(kind, old.obj, {"uid": new["metadata"].get("uid")})
        return self._update(kind, old, new, status=status)

    def patch(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        patch: Any,
        content_type: str,
        *,
        status: bool = False,
    ) -> Stored:
        old = self.get(kind, namespace, name)
        if content_type not in PATCHES:
            raise unsupported_media_type(content_type)
        new = metadata.read_patched(kind, PATCHES[content_type](old.obj, patch))
        return self._update(kind, old, new, status=status)

    def _update(self, kind: ResourceKind, old: Stored, new: Object, *, status: bool) -> Stored:
        new = metadata.keep_identity(kind, old.obj, new)
        prepare = rules.prepare_status_update if status else rules.prepare_update
        new = prepare(kind, old.obj, new)
        metadata.check(kind, new)
        return self._store(kind, old, new)

    def delete(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        *,
        grace_seconds: int | None = None,
        preconditions: Mapping[str, Any] | None = None,
    ) -> tuple[Stored, bool]:
        """Return the object after the deletion, and whether it is gone."""
        old = self.get(kind, namespace, name)
        metadata.check_preconditions(kind, old.obj, preconditions or {})
        marked = rules.mark_deleted(kind, old.obj, grace_seconds, self._now())
        if not rules.is_gone(marked):
            return self._store(kind, old, marked), False
        if kind is POD:  # watchers see the mark even if nothing delays the removal
            key = (namespace, name)
            old = self._write(kind, key, marked, old)
        return self._remove(kind, old, old.obj), True

    def bind(self, namespace: str, name: str, body: Any) -> Stored:
        old = self.get(POD, namespace, name)
        binding = metadata.read_object(ResourceKind("Binding", "pods/binding"), body)
        new = rules.bind(old.obj, binding, self._now())
        metadata.check(POD, new)
        return self._store(POD, old, new)

    def evict(self, namespace: str, name: str, body: Any) -> None:
        """Delete the pod as its owner would; `deleteOptions` as in a DELETE."""
        old = self.get(POD, namespace, name)
        eviction = metadata.read_object(
            ResourceKind("Eviction", "pods/eviction", "policy/v1"), body
        )
        if eviction["metadata"].get("name") != name:
            raise bad_request("name in URL does not match name in Eviction object")
        options = eviction.get("deleteOptions") or {}
        metadata.check_preconditions(POD, old.obj, options.get("preconditions") or {})
        self._use_budget(old.obj)
        self._store(POD, old, rules.disrupted(old.obj, self._now()))
        self.delete(POD, namespace, name, grace_seconds=options.get("gracePeriodSeconds"))

    def _use_budget(self, pod: Object) -> None:
        """Raises RequestRefusedError 429 if a PodDisruptionBudget forbids the eviction."""
        budgets = [b.obj for b in self.list(BUDGET, pod["metadata"]["namespace"]).items]
        used = disruption.use_budget(pod, budgets, self._now())
        if used is not None:
            meta = used["metadata"]
            self._store(BUDGET, self.get(BUDGET, meta["namespace"], meta["name"]), used)

    # The only two methods that change the state

    def _store(self, kind: ResourceKind, old: Stored, new: Object) -> Stored:
        if new == old.obj:
            return old  # no new version, no event
        if rules.is_gone(new):  # its last finalizer is gone
            return self._remove(kind, old, new)
        meta = new["metadata"]
        return self._write(kind, (meta.get("namespace", ""), meta["name"]), new, old)

    def _write(self, kind: ResourceKind, key: Key, obj: Object, old: Stored | None) -> Stored:
        stored = self._at_next_version(obj)
        self._objects[kind][key] = stored
        change = StoredChange("MODIFIED" if old else "ADDED", stored.version, old, stored)
        self._histories[kind].add(change)
        return stored

    def _remove(self, kind: ResourceKind, old: Stored, last: Object) -> Stored:
        stored = self._at_next_version(last)
        meta = last["metadata"]
        del self._objects[kind][meta.get("namespace", ""), meta["name"]]
        self._histories[kind].add(StoredChange("DELETED", stored.version, old, stored))
        return stored

    def _at_next_version(self, obj: Object) -> Stored:
        self.version += 1
        obj = obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self.version)}}
        return Stored(obj, self.version, msgspec.json.encode(obj))
