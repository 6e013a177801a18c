"""Keys under which caches store results for pods that are alike.

A user may write 256 KiB of annotations on a pod. These caches bound the number of their entries,
so the size of an entry must be bounded too: the key is a digest, and only short annotations are
read.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from linkwise.kube.objects import Pod

MOST_CHARACTERS = 32 * 1024  # of one pod's annotations that are read


def digest(words: bytes) -> bytes:
    """16 bytes of BLAKE2b, which is collision-resistant."""
    return blake2b(words, digest_size=16).digest()


def without_long_annotations(pod: Pod) -> Pod:
    """*pod* with its shortest annotations, as many as fit into MOST_CHARACTERS together."""
    said = pod.metadata.annotations
    if sum(map(len, said.values())) <= MOST_CHARACTERS:
        return pod
    metadata = msgspec.structs.replace(pod.metadata, annotations=_shortest(said))
    return msgspec.structs.replace(pod, metadata=metadata)


def _shortest(said: Mapping[str, str]) -> dict[str, str]:
    kept, left = {}, MOST_CHARACTERS
    for key in sorted(said, key=lambda key: (len(said[key]), key)):
        left -= len(said[key])
        if left < 0:
            break
        kept[key] = said[key]
    return kept
