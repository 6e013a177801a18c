"""The chart as helm renders it and the overlays as kubectl builds them, in a form that compares."""

import difflib
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.support.programs import binaries
from tests.manifests import DAEMONSET

CHART = DAEMONSET / "chart"
# Helm's own labels; a kustomization has none of them.
_OF_A_RELEASE = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
)
# Each restarts the scheduler when its file changes: helm by an annotation, kustomize by a name.
_CHECKSUM = "checksum/config"
_HASHED = re.compile(r"^(linkwise-scheduler-config)-[a-z0-9]{10}$")

Objects = Mapping[str, dict[str, Any]]


class HelmError(Exception):
    """helm failed: the command, and its output."""


def helm_command(*arguments: str) -> list[str]:
    return [str(binaries.helm() / "helm"), *arguments]


def helm(*arguments: str) -> str:
    """Run helm and return its output. Raises HelmError."""
    ended = subprocess.run(
        helm_command(*arguments),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise HelmError(f"helm {' '.join(arguments)}: exit {ended.returncode}: {ended.stderr}")
    return ended.stdout


def values(**given: object) -> tuple[str, ...]:
    """Return helm's arguments for values, each a dotted path with `__` for a dot."""
    return tuple(
        f"--set-json={name.replace('__', '.')}={json.dumps(value)}" for name, value in given.items()
    )


def template(
    *arguments: str,
    namespace: str = "kube-system",
    name: str = "linkwise",
    kube_version: str = binaries.NEWEST,
) -> str:
    place = (f"--namespace={namespace}", f"--kube-version={kube_version}")
    return helm("template", name, str(CHART), *place, *arguments)


def kustomize(directory: Path) -> str:
    ended = subprocess.run(
        [str(binaries.kubernetes() / "kubectl"), "kustomize", str(directory)],
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout


def objects(manifests: str) -> Objects:
    """Return what *manifests* say, without what only Helm or only kustomize adds."""
    found = [_one_line(each) for each in yaml.safe_load_all(manifests) if each is not None]
    named = {_name(each): each for each in map(_comparable, found)}
    assert len(named) == len(found), "an object is there twice"
    return named


def difference(left: Objects, right: Objects) -> str:
    """Return a unified diff; empty if all objects are equal."""
    lines: list[str] = []
    for name in sorted({*left, *right}):
        lines += difflib.unified_diff(
            _lines(left.get(name)),
            _lines(right.get(name)),
            f"{name} kustomize",
            f"{name} helm",
            lineterm="",
            n=2,
        )
    return "\n".join(lines)


def _lines(body: object) -> Sequence[str]:
    return [] if body is None else yaml.safe_dump(body, width=10_000).splitlines()


def _one_line(body: Any) -> Any:
    """kustomize writes folded lines that are indented further with empty lines between them. So
    the two differ in the white space of expressions, which means nothing there."""
    if isinstance(body, str):
        return " ".join(body.split())
    if isinstance(body, list):
        return [_one_line(each) for each in body]
    if isinstance(body, dict):
        return {
            key: value if key == "config.yaml" else _one_line(value) for key, value in body.items()
        }
    return body


def _name(body: Mapping[str, Any]) -> str:
    metadata = body["metadata"]
    return f"{body['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


def _comparable(body: dict[str, Any]) -> dict[str, Any]:
    metadata = body["metadata"]
    for label in _OF_A_RELEASE:
        metadata.get("labels", {}).pop(label, None)
    metadata["name"] = _HASHED.sub(r"\1", metadata["name"])
    if "config.yaml" in body.get("data", {}):
        body["data"]["config.yaml"] = yaml.safe_load(body["data"]["config.yaml"])
    template = body.get("spec", {}).get("template")
    if template is not None:
        _of_pods(template)
    return body


def _of_pods(template: dict[str, Any]) -> None:
    annotations = template["metadata"].get("annotations", {})
    annotations.pop(_CHECKSUM, None)
    if not annotations:
        template["metadata"].pop("annotations", None)
    for container in template["spec"]["containers"]:
        container["args"] = sorted(container.get("args", ()))
    for volume in template["spec"].get("volumes", ()):
        if "configMap" in volume:
            volume["configMap"]["name"] = _HASHED.sub(r"\1", volume["configMap"]["name"])


def texts(body: object) -> Iterable[str]:
    """Yield every text in a value, keys too."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, Mapping):
        for key, value in body.items():
            yield from texts(key)
            yield from texts(value)
    elif isinstance(body, Sequence):
        for value in body:
            yield from texts(value)
