"""Which GPUs may be given out.

conditions, xids   the tables: what can be wrong with a GPU, and how it is treated
faults             PURE: findings of probes and XIDs -> out, back after a probation, notes
book               the state of the GPUs now, shared by all readers
caretaker          the thread that reads the source of GPUs and updates `book`
"""
