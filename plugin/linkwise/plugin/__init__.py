"""The DaemonSet program: tells the kubelet about GPUs, and the cluster about their topology.

inventory        where GPUs come from: the driver (nvml), or a recorded machine
devices          what is known now, shared by everything that asks
allocate, pods   PURE: the kubelet's question -> GPUs; which pod it must be for
advisor          the one place that remembers what the kubelet asked
server,
registration     the kubelet's gRPC, and its life cycle
publish, in_use  what the cluster hears: topology and labels, and who really has which GPU
"""
