"""What is missing around the extender: a leader, kube-scheduler's calls, certificates."""

from collections import Counter
from collections.abc import Iterator

from linkwise.cli.doctor.facts import EXTENDER, SCHEDULER, Facts, SeenPod
from linkwise.cli.doctor.finding import Finding, Level
from linkwise.drawing.words import gpus_in_words, pods_in_words, some
from linkwise.extender.show.explain.texts.tables import rough_gpu_hours
from linkwise.extender.state.views import StateView
from linkwise.kube.pod_conditions import GROUP_REFUSED
from linkwise.pods.podgrouper.recreated import COUNTS_AS_FAILURE

SILENT_SECONDS = 600.0  # kube-scheduler tries every pod again within five minutes
_SCALED_SECONDS = 900.0  # Cluster Autoscaler gives a new node as long to come
_SKEW_SECONDS = 60.0  # between this machine's clock and the leader's
_DAY = 86400.0
_ENDING_SECONDS = 7 * _DAY
_KEPT_GPU_SECONDS = 3600.0  # that a workload without consent kept waiting, or it is no news
_MOST_KEPT, _NODES_NAMED = 8, 3
_ENDING_SHARE = 0.2  # of its life; Linkwise renews at a third


def of_scheduling(facts: Facts) -> Iterator[Finding]:
    yield from _of_extender(facts)
    yield from _of_second_scheduler(facts)
    yield from _of_broken_off(facts)
    if facts.state is not None:
        yield from _of_calls(facts, facts.state)
        yield from _of_evictions(facts.state)
        yield from _of_uncreated(facts.state)
        yield from _of_idle_nodes(facts, facts.state)
        yield from _of_kept_waiting(facts.state)
    yield from _of_resources(facts)
    yield from _of_certificates(facts)
    for what, why in facts.unread:
        todo = "ask as a user who may read it"
        text = f"cannot be read: {why}"
        yield Finding(Level.UNKNOWN, (what,), text, todo, "docs/kubectl.md#doctor")


def _of_extender(facts: Facts) -> Iterator[Finding]:
    where = ("extender",)
    pods = [pod for pod in facts.pods if pod.live and pod.is_of(EXTENDER)]
    if facts.silence:
        what = facts.silence
        if facts.could_read("pods") and not pods:
            what = f"no pod of the extender runs: {what}"
        todo = f"read `kubectl -n {facts.system} get pods -l app.kubernetes.io/name={EXTENDER}`"
        yield Finding(Level.PROBLEM, where, what, todo, "two-extenders.md")
    spec = None if facts.lease is None else facts.lease.spec
    if spec is None or not facts.could_read("lease"):
        return
    renewed = 0.0 if spec.renew_time is None else spec.renew_time.timestamp()
    lapsed = facts.at - renewed > (spec.lease_duration_seconds or 0) + _SKEW_SECONDS
    if not spec.holder_identity or lapsed:
        what = "no extender leads"
        todo = "read the log of an extender"
        yield Finding(Level.PROBLEM, where, what, todo, "two-extenders.md", passing=True)


def _of_second_scheduler(facts: Facts) -> Iterator[Finding]:
    pods = [pod for pod in facts.pods if pod.live and pod.is_of(SCHEDULER)]
    if pods and not any(pod.ready for pod in pods):
        todo = (
            f"read `kubectl -n {facts.system} describe pods -l app.kubernetes.io/name={SCHEDULER}`"
        )
        page = "install.md#choose-the-values"
        yield Finding(Level.PROBLEM, (SCHEDULER,), "it is not ready", todo, page, passing=True)


def _of_broken_off(facts: Facts) -> Iterator[Finding]:
    """What kube-scheduler itself writes on pods within seconds, as if it cannot call."""
    failing: dict[tuple[str, bool], list[SeenPod]] = {}
    for pod in facts.pods:
        if pod.live and not pod.spec.node_name and pod.broken_off and facts.takes_gpus(pod):
            in_group = pod.broken_off.startswith(GROUP_REFUSED)
            failing.setdefault((pod.spec.scheduler_name, in_group), []).append(pod)
    for (scheduler, in_group), pods in sorted(failing.items()):
        many = pods_in_words(len(pods))
        what = f"it cannot try {many}, such as {pods[0].key}: {pods[0].broken_off}"
        todo = "look the error up there"
        page = "troubleshoot.md#when-kube-scheduler-cannot-call-the-extender"
        if in_group:
            todo = "create the PodGroup and its pods again, with the same in all of them"
            page = "docs/workloads.md#what-kube-scheduler-refuses"
        yield Finding(Level.PROBLEM, (scheduler,), what, todo, page)


def _of_calls(facts: Facts, state: StateView) -> Iterator[Finding]:
    if state.namespaces:
        what = f"a canary: only pods of {', '.join(state.namespaces)} are placed"
        page = "adopt-step-by-step.md#2-canary"
        yield Finding(Level.NOTE, ("extender",), what, "nothing, if that is meant", page)
    if facts.observes:
        page = "adopt-step-by-step.md#1-observe"
        what = "Linkwise observes: no plugin of it serves a kubelet"
        yield Finding(Level.NOTE, ("cluster",), what, "nothing, if that is meant", page)
        return
    if not (state.calls or facts.could_read("pods")):
        return  # it is unknown whether the cluster is only observed
    configure = "give kube-scheduler the configuration of the overlay, and read its log"
    for scheduler, pods in sorted(Counter(pod.scheduler for pod in state.unplanned).items()):
        first = next(pod for pod in state.unplanned if pod.scheduler == scheduler)
        came = f"{pods_in_words(pods)} past the extender, such as {first.pod}"
        calls = scheduler in state.calls or not state.calls
        yield Finding(
            Level.PROBLEM if calls else Level.NOTE,
            (scheduler,),
            f"it bound {came}",
            configure if calls else "nothing, if that scheduler is not to ask",
            "install.md#on-kubeadm",
        )
    for scheduler, pods in sorted(_kept_waiting(facts, state).items()):
        minutes = f"{SILENT_SECONDS / 60:.0f} minutes"
        plural = "pod waits" if pods == 1 else "pods wait"
        what = f"no call for {minutes}, and {pods} {plural}"
        if scheduler == SCHEDULER:
            todo = f"read `kubectl -n {facts.system} logs deployment/{SCHEDULER}`"
            page = "troubleshoot.md#when-kube-scheduler-cannot-call-the-extender"
        else:
            todo, page = configure, "install.md#on-kubeadm"
        yield Finding(Level.PROBLEM, (scheduler,), what, todo, page)


