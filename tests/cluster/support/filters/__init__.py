"""kube-scheduler's own filters beside Linkwise's, on random clusters.

`cases` makes a cluster and a pod of a seed, `kube_scheduler` asks the real plugins, `differences`
compares, and `smallest` takes away whatever a difference does not need.
"""
