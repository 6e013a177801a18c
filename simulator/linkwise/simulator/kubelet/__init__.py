"""A stand-in for the kubelet: real gRPC on unix sockets and its device rules, but no containers."""

from linkwise.simulator.kubelet.endpoint import Adviser
from linkwise.simulator.kubelet.node import Kubelet
from linkwise.simulator.kubelet.servers import PodDevices
from linkwise.simulator.kubelet.settings import KubeletSettings

__all__ = ["Adviser", "Kubelet", "KubeletSettings", "PodDevices"]
