"""What a listed cluster is, in words."""

from collections.abc import Iterator

from linkwise.cli.what_if.answer import WhatIfAnswer, WholeNodesAnswer
from linkwise.cli.what_if.past.answer import PastAnswer
from linkwise.drawing.words import counted, fact, gpus_in_words, pods_in_words, some


def about_cluster(answer: WhatIfAnswer | WholeNodesAnswer) -> Iterator[str]:
    use = answer.cluster
    words = {"free": "free", "used": "in use", "held": "planned", "reserved": "reserved for others"}
    words |= {"divided": "divided", "unhealthy": "unhealthy"}
    counts = ", ".join(
        f"{use.gpus[key]} {word}" for key, word in words.items() if use.gpus.get(key)
    )
    total = gpus_in_words(sum(use.gpus.values()))
    yield fact("cluster", f"{total} on {counted(use.nodes, 'node')}: {counts or 'none'}")
    yield from about_machines(answer)
    yield from about_presumed(answer)


def about_machines(answer: WhatIfAnswer | WholeNodesAnswer | PastAnswer) -> Iterator[str]:
    """The nodes whose machine is not known."""
    for guess in answer.guesses:
        yield fact("guessed", f"{some(guess.nodes)}: {guess.machine} ({guess.because})")
    for left in answer.left_out:
        yield fact("left out", f"{some(left.nodes)}: {left.because}")


def about_presumed(answer: WhatIfAnswer | WholeNodesAnswer | PastAnswer) -> Iterator[str]:
    """The pods of which it is not known which GPUs they have."""
    if answer.presumed:
        of = pods_in_words(len(answer.presumed))
        yield fact("presumed", f"the GPUs of {of}: neither a plan nor the plugin reports them")
