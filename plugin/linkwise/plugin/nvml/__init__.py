"""NVIDIA's driver as a source of GPUs, through its management library, NVML.

source                what has been told so far, and what is asked now
driver, calls         the library, opened and closed; a call may hang, who makes it may not
library, questions    what we call of it, and how its answers are taken
reading, nvlinks,
fabric                what one GPU says of itself
assembling, wiring    what all of them said, put together to a machine
probing, events       how a GPU is now; XIDs, as they happen
"""
