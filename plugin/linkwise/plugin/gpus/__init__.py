"""Sources of GPUs.

inventory            the protocol of a source of GPUs, and the values that it returns
recorded, labelled   played machines
calls                bounds calls that may hang
sysfs                what Linux knows about PCI devices
nics                 the RDMA network cards, and how close each is to each GPU
"""
