"""`linkwise schema`: a JSON Schema of the annotations that pods may have, for editors.

It is made of the values by which the extender reads them, so it cannot say anything else.
"""

import json
import re
from typing import Any

import click

from linkwise.pods.annotations import BY_PODS, AnnotationValue
from linkwise.topology import names

_DRAFT = "http://json-schema.org/draft-07/schema#"  # what editors know


@click.command(
    name="schema",
    short_help="Print a JSON Schema of the annotations, for editors.",
    epilog="\b\nExample:\n  linkwise schema > linkwise.schema.json",
)
def schema_command() -> None:
    """Print a JSON Schema that checks the linkwise.dev/ annotations of manifests, for editors."""
    click.echo(json.dumps(schema(), indent=2))


def schema() -> dict[str, Any]:
    """Return the schema of a manifest of any kind: wherever it has `annotations`, those are
    checked. It says nothing about other fields."""
    anywhere = {"$ref": "#/definitions/anything"}
    return {
        "$schema": _DRAFT,
        "title": "Linkwise annotations in a Kubernetes manifest",
        **anywhere,
        "definitions": {
            "anything": {
                "properties": {"annotations": {"$ref": "#/definitions/annotations"}},
                "additionalProperties": anywhere,
                "items": anywhere,
            },
            "annotations": _annotations(),
        },
    }


def _annotations() -> dict[str, Any]:
    known = "|".join(re.escape(key.removeprefix(names.PREFIX)) for key in _known())
    return {
        "properties": {key: _value(value) for key, value in BY_PODS.items()},
        # Not `propertyNames`: an editor then marks the wrong key, and not the whole object.
        "patternProperties": {f"^{re.escape(names.PREFIX)}(?!(?:{known})$)": False},
        "dependencies": {key: [value.beside] for key, value in BY_PODS.items() if value.beside},
    }


def _known() -> tuple[str, ...]:
    """Keys that pods may have; those of Linkwise itself stand on pods that a cluster printed."""
    return (*BY_PODS, *names.BY_LINKWISE)


def _value(value: AnnotationValue) -> dict[str, Any]:
    said: dict[str, Any] = {"type": "string", "description": f"Expected: {value.expected}."}
    if value.words:
        return {**said, "enum": list(value.words)}
    return {**said, "maxLength": value.longest, "pattern": f"^(?:{value.pattern})$"}
