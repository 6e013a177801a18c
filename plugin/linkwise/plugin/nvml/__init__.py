"""NVIDIA's driver as a source of GPUs, through its management library, NVML.

source                the source of GPUs: remembers the driver's answers, and asks for new ones
driver                opens and closes the library, and never waits for it too long
library, questions    the functions that the plugin calls, and how it takes their answers
reading, nvlinks,
fabric                what the driver says about one GPU
assembling, wiring    the answers of all GPUs, put together to a machine
probing, events       the state of a GPU now; XIDs, as they happen
loads                 what a GPU does now
"""
