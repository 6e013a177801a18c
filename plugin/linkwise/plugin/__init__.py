"""The DaemonSet program: offers GPUs to the kubelet, and publishes their topology in the cluster.

start            catches signals, then loads the rest
program          connects the parts: which thread passes what to which other
gpus, nvml       the sources of GPUs: played machines, and the driver
health           which GPUs may be given out
allocate, pods   PURE: the kubelet's question -> GPUs; the pod that it must be for
advisor          the only place that remembers what the kubelet asked
server,
registration     the gRPC services for the kubelet, and their life cycle
in_front         the same in front of a vendor's plugin, which stays
containers       what makes a container see its GPUs
publish, in_use  what the Node publishes: topology, labels, and the GPUs that pods really have
"""
