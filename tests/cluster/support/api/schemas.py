"""JSON schemas for kubeconform, from the API server's own description of its kinds.

Published schemas need a download and may be of another version. The API server under test has them
at /openapi/v3. These are stricter: an unknown field is an error, while the API server drops it
silently.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.support.api.control_plane import ControlPlane

LOCATION = "{{ .Group }}_{{ .ResourceAPIVersion }}_{{ .ResourceKind }}.json"
_REFERENCE = "#/components/schemas/"


def write_schemas(control: ControlPlane, directory: Path) -> str:
    """Write a file for every kind. Return kubeconform's -schema-location for them."""
    directory.mkdir(parents=True)
    index = json.loads(control.kubectl("get", "--raw=/openapi/v3"))
    for path, where in index["paths"].items():
        if path.startswith(("api/v", "apis/")):
            document = json.loads(control.kubectl("get", f"--raw={where['serverRelativeURL']}"))
            for name, schema in schemas_of(document.get("components", {}).get("schemas", {})):
                (directory / name).write_text(json.dumps(schema))
    return str(directory / LOCATION)


def schemas_of(definitions: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return file name and schema of each kind in *definitions*."""
    closed = {name: _closed(definition) for name, definition in definitions.items()}
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            # For a kind without a group, kubeconform uses the version as the group.
            group = kind["group"] or kind["version"]
            file = f"{group}_{kind['version']}_{kind['kind'].lower()}.json"
            yield file, {"$ref": f"#/definitions/{name}", "definitions": closed}


def _closed(schema: Any) -> Any:
    """Return *schema* with references within one file, and without additional fields."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    reference = closed.get("$ref")
    if isinstance(reference, str):
        closed["$ref"] = reference.replace(_REFERENCE, "#/definitions/")
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
        closed.setdefault("additionalProperties", bool(open_ended))
    return closed
