"""The manifest that krew reads (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/)."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from krew.archive import PROGRAM

_ARCHIVE = re.compile(rf"{PROGRAM}_(linux|darwin)_(amd64|arm64)\.tar\.gz")
_DESCRIPTION = """\
Linkwise places GPU pods on the GPUs with the best links. This plugin shows why pods and gangs wait
for GPUs, which pods have them, which of those are idle, and what is missing for Linkwise. It asks
Linkwise's extender through the API server, with your kubeconfig, and changes nothing.
"""
_CAVEATS = """\
Linkwise must run in the cluster. If it is not in the namespace kube-system:
  export KUBECTL_LINKWISE_EXTENDER=NAMESPACE/linkwise-extender:http
"""


class ManifestError(Exception):
    """No manifest can describe these archives: names the archive, and what was expected."""


def manifest(version: str, homepage: str, address: str, archives: Sequence[Path]) -> str:
    """Return the manifest as YAML. The *archives* can be downloaded below the URL *address*.

    Raises ManifestError.
    """
    platforms = [_platform(address, archive) for archive in sorted(archives)]
    for number, platform in enumerate(platforms):
        if platform["selector"] in [each["selector"] for each in platforms[:number]]:
            raise ManifestError(f"{platform['uri']}: expected one archive for each platform")
    if not platforms:
        raise ManifestError("no archive: expected at least one")
    said = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": PROGRAM.removeprefix("kubectl-")},
        "spec": {
            "version": f"v{version}",
            "homepage": homepage,
            "shortDescription": "Show why pods wait for GPUs, and who has them",
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(said, sort_keys=False)


def _platform(address: str, archive: Path) -> dict[str, object]:
    found = _ARCHIVE.fullmatch(archive.name)
    if found is None:
        raise ManifestError(f"{archive}: expected a name like {PROGRAM}_linux_amd64.tar.gz")
    return {
        "selector": {"matchLabels": {"os": found[1], "arch": found[2]}},
        "uri": f"{address}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": PROGRAM,
    }
