"""Which GPUs may be given out.

conditions, xids   the tables: what can be wrong with a GPU, and what comes of it
faults             PURE: findings of probes and XIDs -> out, back after a probation, notes
book               what is known now, shared by everything that asks
caretaker          the thread that asks the source of GPUs and tells the book
"""
