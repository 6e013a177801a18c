"""AMD's driver, amdgpu, as a source of GPUs, through the files that it shows in /sys.

No library is needed, and no ROCm.

source      the source of GPUs: reads, probes, and waits for no file too long
kfd         the GPUs, their partitions and their links, as the driver's compute part counts them
device      what /sys shows of one GPU, and the state of the GPU now
assembling  PURE: all that, put together to a machine
"""
