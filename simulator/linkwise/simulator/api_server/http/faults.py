"""Faults that a test orders: the next matching requests fail, before or after they take effect."""

from dataclasses import dataclass

_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class ApiFault:
    """One ordered fault. `status` 0 closes the connection without an answer.

    With `carry_out` the request takes effect and only its answer is lost.
    """

    method: str
    path_part: str
    status: int
    times: int
    carry_out: bool

    @property
    def reason(self) -> str:
        return _REASONS.get(self.status, "InternalError")


class Faults:
    def __init__(self) -> None:
        self._ordered: list[ApiFault] = []

    def order(self, fault: ApiFault) -> None:
        self._ordered.append(fault)

    def take(self, method: str, path: str) -> ApiFault | None:
        """Return the fault for this request, if a test ordered one, and count it."""
        for fault in self._ordered:
            if fault.method == method and fault.path_part in path:
                fault.times -= 1
                if fault.times <= 0:
                    self._ordered.remove(fault)
                return fault
        return None

    def clear(self) -> None:
        self._ordered.clear()
