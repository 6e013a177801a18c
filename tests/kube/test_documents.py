"""Objects from text: JSON and YAML alike, with the line of each mistake."""

import pytest

from linkwise.kube.documents import DocumentError, objects_of, read_documents, read_value


def names(text: str) -> list[tuple[object, object]]:
    return [
        (fields.get("kind"), fields["name"])
        for document in read_documents(text)
        for _, fields in objects_of(document)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "kind: Pod\nname: a\n---\n# nothing\n---\nkind: Pod\nname: b\n",
        '{"kind": "Pod", "name": "a"}\n{"kind": "Pod", "name": "b"}',
        '{"kind": "PodList", "items": [{"name": "a"},\t{"name": "b"}]}',
        "kind: List\nitems:\n- kind: PodList\n  items: [{name: a}]\n- {kind: Pod, name: b}\n",
    ],
    ids=["documents", "values in a row", "a PodList", "Lists in Lists"],
)
def test_objects_stand_alone_or_in_lists(text: str) -> None:
    assert names(text) == [("Pod", "a"), ("Pod", "b")]


@pytest.mark.parametrize(
    ("text", "line", "field", "problem"),
    [
        ("a: 1\nb: {c: 1,\n c: 2}\n", 3, "b.c", "this key stands here twice"),
        ('{"a": 1,\n "a": 2}', 2, "a", "this key stands here twice"),
        ("kind: List\n", 1, "", "items: missing: expected the objects of the list"),
        ("kind: List\nitems: [{},\n 4]", 3, "items[1]", "4: expected an object"),
    ],
)
def test_a_mistake_is_refused_with_its_line_and_field(
    text: str, line: int, field: str, problem: str
) -> None:
    with pytest.raises(DocumentError) as caught:
        names(text.replace("{}", "{name: x}"))
    assert (caught.value.line, caught.value.field) == (line, field)
    assert caught.value.problem.startswith(problem)


def test_a_file_has_one_document_or_none() -> None:
    assert read_value(b"\xef\xbb\xbfa: 1\n---\n") == {"a": 1}
    assert read_value(b"# nothing\n") is None
    for content, said in (
        (b"a: 1\n---\nb: 2\n", "line 3: expected one"),
        (b"\xff", "line 1: 'utf-8'"),
    ):
        with pytest.raises(DocumentError, match=said):
            read_value(content)
