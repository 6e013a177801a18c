"""What the question is made of: the cluster, its machines, and the pods of the job."""
