"""Where Linkwise's filters say something else than kube-scheduler's own plugins."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import yaml

from tests.cluster.support.filters.cases import Drawn
from tests.cluster.support.filters.kube_scheduler import Answer, Case, Plugins, Verdict

# The plugin that refuses each node, "" for a node that fits, of a case as an API server stores it.
Verdicts = Callable[[Case], Mapping[str, str]]

_AT_ONCE = 500  # cases whose answers are kept in memory


@dataclass(frozen=True, slots=True)
class Difference:
    """What both say of one node."""

    node: str
    ours: str
    theirs: Verdict

    @property
    def kind(self) -> tuple[str, str]:
        return self.ours, self.theirs.plugin

    @property
    def of_fit(self) -> bool:
        """Whether one says that the pod may run there; otherwise the plugins' names differ."""
        return "" in self.kind


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A difference that is meant to be, and why."""

    reason: str
    covers: Callable[[Case, Difference], bool]


def differences(
    answer: Answer, verdicts: Verdicts, left_out: Sequence[LeftOut] = ()
) -> tuple[Difference, ...]:
    """Return the differences of a case that none of *left_out* covers."""
    if answer.nodes is None or answer.stored is None:
        raise ValueError(f"no case: {answer.error}")
    stored = answer.stored
    try:
        ours = verdicts(stored)
    except Exception as error:  # whatever it is, the case that raises it must be shown
        ours = dict.fromkeys(answer.nodes, f"raises {error!r}")
    found = (
        Difference(node, ours.get(node, "says nothing"), theirs)
        for node, theirs in answer.nodes.items()
        if ours.get(node, "says nothing") != theirs.plugin
    )
    return tuple(
        each for each in found if not any(known.covers(stored, each) for known in left_out)
    )


@dataclass(frozen=True, slots=True)
class Compared:
    drawn: Drawn
    answer: Answer
    differences: tuple[Difference, ...]


def compare(
    drawn: Iterable[Drawn], plugins: Plugins, verdicts: Verdicts, left_out: Sequence[LeftOut] = ()
) -> Iterator[Compared]:
    """Compare the verdicts on every case."""
    rest = iter(drawn)
    while some := list(islice(rest, _AT_ONCE)):
        answers = plugins.ask(each.case for each in some)
        for each, answer in zip(some, list(answers), strict=True):
            if answer.error:
                raise AssertionError(f"seed {each.seed} is no case: {answer.error}")
            yield Compared(each, answer, differences(answer, verdicts, left_out))


def told(case: Case, found: Sequence[Difference]) -> str:
    """Describe a case and what both say of its nodes."""
    lines = [
        f"{each.node}: we say {each.ours or 'fits'}, kube-scheduler says "
        f"{each.theirs.plugin or 'fits'} {', '.join(each.theirs.reasons or ())}".rstrip()
        for each in found
    ]
    shown = yaml.safe_dump({key: value for key, value in case.items() if value}, sort_keys=False)
    return "\n".join([*lines, shown])
