"""A device plugin that does as a test says."""

from collections.abc import Sequence

from linkwise.simulator.kubelet.devices import AdmissionError


class ScriptedPlugin:
    """Answers from a list; when the list is empty, it prefers the highest ids."""

    def __init__(self, *answers: Sequence[str], refuses: str = "") -> None:
        self.preferred_calls: list[tuple[set[str], set[str], int]] = []
        self.orders: list[tuple[str, ...]] = []
        self.allocated: list[set[str]] = []
        self._answers, self.refuses = list(answers), refuses

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        self.preferred_calls.append((set(available), set(must_include), size))
        self.orders.append(tuple(available))
        if self._answers:
            return self._answers.pop(0)
        rest = sorted(set(available) - set(must_include), reverse=True)
        return [*must_include, *rest][:size]

    def allocate(self, devices: Sequence[str]) -> None:
        self.allocated.append(set(devices))
        self.orders.append(tuple(devices))
        if self.refuses:
            raise AdmissionError(self.refuses)
