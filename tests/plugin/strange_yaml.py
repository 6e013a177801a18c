"""Text that no YAML reader makes an object of."""

STRANGE = [
    "kind: !!bool maybe",
    "kind: !!timestamp x",
    "kind: !!int ''",
    "? [a]\n: b",
    "a: &a [*a]\nkind: x",
    "a: &a {b: *a}\nkind: x",
    "!!python/object:os.system {}",
    "[" * 3000,
    "[" * 100_000,
]
