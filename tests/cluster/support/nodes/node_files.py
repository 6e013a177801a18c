"""What containerd, its network plugin and the kubelet of one node are told.

Each setting that is not the default is here because of a small machine that is already running
something: no systemd, perhaps cgroup version 1, perhaps no right to lower an OOM score, and several
nodes beside each other. What a pod can notice is as on any cluster.
"""

import json
from pathlib import Path
from typing import Any

from tests.cluster.support.programs import busybox

NETWORK_PLUGINS = "/usr/lib/cni"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
STATIC_PODS = "/etc/kubernetes/manifests"  # as kubeadm has it
# The pod itself, where nobody listens: there are no names here, and a look-up says so at once.
_NO_NAMES = "127.0.0.1"


def write_containerd(directory: Path) -> Path:
    path = directory / "containerd.toml"
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc dies where it may not lower a score.
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
    """Every pod is routed, not bridged: a bridge would send answers past kube-proxy's rules."""
    address_management = {
        "type": "host-local",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni",  # as good as forgotten in a power cut
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
    directory: Path, *, address: str, authority: Path, certificate: Path, key: Path, cgroup: str
) -> Path:
    path = directory / "kubelet.json"
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "healthzPort": 0,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        # With these `kubectl logs` and `exec` work.
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
        # The machine's disk is not the node's: nothing is evicted or collected because of it.
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
        # 10 s and up to 5 min by default, which tests would spend waiting.
        "nodeStatusUpdateFrequency": "1s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
    }
    path.write_text(json.dumps(config, indent=1))
    return path
