"""Why a node does not fit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejection:
    """*reasons* are kube-scheduler's words. *resolvable*: the node might fit if other pods were
    gone, so preemption looks at it."""

    plugin: str
    reasons: tuple[str, ...]
    resolvable: bool
