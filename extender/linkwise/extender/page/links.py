"""The addresses of the page's parts, relative to each other: a proxy may put any path before
them."""

from urllib.parse import urlencode

OVERVIEW = "."
IDLE, MOVES = "idle", "moves"


def to_group(key: str) -> str:
    return f"group?{urlencode({'key': key})}"


def to_pod(key: str) -> str:
    """*key*: `namespace/name`."""
    return _of_namespace("pod", key)


def to_gang(key: str) -> str:
    return _of_namespace("gang", key)


def to_titled(title: str) -> str:
    """*title*: `gang namespace/name` or `pod namespace/name`; else there is none."""
    kind, _, key = title.partition(" ")
    to = {"gang": to_gang, "pod": to_pod}.get(kind)
    return to(key) if to is not None else ""


def _of_namespace(page: str, key: str) -> str:
    namespace, _, name = key.partition("/")
    return f"{page}?{urlencode({'namespace': namespace, 'name': name})}"


def to_search(words: str) -> str:
    return f"search?{urlencode({'q': words})}"
