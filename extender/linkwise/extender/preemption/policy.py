"""Who may be evicted for a more important gang, as the operator sets it."""

from enum import StrEnum


class Preempt(StrEnum):
    NEVER = "never"  # nobody
    CONSENTING = "consenting"  # whoever says `linkwise.dev/preemptible: "true"`
    LOWER_PRIORITY = "lower-priority"  # everybody, as kube-scheduler does it for single pods
