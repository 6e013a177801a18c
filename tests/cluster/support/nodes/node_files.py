"""The configuration of one node's containerd, network plugin and kubelet.

Settings differ from the defaults because of a small machine in use: no systemd, perhaps cgroup
version 1, perhaps no right to lower an OOM score, and several nodes beside each other. A pod sees
what it sees on any cluster.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.support.programs import busybox

NETWORK_PLUGINS = "/usr/lib/cni"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
STATIC_PODS = "/etc/kubernetes/manifests"  # as in kubeadm
# The pod itself, without a listener: the cluster has no DNS, and a look-up fails at once.
_NO_NAMES = "127.0.0.1"


def write_containerd(directory: Path) -> Path:
    path = directory / "containerd.toml"
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc fails if it may not lower a score.
    path.write_text(f"""\
version = 3
imports = []
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{busybox.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/run/cdi"]
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{NETWORK_PLUGINS}"]
  conf_dir = "{directory / "network"}"
""")
    return path


def write_network(directory: Path, pods: str) -> None:
    """Route every pod. A bridge would send answers past kube-proxy's rules."""
    address_management = {
        "type": "host-local",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni",  # lost in a power cut
    }
    path = directory / "network" / "pods.conflist"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "cniVersion": "1.0.0",
                "name": "pods",
                "plugins": [{"type": "ptp", "ipam": address_management}],
            }
        )
    )


def write_kubelet(
    directory: Path,
    *,
    address: str,
    authority: Path,
    certificate: Path,
    key: Path,
    cgroup: str,
    more: Mapping[str, Any],
) -> Path:
    path = directory / "kubelet.json"
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "healthzPort": 0,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        # For `kubectl logs` and `exec`.
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "staticPodPath": STATIC_PODS,
        "clusterDNS": [_NO_NAMES],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # The machine's disk is not the node's, so it must not cause eviction or garbage collection.
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "serializeImagePulls": False,
        # The default is 10 s, up to 5 min, which tests would spend waiting.
        "nodeStatusUpdateFrequency": "1s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        **more,
    }
    path.write_text(json.dumps(config, indent=1))
    return path
