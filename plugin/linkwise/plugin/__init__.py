"""The DaemonSet program: tells the kubelet about GPUs, and the cluster about their topology.

start            catches signals, then loads the rest
program          the parts put together: which thread tells which other what
gpus, nvml       where GPUs come from: machines that are played, and the driver
health           which of them may be given out
allocate, pods   PURE: the kubelet's question -> GPUs; which pod it must be for
advisor          the one place that remembers what the kubelet asked
server,
registration     the kubelet's gRPC, and its life cycle
in_front         the same in front of a vendor's plugin, which stays
containers       what a container gets to see of its GPUs
publish, in_use  what the cluster hears: topology and labels, and who really has which GPU
"""
