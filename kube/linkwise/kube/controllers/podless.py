"""Kinds of objects that are known to create no pods by themselves. Tools name objects of any other
kind that have no pod template."""

_GROUPS = frozenset(
    {
        # Kubernetes' own, except for the kinds that `workload` knows.
        "",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "gateway.networking.k8s.io",
        "kustomize.config.k8s.io",
        "metrics.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "policy.networking.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "snapshot.storage.k8s.io",
        "storage.k8s.io",
        # Queues and groups.
        "kueue.x-k8s.io",
        "scheduler.grove.io",
        "scheduling.run.ai",
        "scheduling.sigs.k8s.io",
        "scheduling.volcano.sh",
        "scheduling.x-k8s.io",
        "topology.node.k8s.io",
        # What stands beside workloads in many published manifests.
        "cert-manager.io",
        "external-secrets.io",
        "k8s.cni.cncf.io",
        "networking.istio.io",
        "nfd.k8s-sigs.io",
        "security.istio.io",
    }
)
_KINDS = frozenset(
    {
        ("keda.sh", "ClusterTriggerAuthentication"),
        ("keda.sh", "ScaledObject"),
        ("keda.sh", "TriggerAuthentication"),
        ("monitoring.coreos.com", "AlertmanagerConfig"),
        ("monitoring.coreos.com", "PodMonitor"),
        ("monitoring.coreos.com", "Probe"),
        ("monitoring.coreos.com", "PrometheusRule"),
        ("monitoring.coreos.com", "ScrapeConfig"),
        ("monitoring.coreos.com", "ServiceMonitor"),
    }
)


def creates_no_pods(group: str, kind: str) -> bool:
    return group in _GROUPS or (group, kind) in _KINDS
