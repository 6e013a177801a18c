"""The differences from kube-scheduler's filters that are meant to be."""

from tests.cluster.support.filters.differences import LeftOut

LEFT_OUT: tuple[LeftOut, ...] = ()
