"""Keys of what is remembered of pods that are alike, as long as they are alike.

Anybody may write 256 KiB of annotations on a pod. What is remembered by such words counts entries,
so no entry may cost as much: a digest stands for them, and of annotations only the short ones are
looked at.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from linkwise.kube.objects import Pod

MOST_CHARACTERS = 32 * 1024  # of the annotations of one pod that are looked at


def digest(words: bytes) -> bytes:
    """16 bytes; nobody finds two texts with the same."""
    return blake2b(words, digest_size=16).digest()


def without_long_annotations(pod: Pod) -> Pod:
    """*pod* with as many annotations as are short enough together, the shortest first."""
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
