"""What a comparison found, in words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.cluster.support.filters.cases import PLUGINS
from tests.cluster.support.filters.differences import (
    Compared,
    LeftOut,
    Verdicts,
    differences,
    told,
)
from tests.cluster.support.filters.kube_scheduler import Answer, Plugins
from tests.cluster.support.filters.smallest import smallest

Kind = tuple[str, str]  # what we say, and what kube-scheduler says


@dataclass(slots=True)
class Report:
    """The pairs of pod and node so far, and the cases of each kind of difference."""

    pairs: Counter[str] = field(default_factory=Counter)  # by what their cases are about
    refused: Counter[str] = field(default_factory=Counter)  # by the plugin the case is about
    fits: Counter[str] = field(default_factory=Counter)
    all_pairs: int = 0
    kinds: dict[Kind, list[Compared]] = field(default_factory=dict)

    def add(self, compared: Compared) -> None:
        said = compared.answer.plugins
        self.all_pairs += len(said)
        for plugin in compared.drawn.about:
            self.pairs[plugin] += len(said)
            self.refused[plugin] += list(said.values()).count(plugin)
            self.fits[plugin] += list(said.values()).count("")
        for difference in compared.differences:
            self.kinds.setdefault(difference.kind, []).append(compared)

    def shares(self) -> Mapping[str, tuple[float, float]]:
        """Of the pairs about each plugin, the shares that it refuses and that fit."""
        return {
            plugin: (
                self.refused[plugin] / self.pairs[plugin],
                self.fits[plugin] / self.pairs[plugin],
            )
            for plugin in PLUGINS
            if self.pairs[plugin]
        }

    def histogram(self) -> str:
        lines = [f"{self.all_pairs} pairs of pod and node"]
        lines += [
            f"{plugin:20}{self.pairs[plugin]:6} pairs: it refuses {refused:.1%}, {fits:.1%} fit"
            for plugin, (refused, fits) in self.shares().items()
        ]
        return "\n".join(lines)

    def told(
        self, asked: Plugins, verdicts: Verdicts, left_out: Sequence[LeftOut], most: int
    ) -> str:
        """List the kinds of differences, and show a smallest case of the *most* frequent ones."""
        often = sorted(self.kinds.items(), key=lambda item: -len(item[1]))
        parts = [
            f"--- of seed {cases[0].drawn.seed}:\n"
            + _smallest_told(cases[0], kind, asked, verdicts, left_out)
            for kind, cases in often[:most]
        ]
        for (ours, theirs), cases in often:
            seeds = dict.fromkeys(str(each.drawn.seed) for each in cases)
            parts.append(
                f"{len(cases)} pairs: we say {ours or 'fits'}, kube-scheduler says "
                f"{theirs or 'fits'}; seeds {', '.join(list(seeds)[:10])}"
            )
        return "\n".join(parts)


def _smallest_told(
    compared: Compared, kind: Kind, asked: Plugins, verdicts: Verdicts, left_out: Sequence[LeftOut]
) -> str:
    def stays(answer: Answer) -> bool:
        return any(each.kind == kind for each in differences(answer, verdicts, left_out))

    case = smallest(compared.drawn.case, asked, stays)
    (answer,) = asked.ask([case])
    return told(case, differences(answer, verdicts, left_out))
