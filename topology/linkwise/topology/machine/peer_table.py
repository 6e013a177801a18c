"""Reads the table of `nvidia-smi topo -p2p r`, which may stand beside that of `topo -m`.

Its cells say for each pair of GPUs whether one can read the other's memory: OK, or why not.
"""

import re
from collections.abc import Mapping

from linkwise.topology.machine.other_prints import P2P_OK, P2P_UNKNOWN, P2P_WORDS, is_p2p

_GPU = re.compile(r"GPU([0-9]{1,4})")


def split_peers(text: str) -> tuple[str, Mapping[frozenset[int], bool]]:
    """Return *text* without such a table, and by pairs of GPU indices whether they have
    peer-to-peer access: both ways, as far as the table knows.

    A text with no other table is returned whole: it is refused where the links are read.
    """
    lines = text.splitlines()
    columns: list[str] = []
    header = -1
    left_out: set[int] = set()
    peers: dict[frozenset[int], bool] = {}
    for number, line in enumerate(lines):
        words = line.split()
        names = [name for name in words if _GPU.fullmatch(name)]
        if words and names == words and len(words) > 1:
            columns, header = names, number
        elif len(words) > 1 and names == words[:1] and is_p2p(words[1:]):
            left_out |= {header, number}
            for column, word in zip(columns, words[1:], strict=False):
                pair = frozenset((int(names[0][3:]), int(column[3:])))
                if word in P2P_WORDS - {P2P_UNKNOWN} and len(pair) == 2:
                    peers[pair] = peers.get(pair, True) and word == P2P_OK
    kept = [line for number, line in enumerate(lines) if number not in left_out]
    has_links = any(_GPU.match(line.strip()) for line in kept)
    return ("\n".join(kept), peers) if left_out and has_links else (text, {})