def _of_evictions(state: StateView) -> Iterator[Finding]:
    if state.failing:
        what = f"it may be evicted, and {COUNTS_AS_FAILURE}"
        todo = "add a rule with action: Ignore to the Job, or no longer consent to evictions"
        yield Finding(Level.NOTE, state.failing, what, todo, "queue-and-gangs.md#pods-of-jobs")


def _of_uncreated(state: StateView) -> Iterator[Finding]:
    for gang, why in sorted(state.uncreated.items()):
        todo = "change the pods, or what refuses them"
        what = f"it has too few pods: {why}"
        yield Finding(Level.NOTE, (gang,), what, todo, "queue-and-gangs.md#quotas")


def _of_idle_nodes(facts: Facts, state: StateView) -> Iterator[Finding]:
    """Only if the autoscaler has had its time for the gang, and has added no node of late."""
    made = [node.metadata.creation_timestamp for node in facts.nodes]
    newest = max((each.timestamp() for each in made if each is not None), default=0.0)
    for kept in state.kept_idle:
        if state.at - max(newest, kept.since) > _SCALED_SECONDS:
            what = f"idle beside gang {kept.gang}, which has no room here, {kept.in_vain}: a node "
            what += "autoscaler would not remove them"
            todo = "delete the gang, make it smaller, or raise the maximum of its node group"
            page = "autoscaling.md#a-gang-that-the-cluster-cannot-hold"
            if kept.coming:
                later = f"its owner creates {pods_in_words(kept.coming)} only after others run"
                todo = f"have nodes for the whole gang: {later}"
                page = "autoscaling.md#members-that-come-later"
            yield Finding(Level.NOTE, kept.nodes, what, todo, page)


def _of_kept_waiting(state: StateView) -> Iterator[Finding]:
    """The worst, each of which costs a large gang or pod hours."""
    worst = [each for each in state.kept_waiting if each.gpu_seconds >= _KEPT_GPU_SECONDS]
    for each in worst[:_MOST_KEPT]:
        there = f"{each.kind}, {gpus_in_words(each.gpus)} on {some(each.nodes, _NODES_NAMED)}"
        hours = f"{rough_gpu_hours(each.gpu_seconds)} GPU hours"
        waits = f"{each.waits} ({gpus_in_words(each.waits_gpus)}) waiting: {hours}"
        what = f"it does not consent to moves ({there}), and kept {waits}"
        todo = "have its pods consent with linkwise.dev/movable, or all of a namespace with "
        todo += "--movable-namespace"
        where = (f"{each.namespace}/{each.name}",)
        yield Finding(Level.NOTE, where, what, todo, "moves-and-idle.md#which-pods-move")


def _kept_waiting(facts: Facts, state: StateView) -> Counter[str]:
    """By scheduler: its pods that wait for longer than it is silent, where kube-scheduler's own
    reason says neither that it found no node to ask about nor that it cannot ask."""
    waiting: Counter[str] = Counter()
    lacking = (f"Insufficient {each}" for each in facts.resources)
    reasons = (*lacking, "nodes are available: ", "linkwise: ")
    for pod in facts.pods:
        made, scheduler = pod.metadata.creation_timestamp, pod.spec.scheduler_name
        if not pod.live or pod.spec.node_name or pod.spec.scheduling_gates or made is None:
            continue
        if state.namespaces and pod.metadata.namespace not in state.namespaces:
            continue
        asks = scheduler in state.calls or not state.calls
        last = max(state.calls.get(scheduler, 0.0), state.began, made.timestamp())
        own = bool(pod.broken_off) or any(word in pod.refusal for word in reasons)
        if asks and not own and facts.takes_gpus(pod) and state.at - last > SILENT_SECONDS:
            waiting[scheduler] += 1
    return waiting


def _of_resources(facts: Facts) -> Iterator[Finding]:
    others = sorted(pod.key for pod in facts.pods if pod.live and _is_anothers(pod.refusal))
    if others:
        what = f"kube-scheduler's configuration lacks managedResources: it asked about {others[0]}"
        todo = f"add managedResources with {' and '.join(facts.resources)}, as in the overlay"
        yield Finding(Level.PROBLEM, ("kube-scheduler",), what, todo, "install.md#on-kubeadm")


def _is_anothers(refusal: str) -> bool:
    return "must list it in managedResources" in refusal


def _of_certificates(facts: Facts) -> Iterator[Finding]:
    for each in facts.certificates:
        left = each.ends - facts.at
        life = None if each.made is None else each.ends - each.made
        soon = left < _ENDING_SECONDS if life is None else left < life * _ENDING_SHARE
        if soon:
            what = f"has ended {_days(-left)} ago" if left <= 0 else f"ends in {_days(left)}"
            todo = "see why it was not renewed"
            yield Finding(Level.PROBLEM, (each.name,), what, todo, "security.md#certificates")


def _days(seconds: float) -> str:
    if seconds < _DAY:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / _DAY:.0f} d"
