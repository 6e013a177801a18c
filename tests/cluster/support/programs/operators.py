"""Operators whose real controllers run beside Linkwise, built of their Go modules.

The table is the only place with their versions. A module contains the manifests that users install,
so nothing of an operator is stored in this repository.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.support.programs import binaries

SELECTED = "LINKWISE_BESIDE"  # names with commas; none: all


@dataclass(frozen=True)
class Operator:
    """*manifests* is the kustomization that users install, except its resource *left_out*.

    A file in them configures its manager, and the test changes *settings*. Or else flags do, in
    which `{host}`, `{port}` of the webhooks and `{health}`, a port, are replaced.
    *issues_certificate*: the manager cannot be given one. *alone*: it does not run beside all
    others.
    """

    name: str
    title: str
    module: str
    version: str
    sum: str  # the hash of the module; its go.sum has those of its dependencies
    package: str
    manifests: str
    left_out: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = ()
    issues_certificate: bool = False
    kubeconfig: str = "--kubeconfig"
    ready: str = "{health}/readyz"  # port and path
    alone: bool = False

    @property
    def folder(self) -> str:
        """The module's folder with the manifests."""
        return self.manifests.split("/")[0]

    def build(self) -> Path:
        """Return the directory with its manager and its manifests; build it if necessary. Two
        minutes of processor time."""
        return binaries.of_module(
            self.name, self.module, self.version, self.sum, self.package, self.folder
        )


JOB_SET = Operator(
    name="jobset",
    title="JobSet",
    module="sigs.k8s.io/jobset",
    version="v0.12.0",
    sum="h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ=",
    package=".",
    manifests="config/default",
)
LEADER_WORKER_SET = Operator(
    name="lws",
    title="LeaderWorkerSet",
    module="sigs.k8s.io/lws",
    version="v0.7.0",
    sum="h1:qWfzX8+UBak+Hq0+m/PuE3uO0mp/3dmm5q/h/7z31A8=",
    package="./cmd",
    manifests="config/default",
)
TRAINING_OPERATOR = Operator(
    name="training-operator",
    title="Kubeflow's training operator",
    module="github.com/kubeflow/training-operator",
    version="v1.9.4",
    sum="h1:MjYXzeaHGBmF47BlhCo6+Mb7ypHrVfO6vsys1ZHF56A=",
    package="./cmd/training-operator.v1",
    manifests="manifests/overlays/standalone",
    flags=(
        "--metrics-bind-address=0",
        "--health-probe-bind-address={host}:{health}",
        "--webhook-server-port={port}",
    ),
    issues_certificate=True,
)
KUBERAY = Operator(
    name="kuberay",
    title="KubeRay",
    module="github.com/ray-project/kuberay/ray-operator",
    version="v1.5.0",
    sum="h1:KCjCQ7PSsvs9Ke+90CZbbs498nuaIJ/JkXk4vd54EVg=",
    package=".",
    manifests="config/default",
    flags=(
        "--metrics-addr=0",
        "--health-probe-bind-address={host}:{health}",
        "--enable-leader-election=false",
    ),
)
TRAINER = Operator(
    name="trainer",
    title="Kubeflow's Trainer",
    module="github.com/kubeflow/trainer/v2",
    version="v2.3.0",
    sum="h1:Je+e7zvTLzB4qW09J1fB7pZrqvPtWuGng2NqdN5p5QU=",
    package="./cmd/trainer-controller-manager",
    manifests="manifests/overlays/manager",
    left_out="../../third-party/jobset",  # of a URL; the test has its own
)
KUEUE = Operator(
    name="kueue",
    title="Kueue",
    module="sigs.k8s.io/kueue",
    version="v0.19.0",
    sum="h1:5yCu85qsJhvUVVxE0Csw546DDBcRwUXpBEOmEFlws34=",
    package="./cmd/kueue",
    manifests="config/default",
    # It writes a certificate for its second server to the root of the file system.
    settings={"featureGates": {"VisibilityOnDemand": False}},
    issues_certificate=True,
)
MPI_OPERATOR = Operator(
    name="mpi-operator",
    title="MPI operator",
    module="github.com/kubeflow/mpi-operator",
    version="v0.6.0",
    sum="h1:RzzG03oyQIiHe/SH2k19N+Hp4QkxEsG2l9G1T7US+ys=",
    package="./cmd/mpi-operator",
    manifests="manifests/overlays/standalone",
    kubeconfig="--kubeConfig",
    ready="8080/healthz",
    alone=True,  # the training operator has MPIJobs of another version
)
DESCHEDULER = Operator(
    name="descheduler",
    title="descheduler",
    module="sigs.k8s.io/descheduler",
    version="v0.36.0",
    sum="h1:fBemfJD1RhmbsdH94lKwGMOwQcbsrw67A5IK2c2fANA=",
    package="./cmd/descheduler",
    manifests="kubernetes/base",
    alone=True,  # a test runs it once, when there is something to evict
)
KARPENTER = Operator(
    name="karpenter",
    title="Karpenter",
    module="sigs.k8s.io/karpenter",
    version="v1.14.1",  # the newest that Go 1.26.8 builds
    sum="h1:GjqvOHLjl2+OXM0ti5VEZSQuvcitB0pETd8zdChXEtI=",
    package="./kwok",  # with the provider of the module, whose machines are Node objects
    manifests="kwok/charts/crds",
    alone=True,  # it makes nodes
)
OPERATORS = (
    *(JOB_SET, LEADER_WORKER_SET, TRAINING_OPERATOR, KUBERAY, TRAINER, KUEUE),
    *(MPI_OPERATOR, DESCHEDULER, KARPENTER),
)


def selected() -> tuple[Operator, ...]:
    """Return those of this run. Raises ValueError for a name that is none."""
    by_name = {operator.name: operator for operator in OPERATORS}
    names = {*filter(None, os.environ.get(SELECTED, "").split(","))}
    if unknown := names - by_name.keys():
        raise ValueError(f"no operators: {', '.join(unknown)}; there are {', '.join(by_name)}")
    return tuple(each for each in OPERATORS if each.name in names or not names)
