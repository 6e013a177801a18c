"""What holds for every pod, however strange."""

import random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.recognise.answer import NeedsOwner, NoGang, Recognised, Refused
from linkwise.extender.recognise.decide import recognise
from linkwise.kube.objects import Pod
from tests.extender.recognise.examples import EXAMPLES
from tests.extender.recognise.pods import Object, ref_of, told

EXAMPLE = st.sampled_from([(example.pod, example.objects) for example in EXAMPLES.values()])
TEXT = st.text(max_size=20)
KEYS = sorted(
    {key for e in EXAMPLES.values() for key in e.pod["metadata"]["labels"]}
    | {key for e in EXAMPLES.values() for key in e.pod["metadata"]["annotations"]}
)
SAID = st.dictionaries(st.sampled_from(KEYS), TEXT | st.integers(-1, 9).map(str), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**12) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def with_metadata(made: Object, **metadata: Any) -> Object:
    return {**made, "metadata": {**made["metadata"], **metadata}}


@given(EXAMPLE, st.randoms(use_true_random=False))
def test_the_order_of_labels_does_not_matter(
    example: tuple[Object, tuple[Object, ...]], order: random.Random
) -> None:
    made, objects = example
    shuffled = {}
    for kind in ("labels", "annotations"):
        items = list(made["metadata"][kind].items())
        order.shuffle(items)
        shuffled[kind] = dict(items)
    assert told(with_metadata(made, **shuffled), objects) == told(made, objects)


@given(EXAMPLE, st.dictionaries(TEXT.map(lambda key: f"team.example.com/{key}"), TEXT, max_size=5))
def test_what_nobody_knows_changes_nothing(
    example: tuple[Object, tuple[Object, ...]], unknown: dict[str, str]
) -> None:
    made, objects = example
    more = with_metadata(
        made,
        labels={**made["metadata"]["labels"], **unknown},
        annotations={**unknown, **made["metadata"]["annotations"]},
    )
    assert told(more, objects) == told(made, objects)


@given(EXAMPLE, SAID, SAID)
def test_any_text_anywhere_gets_an_answer(
    example: tuple[Object, tuple[Object, ...]], labels: dict[str, str], annotations: dict[str, str]
) -> None:
    made, objects = example
    strange = with_metadata(
        made,
        labels={**made["metadata"]["labels"], **labels},
        annotations={**made["metadata"]["annotations"], **annotations},
    )
    answer = told(strange, objects).answer
    if isinstance(answer, Recognised):
        assert 1 <= answer.minimum <= answer.wave
        assert 0 <= answer.gpu_minimum <= answer.minimum
        assert answer.gpu_size <= answer.size
    else:
        assert answer.because


@given(EXAMPLE, st.data())
def test_any_content_of_an_owner_gets_an_answer(
    example: tuple[Object, tuple[Object, ...]], data: st.DataObject
) -> None:
    made, objects = example
    known = {}
    for item in objects:
        broken = msgspec.json.decode(msgspec.json.encode(item))
        _break_somewhere(broken, data)
        known[ref_of(item)] = broken
    answer = recognise(msgspec.convert(made, Pod), known)
    assert isinstance(answer, Recognised | NoGang | NeedsOwner | Refused)


def _break_somewhere(broken: Object, data: st.DataObject) -> None:
    """Put anything at all in the place of one value, at any depth."""
    inside: Any = broken
    while True:
        places = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        place = data.draw(st.sampled_from(places))
        deeper = inside[place]
        if not (isinstance(deeper, dict | list) and deeper) or data.draw(st.booleans()):
            inside[place] = data.draw(JSON)
            return
        inside = deeper
