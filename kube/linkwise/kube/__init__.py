"""Talking to the API server, for both programs.

objects    what is read of Pods and Nodes
client     requests: get, post, put, patch, delete, stream
reflector  list and watch: everything that exists, then every change, for as long as it runs
errors     what can go wrong
"""
