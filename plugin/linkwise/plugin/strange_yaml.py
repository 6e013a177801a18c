"""Reads YAML that others wrote.

PyYAML lets more than its own errors out: KeyError for `!!bool maybe`, AttributeError for a date
that is none, RecursionError for a thousand brackets. Its C library does not even raise that: it
ends the process.
"""

import yaml


class NotYamlError(Exception):
    """Its text says what the reader stumbled over."""


def read_yaml(content: str | bytes) -> object:
    """The document as mappings, lists and scalars; one of these may contain itself. Raises
    NotYamlError."""
    try:
        found: object = yaml.load(content, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise NotYamlError(f"{type(error).__name__}: {error}") from error
    except RecursionError:
        raise NotYamlError("nested too deeply") from None
    return found
