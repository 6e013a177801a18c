"""What is sent to an address, or comes from it, gets lost, and nobody is told: as when a machine
or a switch has died."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_TABLE = "linkwise-swallowing"


@contextmanager
def swallowed(address: str) -> Iterator[None]:
    """Of the sandbox's network, and of all pods in it."""
    chains = "\n".join(
        f"chain {hook} {{ type filter hook {hook} priority {priority}; ip {side} {address} drop; }}"
        # Before any Service is looked up for what comes from it; after, for what goes there.
        for hook, priority, side in (("prerouting", -500, "saddr"), ("postrouting", 500, "daddr"))
    )
    _nft("-f", "-", stdin=f"table ip {_TABLE} {{\n{chains}\n}}")
    try:
        yield
    finally:
        _nft("delete", "table", "ip", _TABLE)


def _nft(*arguments: str, stdin: str = "") -> None:
    subprocess.run(["nft", *arguments], input=stdin, text=True, check=True)
