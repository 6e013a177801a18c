"""What a listed cluster is, in words."""

from collections.abc import Iterator

from linkwise.cli.what_if.answer import WhatIfAnswer, WholeNodesAnswer
from linkwise.cli.what_if.facts import fact, some
from linkwise.extender.explain.texts.format import gpus_in_words, pods_in_words


def about_cluster(answer: WhatIfAnswer | WholeNodesAnswer) -> Iterator[str]:
    use = answer.cluster
    words = {"free": "free", "used": "in use", "held": "planned", "reserved": "reserved for others"}
    words["unhealthy"] = "unhealthy"
    counts = ", ".join(f"{use.gpus[key]} {word}" for key, word in words.items() if use.gpus[key])
    total = gpus_in_words(sum(use.gpus.values()))
    nodes = f"{use.nodes} node{'' if use.nodes == 1 else 's'}"
    yield fact("cluster", f"{total} on {nodes}: {counts or 'none'}")
    for guess in answer.guesses:
        yield fact("guessed", f"{some(guess.nodes)}: {guess.machine} ({guess.because})")
    for left in answer.left_out:
        yield fact("left out", f"{some(left.nodes)}: {left.because}")
    if answer.presumed:
        of = pods_in_words(len(answer.presumed))
        yield fact("presumed", f"the GPUs of {of}: neither a plan nor the plugin reports them")
