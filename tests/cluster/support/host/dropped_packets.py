"""Drops all packets to and from an address, as if a machine or a switch had died."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_TABLE = "linkwise-swallowing"


@contextmanager
def swallowed(address: str) -> Iterator[None]:
    """Drop the packets inside the block, in the sandbox's network and in all pods."""
    chains = "\n".join(
        f"chain {hook} {{ type filter hook {hook} priority {priority}; ip {side} {address} drop; }}"
        # Before Services are resolved for packets from the address, and after for packets to it.
        for hook, priority, side in (("prerouting", -500, "saddr"), ("postrouting", 500, "daddr"))
    )
    _nft("-f", "-", stdin=f"table ip {_TABLE} {{\n{chains}\n}}")
    try:
        yield
    finally:
        _nft("delete", "table", "ip", _TABLE)


def _nft(*arguments: str, stdin: str = "") -> None:
    subprocess.run(["nft", *arguments], input=stdin, text=True, check=True)
