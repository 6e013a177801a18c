"""Reads Kubernetes objects and other YAML from text, and keeps the line of every value.

The text is JSON or YAML: objects one after the other, alone or in Lists. A refusal has to name the
line for the user. `yaml.safe_load` forgets lines, and if a mapping has two equal keys it silently
keeps the second one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec
import yaml

_MOST_DEPTH = 200  # Kubernetes' own kinds have about twenty levels
_MOST_VALUES = 100_000  # of a document with aliases; a few aliases of aliases become billions
_LOCATED = 1024 * 1024  # characters of JSON; what is longer comes from a program, and has no lines
_DEEP = f"more than {_MOST_DEPTH} levels deep"

# A value or a line that begins so is no YAML; inside quotes, other tools use the same braces.
_TEMPLATE = re.compile(r"(?m)^[ \t]*(?:- )?(?:[\w./-]+: )?\{\{")
_RENDER = "this is a template of Helm: pass what `helm template` prints"

Path = tuple[str | int, ...]
"""Keys and list positions from the top of a document: ("spec", "containers", 0, "name")."""


class DocumentError(Exception):
    """The text has no objects that this module accepts; *line* and *document* count from 1."""

    def __init__(self, line: int, document: int, field: str, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line, self.document, self.field, self.problem = line, document, field, problem


class EqualKeysError(DocumentError):
    pass


@dataclass(frozen=True, slots=True)
class Document:
    """`value` is built of dict, list, str, int, float, bool and None; lines count from 1."""

    number: int
    value: object
    lines: Mapping[Path, int]

    @property
    def has_lines(self) -> bool:
        """False for long or several JSON values."""
        return self.lines is not _NO_LINES

    def line_of(self, path: Path) -> int:
        """Return the line of the value at *path*, or of the nearest value around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines[path]


_NO_LINES: Mapping[Path, int] = {(): 1}


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
    """Yield every document that is not empty. Raises DocumentError."""
    try:
        yield from _documents(text)
    except DocumentError as error:
        if not _TEMPLATE.search(text):
            raise
        problem = f"{error.problem}: {_RENDER}"
        raise DocumentError(error.line, error.document, error.field, problem) from None


def _documents(text: str) -> Iterator[Document]:
    values = _json_values(text)
    if values is None:
        yield from _yaml_documents(text)
        return
    lines = _lines_of_json(text) if len(values) == 1 and len(text) <= _LOCATED else _NO_LINES
    for number, value in enumerate(values, start=1):
        yield Document(number, value, lines)


def read_value(content: bytes) -> object:
    """Return the value of a file's only document; None if it is empty. Raises DocumentError."""
    try:
        documents = [*islice(read_documents(content.decode("utf-8-sig")), 2)]
    except UnicodeDecodeError as error:
        raise DocumentError(1, 1, "", str(error)) from None
    if len(documents) > 1:
        raise _error(documents[1], (), "expected one document alone")
    return documents[0].value if documents else None


def objects_of(document: Document) -> Iterator[tuple[Path, dict[str, object]]]:
    """Yield the objects with their paths. A List has many and may name their kind once. Raises
    DocumentError."""
    waiting: list[tuple[Path, object, dict[str, object]]] = [((), document.value, {})]
    while waiting:  # no recursion: a List may hold Lists, to any depth
        path, value, said = waiting.pop()
        if not isinstance(value, dict):
            expected = "expected an object with apiVersion and kind"
            raise _error(document, path, f"{shown(value)}: {expected}")
        fields = {**said, **value}
        kind = fields.get("kind")
        if not isinstance(kind, str) or not (
            kind == "List" or (kind.endswith("List") and "items" in fields)
        ):
            yield path, fields
            continue
        if "items" not in fields:
            raise _error(document, path, "items: missing: expected the objects of the list")
        items = fields["items"]
        if not isinstance(items, list):
            raise _error(document, (*path, "items"), f"{shown(items)}: expected a list")
        one = kind.removesuffix("List")
        inside = {"apiVersion": fields.get("apiVersion"), "kind": one} if one else {}
        waiting += [
            ((*path, "items", place), item, inside) for place, item in reversed([*enumerate(items)])
        ]


def without_nulls(fields: Mapping[str, object]) -> dict[str, object]:
    """Remove nulls: the API server treats a null field as absent."""
    return {str(key): _pruned(value) for key, value in fields.items() if value is not None}


def _pruned(value: object) -> object:
    if isinstance(value, dict):
        return without_nulls(value)
    return [_pruned(each) for each in value] if isinstance(value, list) else value


