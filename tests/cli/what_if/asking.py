"""Clusters as kubectl lists them, and the answers of `linkwise what-if` about them."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from linkwise.cli.__main__ import main
from tests.extender.cluster import Cluster, change
from tests.extender.world import as_json
from tests.pods.podgrouper.pods import Object, template

NOW = datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()
Template = Mapping[str, Any]


def cluster(*machines: str, **labels: Mapping[str, str]) -> Cluster:
    """Nodes n1, n2, … of these machines; *labels* by node."""
    made = Cluster(now=NOW)
    for number, machine in enumerate(machines, start=1):
        made.add_node(f"n{number}", machine, labels=labels.get(f"n{number}"))
    return made


def runs(it: Cluster, name: str, gpus: int, node: str, **said: str) -> None:
    """Return a Job's pod with its GPUs, which the kubelet lists too; `expected_duration="3h"`."""
    it.add_pod(
        name,
        gpus,
        alter=lambda pod: change(pod, spec=change(pod.spec, restart_policy="Never")),
        said={key.replace("_", "-"): text for key, text in said.items()},
    )
    it.filter(name, [node])
    it.bind(name, node)
    it.start(name)


def listed(it: Cluster) -> Object:
    """Return what `kubectl get nodes,pods -A -o json` prints of it."""
    return a_list([*nodes_of(it), *pods_of(it)])


def nodes_of(it: Cluster) -> list[Object]:
    return [as_json("Node", node) for node in it.nodes.values()]


def pods_of(it: Cluster) -> list[Object]:
    return [as_json("Pod", pod) for pod in it.pods.values()]


def a_list(items: Iterable[Object], kind: str = "List") -> Object:
    return {"apiVersion": "v1", "kind": kind, "items": list(items)}


def manifest(kind: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> Object:
    """*kind* is like `batch/v1 Job`."""
    api_version, _, word = kind.rpartition(" ")
    return {
        "apiVersion": api_version,
        "kind": word,
        "metadata": {"name": name, "namespace": "ml", **metadata},
        "spec": dict(spec),
    }


def job(name: str, pods: int, gpus: int, said: Mapping[str, str] | None = None) -> Object:
    """Return an Indexed Job whose pods all run at once: a gang."""
    made = template(gpus)
    made["metadata"]["annotations"] = {f"linkwise.dev/{k}": v for k, v in (said or {}).items()}
    counts = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    return manifest("batch/v1 Job", name, {**counts, "template": made})


def pod(name: str, gpus: int, said: Mapping[str, str] | None = None, **spec: Any) -> Object:
    annotations = {f"linkwise.dev/{key}": text for key, text in (said or {}).items()}
    whole = {**template(gpus)["spec"], **spec}
    return manifest("v1 Pod", name, whole, annotations=annotations)


def what_if(
    tmp_path: Path,
    given: object,
    submitted: object,
    *options: str,
    at: str = "2026-03-01T08:00:00Z",
) -> Result:
    """Run the command. *given* and *submitted* are objects, or literal texts."""
    path = tmp_path / "job.yaml"
    path.write_text(submitted if isinstance(submitted, str) else json.dumps(submitted))
    text = given if isinstance(given, str) else json.dumps(given)
    when = () if "--at" in options else ("--at", at)
    arguments = ["what-if", "--submit", str(path), *when, *options]
    result = CliRunner().invoke(main, arguments, input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answer(
    tmp_path: Path, given: object, submitted: object, *options: str
) -> tuple[int, dict[str, Any]]:
    result = what_if(tmp_path, given, submitted, *options, "-o", "json")
    assert result.exit_code in (0, 1), result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, found


def refusal(tmp_path: Path, given: object, submitted: object, *options: str) -> str:
    """Return the one line that says what is wrong."""
    result = what_if(tmp_path, given, submitted, *options)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.replace(str(tmp_path), "")
