"""Stands in for kubectl where there is none: what daemonset/overlays/kubeadm/install.sh asks of it.

Manifests are JSON here, which is YAML too. It prints them in one way, as kubectl prints YAML in one
way. What the cluster would say is in the directory that FAKE_CLUSTER names, and what was asked of
the extender is written there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:  # one installation starts this a dozen times, and a third of that is `typing`
    from typing import Any

CLUSTER = Path(os.environ["FAKE_CLUSTER"])
_SWITCHES = ("--local", "--overwrite", "--flatten", "--minify")


class RefusedError(Exception):
    """What kubectl says, and ends with status 1."""


def main(words: list[str]) -> str:
    options, rest = parsed([word for word in words if word not in _SWITCHES])
    match rest[0]:
        case "get":
            return read(CLUSTER / ("gates" if "pods" in rest else "ca.crt"))
        case "config":
            return of_kubeconfig(options["-o"])
        case "create":
            return ask(options)
    body = json.loads(read(Path(options["-f"])) or "0")
    if not isinstance(body, dict):
        raise RefusedError("no objects passed")
    if rest[0] == "annotate":
        annotate(body, rest[1])
    elif options["--type"] == "json":
        for step in json.loads(options.get("--patch") or of_yaml(options["--patch-file"])):
            apply(body, step)
    else:
        merge(body, json.loads(options.get("--patch") or of_yaml(options["--patch-file"])))
    if "jsonpath" in options["-o"]:
        return field(body, options["-o"])
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def parsed(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Flags with their values, and what stands without."""
    options, rest, left = dict[str, str](), list[str](), list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if not name.startswith("-"):
            rest.append(f"{name}{equals}{value}")
        elif equals:
            options[name] = value
        elif name == "--raw" and not left[0].startswith("/"):
            continue  # of `config view`
        else:
            options[name] = left.pop(0)
    return options, rest


def of_kubeconfig(path: str) -> str:
    user = json.loads(read(Path(os.environ["KUBECONFIG"])))["users"][0]["user"]
    return str(user.get(path.rpartition(".")[2].rstrip("}"), ""))


def ask(options: dict[str, str]) -> str:
    flags = ("--certificate-authority", "--client-certificate", "--client-key", "-f")
    files = [read(Path(options[flag])) for flag in flags]
    said = [options[flag] for flag in ("--server", "--tls-server-name", "--raw")]
    if "--request-timeout" in options:  # which kubectl also tells whom it asks
        said[2] += f"?timeout={options['--request-timeout']}"
    with (CLUSTER / "asked").open("a") as asked:
        asked.write(json.dumps([*said, *files]) + "\n")
    if (CLUSTER / "away").exists():
        raise RefusedError("connection refused")
    return "{}"


def annotate(body: dict[str, Any], said: str) -> None:
    annotations = body["metadata"].setdefault("annotations", {})
    key, equals, value = said.partition("=")
    if equals:
        annotations[key] = value
    else:
        annotations.pop(key.removesuffix("-"), None)


def apply(body: Any, step: dict[str, Any]) -> None:
    *way, last = step["path"].strip("/").split("/")
    for part in way:
        body = body[int(part)] if isinstance(body, list) else body[part]
    if step["op"] == "add":
        body.append(step["value"])
    else:
        del body[int(last)]


def of_yaml(file: str) -> str:
    """A test has written it as JSON."""
    return read(CLUSTER / Path(file).name)


def merge(body: dict[str, Any], patch: dict[str, Any]) -> None:
    """Strategically: of lists, each member by its key."""
    for name, value in patch.items():
        if isinstance(value, dict):
            merge(body.setdefault(name, {}), value)
        elif isinstance(value, list):
            key = "mountPath" if name == "volumeMounts" else "name"
            for member in value:
                merge_into(body.setdefault(name, []), key, member)
        else:
            body[name] = value


def merge_into(members: list[dict[str, Any]], key: str, member: dict[str, Any]) -> None:
    found = [each for each in members if each[key] == member[key]]
    if "$patch" in member:
        members[:] = [each for each in members if each not in found]
    elif found:
        merge(found[0], member)
    else:
        members.append(member)


def field(body: dict[str, Any], path: str) -> str:
    spec = body.get("spec", {})
    container = (spec.get("containers") or [{}])[0]
    if ".kind" in path:
        return f"{body.get('kind', '')}/{body.get('metadata', {}).get('name', '')}"
    if "command" in path:
        found = container.get("command", [])
    elif "mountPath" in path:
        found = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    else:
        found = [volume.get("hostPath", {}).get("path", "") for volume in spec.get("volumes", [])]
    return "".join(f"{each}\n" for each in found)


def read(path: Path) -> str:
    if not path.exists():
        raise RefusedError(f"{path}: not found")
    return path.read_text()


if __name__ == "__main__":
    try:
        sys.stdout.write(main(sys.argv[1:]))
    except (RefusedError, ValueError, LookupError) as error:
        sys.exit(f"error: {error!r}")
