"""What an operator may set, checked once at the start; every default with its reason.

Each is a flag of `linkwise-extender` and an environment variable `LINKWISE_EXTENDER_<FLAG>`.
"""

import re
from dataclasses import dataclass

from linkwise.extender.recognise.answer import IndexedJobs
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.names import DEFAULT_RESOURCE, RESOURCE_NAME

_DURATION = re.compile(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_LONGEST_HOURS = 8760  # a year; more is a mistake, and no date


class SettingsError(LinkwiseError):
    """A setting that cannot be; names the flag, its value and what was expected."""

    def __init__(self, flag: str, value: object, expected: str) -> None:
        super().__init__(f"--{flag} {value}: expected {expected}")


@dataclass(frozen=True, slots=True)
class Settings:
    kubeconfig: str | None = None  # None and no api_server: the pod's own service account
    api_server: str | None = None  # a plain URL, for an API server that asks for no credentials
    resource_name: str = DEFAULT_RESOURCE
    listen_address: str = "0.0.0.0"  # kube-scheduler calls from another pod
    listen_port: int = 9402  # the plugin has 9401
    # Long enough to pull a training image on a cold node, short enough that a partial gang does
    # not keep GPUs through a night.
    gang_timeout_seconds: float = 600.0
    max_refusals: int = 3  # plans of one gang that kube-scheduler may refuse in a row
    indexed_jobs: IndexedJobs = IndexedJobs.ALL  # which of them are gangs; many are shards
    # A bind waits for the API server, so this many pods may be bound at the same time while
    # filter, of which there is one at a time, still finds a free thread.
    request_threads: int = 24
    write_threads: int = 16  # a gang's members are written side by side; half the client's pool
    max_body_mib: int = (
        64  # names of 5,000 nodes take 0.2; whole nodes (nodeCacheCapable: false) 50
    )

    def __post_init__(self) -> None:
        if not RESOURCE_NAME.fullmatch(self.resource_name):
            raise SettingsError("resource-name", self.resource_name, "like nvidia.com/gpu")
        if self.api_server is not None and not self.api_server.startswith(("http://", "https://")):
            raise SettingsError("api-server", self.api_server, "a URL like http://127.0.0.1:8001")
        if not 0 <= self.listen_port <= 65535:
            raise SettingsError("listen-port", self.listen_port, "0 to 65535")
        if self.gang_timeout_seconds <= 0:
            raise SettingsError("gang-timeout", self.gang_timeout_seconds, "more than 0 seconds")
        for flag, value in (
            ("max-refusals", self.max_refusals),
            ("request-threads", self.request_threads),
            ("write-threads", self.write_threads),
            ("max-body-mib", self.max_body_mib),
        ):
            if value < 1:
                raise SettingsError(flag, value, "1 or more")


def seconds_of(text: str) -> float:
    """Read a duration such as `10m`, `1h30m` or `90s`, up to a year. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text!r}: expected a duration like 10m, 1h30m or 90s")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total > _LONGEST_HOURS * 3600:
        raise ValueError(f"{text!r}: expected at most {_LONGEST_HOURS}h")
    return float(total)
