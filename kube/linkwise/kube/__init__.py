"""Access to the API server, for all programs.

objects    the fields of Pods and Nodes that Linkwise reads
client     requests: get, post, put, patch, delete, stream
reflector  list and watch: everything that exists, then every change, for as long as it runs
errors     what can go wrong
filters    which nodes kube-scheduler's own plugins refuse for a pod
"""
