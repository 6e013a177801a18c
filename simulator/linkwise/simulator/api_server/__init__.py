"""A stand-in for the API server, as faithful as Linkwise's use of it needs.

It speaks real HTTP, keeps the rules for Pods, Nodes, Jobs and Events, and fails on demand. Tests
and the demo run it in a thread. docs/decisions/kubernetes.md#2-api-server-stand-in says why it
exists.

The modules here are pure: what the API server stores, changes and refuses. `http` serves them.

What differs from a real one:

- No authentication, RBAC or admission: no default tolerations, PriorityClass or not-ready taint.
- Namespaces exist when named.
- Kinds: Pod, Node, Event, Job, PodDisruptionBudget, Lease, Service, EndpointSlice, workloads, what
  pods may hang on, ResourceSlice and ResourceClaim (of which nothing is allocated). Others are 404.
- A list is always the newest, whatever its `resourceVersion`. The 64 newest pages of lists stay
  open, or until `compact()`; with a real one until compaction, about 5 min.
- After a restart, versions begin beyond all earlier ones, so that all older ones are too old. With
  etcd they go on.
- dryRun is 400, server-side apply 415, delete-collection 405, and a Table is JSON.
- The status of a PodDisruptionBudget stays as it is written, and evictions use it up.
- No garbage collection, no TTL of Events.
- Quantities stay as written; a real one makes `1000m` to `1`.
- Validation: names, labels, annotations (256 KiB), containers present, pod immutability, gates,
  tolerations, nomination, an Event's namespace. Updates of Jobs and Nodes are not validated.
- No `managedFields`, `generation` or `qosClass`.
- Messages of preconditions have the same codes and reasons, in fewer words.
"""

from linkwise.simulator.api_server.http.server import ApiServer

__all__ = ["ApiServer"]
