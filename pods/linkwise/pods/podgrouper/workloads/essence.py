"""The part of an object that the rules read. The cache drops the rest, which is most of it.

An owner contains whole pod templates with their environments, volumes and probes. The extender
caches thousands of owners, and compares them to see whether a change concerns any pod.
"""

import re

from linkwise.kube.fields import Fields, at, mapping, text
from linkwise.topology import names

_DEPTH = 12  # levels of a spec; RayClusters and JobSets have their templates at level 5
_LONGEST = 1024  # characters; names and words are shorter
_OF_CONTAINER = ("name", "resources", "restartPolicy")
_OF_POD_SPEC = ("subdomain", "overhead", "resourceClaims")
_CONTAINERS = ("containers", "initContainers")
# The number of nodes, as vLLM's script that starts Ray on several nodes takes it, which KAITO runs
# (kaito-project/kaito, pkg/model/interface.go), and as SGLang, vLLM and torchrun do.
_NODES = re.compile(r"""--(?:ray_cluster_size|nnodes)[ =]["']?([0-9]{1,7})(?=[\s"';]|$)""")


def essence(found: Fields) -> Fields:
    """Reduce an object of the API server. The rules treat objects with equal results alike."""
    metadata = mapping(found, "metadata")
    kept = {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}
    owners = metadata.get("ownerReferences")
    if owners:
        kept["ownerReferences"] = owners
    slim: dict[str, object] = {
        "apiVersion": text(found, "apiVersion"),
        "kind": text(found, "kind"),
        "metadata": kept,
        "spec": _slim(found.get("spec"), _DEPTH),
    }
    succeeded = at(found, "status.succeeded")
    if succeeded is not None:
        slim["status"] = {"succeeded": succeeded}
    return slim


def _slim(value: object, depth: int) -> object:
    if isinstance(value, dict):
        if depth == 0:
            return {}
        if "containers" in value:
            return _pod_spec(value)
        return {
            key: _ours_said(below) if key == "metadata" else _slim(below, depth - 1)
            for key, below in value.items()
        }
    if isinstance(value, list):
        return [_slim(item, depth - 1) for item in value] if depth else []
    return value if not isinstance(value, str) or len(value) <= _LONGEST else ""


def _pod_spec(spec: Fields) -> Fields:
    slim = {key: spec[key] for key in _OF_POD_SPEC if key in spec}
    for key in _CONTAINERS:
        listed = spec.get(key)
        if isinstance(listed, list):
            slim[key] = [_container(item) for item in listed]
        elif key in spec:
            slim[key] = listed
    return slim


def _container(item: object) -> object:
    if not isinstance(item, dict):
        return item
    kept = {key: item[key] for key in _OF_CONTAINER if key in item}
    nodes = nodes_said(item)
    return {**kept, "args": [f"--nnodes={nodes}"]} if nodes else kept


def nodes_said(container: Fields) -> str:
    """How many nodes the command of *container* says that its process runs on; empty if it says
    none, or different numbers."""
    words = [*_words(container.get("command")), *_words(container.get("args"))]
    found = frozenset(_NODES.findall(" ".join(words)))
    return next(iter(found)) if len(found) == 1 else ""


def _words(listed: object) -> list[str]:
    return [word for word in listed if isinstance(word, str)] if isinstance(listed, list) else []


def _ours_said(metadata: object) -> Fields:
    """Linkwise's annotations of a template; everything else is read from its pods."""
    said = mapping(metadata, "annotations") if isinstance(metadata, dict) else {}
    return {"annotations": {key: said[key] for key in said if key.startswith(names.PREFIX)}}
