"""Turns Jobs and other workloads into Pods, as their controllers do.

What differs from the real controllers:

- Jobs are tracked in memory, without finalizers: a pod that is deleted while the controller is down
  does not count as a failure.
- Job fields: completions (100,000 at most), parallelism, Indexed and NonIndexed, backoffLimit,
  suspend.
- Pods of other workloads come as of a manifest (docs/workloads.md, "Manifests of workloads"), and
  are created again when deleted.
- The garbage collector is a part of the job controller.
- Unknown manifest fields are passed through; a real API server may decode strictly.
"""
