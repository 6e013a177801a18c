"""A stand-in for the kubelet: real gRPC on unix sockets and its device rules, but no containers.

What differs from a real one:

- Containers are timers. How long they take to end is `stop_seconds`, or the pod's annotation,
  instead of the grace period.
- The Topology Manager has all policies and scopes, with the hints of devices only: none of CPUs and
  memory, and no distances (`prefer-closest-numa-nodes`).
- CPU, memory and the number of pods are not checked at admission (`OutOfcpu`).
- The checkpoint is in memory, and survives `restart()`.
- podresources never lists terminated pods. With a real kubelet that depends on the version.
- A node whose kubelet is gone stays Ready: there is no node controller.
- PreStartContainer is never called: Linkwise's plugin does not ask for it.
- The devices of a pod that is refused half-way are given back at once. A real kubelet finds those
  of earlier containers again later.
- Any `:authority` of a caller is accepted. A real kubelet refuses all but host names;
  `tests/plugin/test_grpc_channel.py` looks at the bytes.
"""

from linkwise.simulator.kubelet.endpoint import Adviser
from linkwise.simulator.kubelet.node import Kubelet
from linkwise.simulator.kubelet.servers import PodDevices
from linkwise.simulator.kubelet.settings import KubeletSettings

__all__ = ["Adviser", "Kubelet", "KubeletSettings", "PodDevices"]
