"""Which pods may be evicted for a more important gang, as the operator configures it."""

from enum import StrEnum


class Preempt(StrEnum):
    NEVER = "never"  # none
    CONSENTING = "consenting"  # those with `linkwise.dev/preemptible: "true"`
    LOWER_PRIORITY = "lower-priority"  # all, as kube-scheduler does for single pods
