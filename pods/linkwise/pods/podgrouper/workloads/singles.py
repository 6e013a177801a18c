"""Pods that run by themselves and must never wait for others.

Most GPU pods of a platform are such pods: notebooks, servers, steps of pipelines. Their owners'
`replicas` are copies and not a gang. Workers that a running driver requests belong here too: the
driver cannot wait for pods that it has not requested yet.
"""

from dataclasses import dataclass

from linkwise.kube.fields import ordinal
from linkwise.pods.podgrouper.workloads.answer import NoGang
from linkwise.pods.podgrouper.workloads.case import Case


@dataclass(frozen=True, slots=True)
class Single:
    """Matches a pod with any of *labels*; without *labels*, any pod of the owner's kind."""

    rule: str
    because: str
    labels: tuple[str, ...] = ()
    role: str = "replica"
    role_label: str = ""  # whose value is the role
    index_label: str = ""

    def __call__(self, case: Case) -> NoGang | None:
        if self.labels and not case.said(*self.labels):
            return None
        role = case.said(self.role_label) if self.role_label else ""
        index = ordinal(case.said(self.index_label)) if self.index_label else case.index()
        return NoGang(case.member(role.lower() or self.role, index), self.rule, self.because)


def bare(case: Case) -> NoGang:
    return NoGang(case.member("pod", case.index()), "bare-pod", "nothing owns it or names a group")


def unknown(case: Case) -> NoGang:
    assert case.controller is not None
    group, kind = case.owner_kind
    owner = f"{kind}.{group}" if group else kind
    because = f"owned by {owner} {case.controller.name}, a kind without a gang rule"
    return NoGang(case.member("pod", case.index()), "unknown-owner", because)
