"""Where GPUs come from.

inventory            what a source of GPUs is asked, and what it answers
recorded, labelled   machines that are played
sysfs                what Linux knows of PCI devices
"""
