"""The parts of the question: the cluster, its machines, and the pods of the job."""
