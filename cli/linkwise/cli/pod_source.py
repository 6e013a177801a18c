"""Pods and the objects around them, from the output of `kubectl get -o yaml` or `-o json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from linkwise.cli.documents import Fields, objects_in, ref_of, unreadable
from linkwise.cli.errors import BadInputError
from linkwise.cli.text_file import read_text, shown
from linkwise.extender.podgrouper.workloads.answer import ObjectRef
from linkwise.kube.objects import Pod


@dataclass(frozen=True, slots=True)
class Manifests:
    pods: tuple[Pod, ...]
    objects: Mapping[ObjectRef, Fields]


def read_manifests(paths: Sequence[str]) -> Manifests:
    """Read the files. Raises BadInputError with file, document and field."""
    pods: list[Pod] = []
    objects: dict[ObjectRef, Fields] = {}
    for path in paths:
        for place, item in objects_in(read_text("-f", path), shown("-f", path)):
            ref = ref_of(item, place)
            if (ref.group, ref.kind) == ("", "Pod"):
                pods.append(_pod(item, place))
            else:
                objects[ref] = item
    if not pods:
        raise BadInputError(f"-f {', '.join(paths)}: no Pod there; `kubectl get pods -o yaml`")
    return Manifests(tuple(pods), objects)


def _pod(item: Fields, where: str) -> Pod:
    try:
        pod = msgspec.convert(item, Pod)
    except msgspec.ValidationError as error:
        raise unreadable(error, where, "pod") from None
    namespace = pod.metadata.namespace or "default"
    metadata = msgspec.structs.replace(pod.metadata, namespace=namespace)
    return msgspec.structs.replace(pod, metadata=metadata)
