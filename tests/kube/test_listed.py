"""Lists of objects, packed."""

import msgspec

from linkwise.kube.listed import Listed
from linkwise.kube.objects import Pod


def raw(name: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"metadata": {"name": name, "uid": f"uid-{name}"}}))


def test_each_iteration_has_all_objects_in_order() -> None:
    names = [f"pod-{number}" for number in range(230)]
    listed = Listed(Pod)
    for first in range(0, len(names), 77):  # pages
        listed.add([raw(name) for name in names[first : first + 77]])
    assert len(listed) == 230
    for _ in range(2):
        assert [pod.metadata.name for pod in listed] == names
    assert next(iter(listed)) in listed
    assert Pod() not in listed


def test_a_list_may_be_empty() -> None:
    listed = Listed(Pod)
    listed.add([])
    assert len(listed) == 0
    assert list(listed) == []


def test_two_iterations_do_not_disturb_each_other() -> None:
    listed = Listed(Pod)
    listed.add([raw("a"), raw("b")])
    pairs = [(one.metadata.name, two.metadata.name) for one in listed for two in listed]
    assert pairs == [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]
