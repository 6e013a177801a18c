"""What holds for every pod, however strange."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import Recognised, Refused
from tests.pods.podgrouper.examples import EXAMPLES
from tests.pods.podgrouper.pods import Object, broken, ref_of, told

EXAMPLE = st.sampled_from([(example.pod, example.objects) for example in EXAMPLES.values()])
ODD_NUMBERS = ["²", "٣", "1" * 5000, "-1", "1_0", " 1", "1.5"]
TEXT = st.text(max_size=20) | st.sampled_from(ODD_NUMBERS)
KEYS = sorted(
    {key for e in EXAMPLES.values() for key in e.pod["metadata"]["labels"]}
    | {key for e in EXAMPLES.values() for key in e.pod["metadata"]["annotations"]}
)
SAID = st.dictionaries(st.sampled_from(KEYS), TEXT | st.integers(-1, 9).map(str), max_size=6)
MANY = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9).map(str), min_size=20)


def with_metadata(made: Object, **metadata: Any) -> Object:
    return {**made, "metadata": {**made["metadata"], **metadata}}


@given(EXAMPLE, MANY, st.randoms(use_true_random=False))
def test_the_order_of_labels_does_not_matter(
    example: tuple[Object, tuple[Object, ...]], labels: dict[str, str], order: random.Random
) -> None:
    made, objects = example
    labels = {**labels, **made["metadata"]["labels"]}
    items = list(labels.items())
    order.shuffle(items)
    shuffled = with_metadata(made, labels=dict(items))
    assert told(shuffled, objects) == told(with_metadata(made, labels=labels), objects)


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
        assert 1 <= answer.minimum <= answer.size
        assert 0 <= answer.gpu_minimum <= answer.minimum
        assert answer.gpu_size <= answer.size
    else:
        assert answer.because


@pytest.mark.parametrize("rule", [rule for rule, e in EXAMPLES.items() if e.objects])
def test_any_value_anywhere_in_an_owner_gets_an_answer(rule: str) -> None:
    example = EXAMPLES[rule]
    parsed = msgspec.convert(example.pod, Pod)
    answers = set()
    for wrong in broken(example.objects[0]):
        answer = recognise(parsed, {ref_of(example.objects[0]): wrong})
        answers.add(type(answer))
    assert answers & {Recognised, Refused}
