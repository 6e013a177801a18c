"""The chart as helm renders it, the files for kubectl that come of it, and what kubectl builds."""

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.support.programs import binaries
from tests.manifests import DAEMONSET

CHART = DAEMONSET / "chart"
RENDERED = "# Rendered from daemonset/chart/templates/"  # so begin the files for kubectl
# Helm's own labels; a kustomization has none of them.
_OF_A_RELEASE = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
)
# Each restarts the scheduler when its file changes: helm by an annotation, kustomize by a name.
_CHECKSUM = "checksum/config"
_ONLY_OF_A_RELEASE = re.compile(
    rf"^ +(?:annotations:\n +{_CHECKSUM}|{'|'.join(map(re.escape, _OF_A_RELEASE))}): .*\n", re.M
)
# What every installation has to say. No registry: kubectl's files name the image `linkwise`, and
# daemonset/components/image replaces that.
NEEDED = Path(__file__).parent / "needed_values.yaml"
_REGISTRY = "registry.example/"
# Where the manifests of each program are for kubectl, by the folder of its templates.
_FOLDERS = {
    "plugin": "base/plugin",
    "extender": "base/extender",
    "scheduler": "overlays/second-scheduler",
    "webhook": "components/webhook",
}
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
    """Render the chart as with NEEDED, and with an image that has no registry if *arguments* name
    none."""
    place = (f"--namespace={namespace}", f"--kube-version={kube_version}", f"--values={NEEDED}")
    return without_registry(helm("template", name, str(CHART), *place, *arguments))


def without_registry(rendered: str) -> str:
    return rendered.replace(f"image: {_REGISTRY}linkwise:", "image: linkwise:")


def for_kubectl() -> Mapping[Path, str]:
    """Return the files that `make manifests` writes, as the chart renders them."""
    # The base and the webhook are for any scheduler, the files of the second one only for that.
    rendered = _by_template(template()) | _by_template(template(*values(scheduler__mode="none")))
    files = {}
    for (program, file), text in rendered.items():
        path = DAEMONSET / _FOLDERS[program] / file
        if (program, file) == ("scheduler", "config.yaml"):
            # A file by itself: the overlay makes the ConfigMap of it.
            path = path.with_name("scheduler-config.yaml")
            text = yaml.safe_load(text)["data"]["config.yaml"]
        files[path] = f"{RENDERED}{program}/{file} by `make manifests`.\n{text}"
    return files


def _by_template(rendered: str) -> dict[tuple[str, str], str]:
    """Return what each template renders, by folder and file, without what only Helm needs."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    _, *parts = re.split(r"^---\n# Source: linkwise/templates/(\S+)\n", rendered, flags=re.M)
    for template_, text in zip(parts[::2], parts[1::2], strict=True):
        program, file = template_.split("/")
        lines = _ONLY_OF_A_RELEASE.sub("", text).splitlines(keepends=True)
        found[program, file].append("".join(line for line in lines if line.strip()))
    return {template_: "---\n".join(bodies) for template_, bodies in found.items()}


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
