"""Reads YAML and keeps the line of every value.

A refusal has to name the line for the user. `yaml.safe_load` forgets lines, and if a mapping has
two equal keys it silently keeps the second one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

_MOST_VALUES = 100_000  # per document; a few aliases of aliases expand to far more

Path = tuple[str | int, ...]
"""Keys and list positions from the top of a document: ("spec", "containers", 0, "name")."""


class LocatedYamlError(Exception):
    """The text is not YAML that this module accepts; *line* and *document* count from 1."""

    def __init__(self, line: int, document: int, field: str, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line, self.document, self.field, self.problem = line, document, field, problem


@dataclass(frozen=True, slots=True)
class Document:
    """`value` is built of dict, list, str, int, float, bool and None; lines count from 1."""

    number: int
    value: object
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int:
        """Return the line of the value at *path*, or of the nearest value around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def dotted(path: Path) -> str:
    """Return `spec.containers[0].name`, as the API server writes a field."""
    text = ""
    for step in path:
        if isinstance(step, int) or "." in step or "/" in step:
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def read_documents(text: str) -> Iterator[Document]:
    """Return every document that is not empty. Raises LocatedYamlError."""
    number = 1
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node() and (root := loader.get_node()) is not None:
            lines: dict[Path, int] = {}
            value = _Builder(loader, number, lines).build(root, (), ())
            if value is not None:
                yield Document(number, value, lines)
            number += 1
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = error.problem or "not YAML"
        raise LocatedYamlError(line, number, "", problem) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"character {error.character!r}: {error.reason}"
        raise LocatedYamlError(line, number, "", problem) from None
    except RecursionError:
        line = loader.line + 1 if loader else 1
        raise LocatedYamlError(line, number, "", "nested too deeply") from None
    finally:
        if loader is not None:
            loader.dispose()


class _Builder:
    """Turns one document's nodes into plain values and notes their lines."""

    def __init__(self, loader: yaml.SafeLoader, number: int, lines: dict[Path, int]) -> None:
        self._loader, self._number, self._lines = loader, number, lines

    def build(self, node: yaml.Node, path: Path, inside: tuple[yaml.Node, ...]) -> object:
        self._lines[path] = node.start_mark.line + 1
        if len(self._lines) > _MOST_VALUES:
            raise self._error(node, path, f"more than {_MOST_VALUES} values in one document")
        if any(node is outer for outer in inside):
            raise self._error(node, path, "an alias that contains itself")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, (*inside, node))
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self.build(item, (*path, n), (*inside, node)) for n, item in items]
        if node.tag == "tag:yaml.org,2002:timestamp":
            return str(node.value)  # Kubernetes has no dates, only strings
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            raise self._error(node, path, str(error)) from None

    def _mapping(
        self, node: yaml.MappingNode, path: Path, inside: tuple[yaml.Node, ...]
    ) -> dict[str, object]:
        self._refuse_equal_keys(node, path)
        self._loader.flatten_mapping(node)  # expands `<<`
        mapping: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            mapping[key] = self.build(value_node, (*path, key), inside)
            # YAML puts a missing value on the next key's line; the key's own line is the better
            # one.
            self._lines[(*path, key)] = key_node.start_mark.line + 1
        return mapping

    def _refuse_equal_keys(self, node: yaml.MappingNode, path: Path) -> None:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self._key(key_node, path)
            if key in seen:
                raise self._error(key_node, (*path, key), "this key stands here twice")
            seen.add(key)

    def _key(self, node: yaml.Node, path: Path) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, path, "a key that is no text")
        return str(node.value)

    def _error(self, node: yaml.Node, path: Path, problem: str) -> LocatedYamlError:
        line = node.start_mark.line + 1
        return LocatedYamlError(line, self._number, dotted(path), problem)
