"""kube-scheduler's own filters: which nodes each plugin refuses for a pod, and in which words.

One module a plugin. PURE: the extender plans with them, and the simulator's scheduler filters with
them. docs/workloads.md lists the plugins, and what is left to kube-scheduler. If versions
differ, the filters follow the newest.
"""
