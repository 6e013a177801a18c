"""What can be wrong with facts and requests that come from outside.

LinkwiseError
├── MachineError       a machine whose facts contradict each other, or that cannot be read
├── AnnotationError    an annotation that does not parse; names the key, the value, what is allowed
│   ├── UnknownAnnotationError  its key is unknown
│   └── VersionError   written by a newer Linkwise than this one
└── RequestError       a question about GPU sets that makes no sense for this machine

"No set fits" is an answer, not an error: it is returned.
"""


class LinkwiseError(Exception):
    """The text reaches a user: it names what was wrong, where, and what was expected."""


class MachineError(LinkwiseError):
    pass


class AnnotationError(LinkwiseError):
    def __init__(self, key: str, value: str, expected: str) -> None:
        shown = value if len(value) <= 60 else f"{value[:57]}..."
        super().__init__(f"{key}: {shown!r}: expected {expected}")
        self.key, self.value, self.expected = key, value, expected


class UnknownAnnotationError(AnnotationError):
    def __init__(self, key: str, value: str, expected: str) -> None:
        super().__init__(key, value, expected)
        self.args = (f"{key}: no such annotation: expected {expected}",)


class VersionError(AnnotationError):
    def __init__(self, key: str, version: int, newest: int) -> None:
        super().__init__(
            key, f"version {version}", f"version {newest} or older; upgrade this program"
        )


class RequestError(LinkwiseError):
    pass
