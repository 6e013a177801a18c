"""Operators whose real controllers run beside Linkwise, built of their Go modules.

The table is the only place with their versions. A module contains the manifests that users install,
so nothing of an operator is stored in this repository.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.support.programs import binaries


@dataclass(frozen=True)
class Operator:
    """*manifests* is the kustomization that users install, *settings* the API version of the file
    that configures its manager."""

    name: str
    module: str
    version: str
    sum: str  # the hash of the module; its go.sum has those of its dependencies
    package: str
    manifests: str
    settings: str

    def build(self) -> Path:
        """Return the directory with its manager and its manifests; build it if necessary. Two
        minutes of processor time."""
        kept = self.manifests.split("/")[0]
        return binaries.of_module(
            self.name, self.module, self.version, self.sum, self.package, kept
        )


JOB_SET = Operator(
    name="jobset",
    module="sigs.k8s.io/jobset",
    version="v0.12.0",
    sum="h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ=",
    package=".",
    manifests="config/default",
    settings="config.jobset.x-k8s.io/v1alpha1",
)
LEADER_WORKER_SET = Operator(
    name="lws",
    module="sigs.k8s.io/lws",
    version="v0.7.0",
    sum="h1:qWfzX8+UBak+Hq0+m/PuE3uO0mp/3dmm5q/h/7z31A8=",
    package="./cmd",
    manifests="config/default",
    settings="config.lws.x-k8s.io/v1alpha1",
)
OPERATORS = JOB_SET, LEADER_WORKER_SET
