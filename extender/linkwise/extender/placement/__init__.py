"""Pure search: where does a pod, or a whole gang, fit best?"""
