"""What keeps the pods of Linkwise's programs from starting, and in what their settings differ.

One setting reaches several programs, each by a flag or an object of its own. If they differ, no
program notices it: each does what its own says.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from linkwise.cli.doctor.facts import EXTENDER, PLUGIN, SCHEDULER, WEBHOOK, Facts, SeenPod
from linkwise.cli.doctor.finding import Finding, Level
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs
from linkwise.topology import names
from linkwise.topology.vendors.known import device_class_of

_CALLS = "mutatingwebhookconfiguration linkwise"
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_DEFAULT_SCHEDULER = "default-scheduler"
Told = Mapping[str, frozenset[str]]
"""By program or object: what it has for one setting."""


_REFUSED = "troubleshoot.md#when-no-pod-of-linkwise-is-created"
# What to do about a refusal of the API server, by a part of its message.
_CAUSES = {
    "violates PodSecurity": (
        "run `kubectl label namespace {} pod-security.kubernetes.io/enforce=privileged --overwrite`"
    ),
    "RuntimeClass": "create that runtime class, or leave it out: in the chart, runtimeClassName",
    "insufficient quota to match these scopes": "set other priority classes, or use kube-system",
}
_OTHER = "change what refuses them, or what they ask for"


def of_programs(facts: Facts) -> Iterator[Finding]:
    if not facts.could_read("pods"):
        return
    for program, message in facts.refused.items():
        todo = next((_CAUSES[sign] for sign in _CAUSES if sign in message), _OTHER)
        what = f"its pods are not created: {message}"
        yield Finding(Level.PROBLEM, (program,), what, todo.format(facts.system), _REFUSED)
    unbound = [pod for pod in facts.plugins if not pod.spec.node_name and pod.refusal]
    if unbound:
        what = f"{unbound[0].key} has no node: {unbound[0].refusal}"
        todo = f"see `kubectl -n {facts.system} describe pod {unbound[0].metadata.name}`"
        yield Finding(Level.PROBLEM, (PLUGIN,), what, todo, "plugin.md", passing=True)
    yield from _of_settings(facts)


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    told: Told
    todo: str
    page: str


def _of_settings(facts: Facts) -> Iterator[Finding]:
    flags = _Flags(facts)
    for each in (
        _gpu(flags),
        _planned(flags, facts),
        _scheduler(flags, facts),
        *_of_both(flags, facts),
    ):
        if len(set(each.told.values())) > 1:
            told = (f"{who} has {' and '.join(sorted(has))}" for who, has in each.told.items())
            what = f"they differ in {each.name}: {'; '.join(told)}"
            yield Finding(Level.PROBLEM, tuple(each.told), what, each.todo, each.page, passing=True)


def _gpu(flags: "_Flags") -> _Setting:
    told = flags.of("resource-name", names.DEFAULT_RESOURCE, PLUGIN, EXTENDER, WEBHOOK)
    todo = "give all of them one --resource-name; in the chart, resourceName"
    return _Setting("the resource that is a GPU", told, todo, "webhook.md#flags")


def _planned(flags: "_Flags", facts: Facts) -> _Setting:
    gpu = flags.of("resource-name", names.DEFAULT_RESOURCE, WEBHOOK)
    told = {who: has | flags.of("shared-resource", "", who)[who] - {""} for who, has in gpu.items()}
    if told and facts.conditions:
        quoted = {a or b for text in facts.conditions for a, b in _QUOTED.findall(text)}
        managed = frozenset[str]().union(*gpu.values())  # a condition may quote labels too
        told[_CALLS] = frozenset(
            word
            for word in quoted
            if word in managed or any(names.is_share(word, each) for each in managed)
        )
    if facts.scheduler is not None:
        told[SCHEDULER] = facts.scheduler.managed
    todo = "list replicas and MIG devices in all of them; in the chart, sharedResources"
    page = "docs/in-front.md#switch-it-on"
    return _Setting("the resources whose pods Linkwise plans", told, todo, page)


def _scheduler(flags: "_Flags", facts: Facts) -> _Setting:
    told = flags.of("scheduler-name", _DEFAULT_SCHEDULER, WEBHOOK)
    if facts.scheduler is not None and told:
        calls = () if facts.state is None else facts.state.calls
        known = facts.scheduler.names.union(calls)
        told[SCHEDULER] = told[WEBHOOK] if told[WEBHOOK] <= known else known
    todo = "give the webhook that scheduler's name as --scheduler-name"
    page = "install.md#choose-the-values"
    return _Setting("the scheduler that calls Linkwise", told, todo, page)


def _of_both(flags: "_Flags", facts: Facts) -> Iterator[_Setting]:
    for name, flag, default in (
        ("Indexed Jobs", "indexed-jobs", IndexedJobs.ALL.value),
        ("the class of devices that are GPUs", "device-class", device_class_of(facts.resources[0])),
    ):
        told = flags.of(flag, default, EXTENDER, WEBHOOK)
        todo = f"give both one --{flag}; in the chart, extender.flags"
        yield _Setting(name, told, todo, "webhook.md#flags")


class _Flags:
    def __init__(self, facts: Facts) -> None:
        self._pods: dict[str, list[SeenPod]] = {}
        # A DaemonSet whose nodes are all gone has no pods.
        for pod in (*facts.pods, *(each.spec.template for each in facts.daemonsets)):
            if pod.live:
                self._pods.setdefault(pod.program, []).append(pod)

    def of(self, flag: str, default: str, *programs: str) -> dict[str, frozenset[str]]:
        """What the pods of each program that runs have, all together."""
        return {
            program: frozenset(
                value for pod in pods for value in (pod.values_of(flag) or (default,))
            )
            for program in programs
            if (pods := self._pods.get(program))
        }
