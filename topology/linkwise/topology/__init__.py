"""What a node's GPUs are, how well they can talk, and which of them to take. Pure.

GPU set    some GPUs of one node, written as a bitmask: bit *p* is `Machine.gpus[p]`
value      estimated all-reduce bus bandwidth of a GPU set, in GB/s
link class how close two GPUs are: NVLink, PIX, PXB, PHB, NODE, SYS (as nvidia-smi prints them)

Both the plugin and the extender ask here, so they cannot disagree.
"""