def shown(value: object) -> str:
    """Name a value's type in YAML's words, with the value itself if it is short."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else repr(value)


def _error(document: Document, path: Path, problem: str) -> DocumentError:
    return DocumentError(document.line_of(path), document.number, dotted(path), problem)


# JSON


def _json_values(text: str) -> list[object] | None:
    """Return the JSON values of the text, one or several in a row, as `jq` and several `kubectl`
    calls print them; None if the text is something else."""
    try:
        return [msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass  # YAML, or JSON in which the YAML reader can locate an error
    if not text.lstrip().startswith("{"):
        return None
    decoder, values, at = json.JSONDecoder(), [], 0
    try:
        while (at := _after_blanks(text, at)) < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
    except (ValueError, RecursionError):
        return None
    return values


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _lines_of_json(text: str) -> Mapping[Path, int]:
    """JSON is YAML, except for its tabs. Raises DocumentError for equal keys."""
    try:
        return next((document.lines for document in _yaml_documents(text)), _NO_LINES)
    except EqualKeysError:
        raise
    except DocumentError:
        return _NO_LINES


# YAML

if yaml.__with_libyaml__:
    _Loader: type[yaml.CSafeLoader] | type[yaml.SafeLoader] = yaml.CSafeLoader
else:
    _Loader = yaml.SafeLoader


def _yaml_documents(text: str) -> Iterator[Document]:
    number = 1
    try:
        aliases = _refuse_deep(text)
        loader = _Loader(text)
        try:
            while loader.check_node() and (root := loader.get_node()) is not None:
                lines: dict[Path, int] = {}
                most = _MOST_VALUES if aliases else len(text) + 1
                value = _Builder(loader, number, lines, most).build(root, (), ())
                if value is not None:
                    yield Document(number, value, lines)
                number += 1
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        deep = _brackets_open(text) > _MOST_DEPTH
        error = error if deep else _in_words(text, error)
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = _DEEP if deep else error.problem or "not YAML"
        raise DocumentError(line, number, "", problem) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        # libyaml gives its number.
        character = chr(error.character) if isinstance(error.character, int) else error.character
        problem = f"character {character!r}: {error.reason}"
        raise DocumentError(line, number, "", problem) from None
    except (RecursionError, UnicodeError) as error:  # half of a surrogate pair is no UTF-8
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DocumentError(1, number, "", problem) from None


def _in_words(text: str, error: yaml.MarkedYAMLError) -> yaml.MarkedYAMLError:
    """The error as PyYAML's own parser tells it: with what was found, where it stands."""
    if len(text) > _LOCATED:
        return error
    try:
        for _ in yaml.parse(text, yaml.SafeLoader):
            pass
    except yaml.MarkedYAMLError as told:
        return told
    except (yaml.YAMLError, ValueError):
        pass  # it tells no better
    return error


def _brackets_open(text: str) -> int:
    """How many are open at once, at most; those in strings count too. For each token, PyYAML's own
    parser looks at all of them."""
    opened = most = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        opened += 1 if bracket in "[{" else -1
        most = max(most, opened)
    return most


def _refuse_deep(text: str) -> bool:
    """Refuse deep nesting first: libyaml recurses for each level, which would kill the process.

    Return True if the text has aliases.
    """
    depth, number, aliases = 0, 0, False
    for event in yaml.parse(text, _Loader):
        number += isinstance(event, yaml.DocumentStartEvent)
        aliases = aliases or isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            mark = event.start_mark
            line = mark.line + 1 if mark else 1
            raise DocumentError(line, number, "", _DEEP)
    return aliases


class _Builder:
    """Turns one document's nodes into plain values and notes their lines."""

    def __init__(
        self,
        loader: yaml.CSafeLoader | yaml.SafeLoader,
        number: int,
        lines: dict[Path, int],
        most: int,
    ) -> None:
        self._loader, self._number, self._lines, self._most = loader, number, lines, most

    def build(self, node: yaml.Node, path: Path, inside: tuple[yaml.Node, ...]) -> object:
        self._lines[path] = node.start_mark.line + 1
        if len(self._lines) > self._most:
            raise self._error(node, path, f"more than {self._most} values in one document")
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
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # An integer of 5000 digits; `!!bool maybe`, of which PyYAML makes a KeyError.
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
                line, field = key_node.start_mark.line + 1, dotted((*path, key))
                problem = "this key stands here twice"
                raise EqualKeysError(line, self._number, field, problem)
            seen.add(key)

    def _key(self, node: yaml.Node, path: Path) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, path, "a key that is no text")
        return str(node.value)

    def _error(self, node: yaml.Node, path: Path, problem: str) -> DocumentError:
        line = node.start_mark.line + 1
        return DocumentError(line, self._number, dotted(path), problem)
