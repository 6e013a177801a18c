"""Whether the node's container runtime can inject GPUs by their CDI names.

`nvidia-ctk cdi generate` or NVIDIA's `nvidia-cdi-refresh` service writes the specs; the plugin
writes none. The GPU Operator's toolkit writes one for its own pods only. The plugin names the GPUs
by uuid, as `nvidia-ctk` does with `--device-name-strategy=index,uuid`.

The kubelet passes CDI names since Kubernetes 1.28, by default since 1.29. CRI-O injects them by
default. containerd does since 2.0; 1.7 can, with `enable_cdi` in its configuration, which no pod
can see. Sources: the README and SPEC.md of cncf-tags/container-device-interface; containerd#9621;
Kubernetes' feature gate DevicePluginCDIDevices.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from linkwise.kube.documents import DocumentError, read_value

log = logging.getLogger(__name__)
CDI_KIND = "nvidia.com/gpu"  # the vendor and class that `nvidia-ctk cdi generate` writes
# The specification's directories. A later one takes precedence over an earlier one.
SPEC_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
_SUFFIXES = {".json", ".yaml"}
_RUNTIME = re.compile(r"(?P<name>[a-z0-9-]+)://v?(?P<major>\d+)\.")
_FIRST_MAJOR = {"containerd": 2, "cri-o": 1}  # that injects by default


class CdiMode(StrEnum):
    AUTO = "auto"  # where the runtime injects by default, and a spec names the GPUs
    ON = "on"
    OFF = "off"


class _Device(msgspec.Struct, frozen=True):
    name: str | int  # YAML reads an index without quotes as a number


class _Spec(msgspec.Struct, frozen=True):
    kind: str
    devices: tuple[_Device, ...] = ()


@dataclass(frozen=True, slots=True)
class _Read:
    state: tuple[int, int, int]  # of the file: inode, time of the last change, size
    names: tuple[str, ...]


class Cdi:
    """One answer for each Allocate. Not thread-safe beyond what assignments are: two threads that
    read a changed spec at the same time read it twice."""

    def __init__(self, mode: CdiMode, directories: Sequence[Path] = SPEC_DIRECTORIES) -> None:
        self._mode, self._directories = mode, tuple(directories)
        self._runtime = ""
        self._files: dict[Path, _Read] = {}
        self._said = ""

    def runtime_seen(self, version: str) -> None:
        """*version* is the Node's `status.nodeInfo.containerRuntimeVersion`, as
        `containerd://2.1.4`."""
        self._runtime = version

    def injects(self, uuids: Sequence[str]) -> bool:
        """Whether a container gets these GPUs by their CDI names."""
        why_not = self._why_not(uuids)
        said = f"GPUs are not passed as CDI devices: {why_not}" if why_not else ""
        said = said or "GPUs are passed as CDI devices"
        if said != self._said and self._mode is CdiMode.AUTO:
            self._said = said
            log.info("%s", said)
        return not why_not

    def _why_not(self, uuids: Sequence[str]) -> str:
        if self._mode is not CdiMode.AUTO:
            return "" if self._mode is CdiMode.ON else "--cdi=off"
        if not injects_by_default(self._runtime):
            return f"the container runtime is {self._runtime or 'not known yet'}"
        missing = set(uuids) - self.names()
        if missing:
            places = " or ".join(map(str, self._directories))
            return f"no spec in {places} names {CDI_KIND}={min(missing)} once"
        return ""

    def names(self) -> frozenset[str]:
        """The names of CDI_KIND that a runtime resolves. A name that two specs in one directory
        have is resolved nowhere, not even from a directory of higher precedence (`refresh` in
        `pkg/cdi/cache.go` of cncf-tags/container-device-interface)."""
        found: set[str] = set()
        twice: set[str] = set()
        for directory in self._directories:
            counts = Counter(name for file in _specs(directory) for name in self._read(file))
            twice |= {name for name, count in counts.items() if count > 1}
            found |= counts.keys()
        return frozenset(found - twice)

    def _read(self, file: Path) -> tuple[str, ...]:
        try:
            status = file.stat()
            state = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._files.get(file)
            if known is None or known.state != state:
                known = self._files[file] = _Read(state, _names_in(file))
        except OSError as error:
            log.warning("CDI spec %s: %s", file, error)
            return ()
        return known.names


def injects_by_default(runtime: str) -> bool:
    """Whether a container runtime of this version injects CDI devices without configuration."""
    match = _RUNTIME.match(runtime)
    first = _FIRST_MAJOR.get(match["name"]) if match else None
    return match is not None and first is not None and int(match["major"]) >= first


def _specs(directory: Path) -> list[Path]:
    try:
        return sorted(file for file in directory.iterdir() if file.suffix in _SUFFIXES)
    except OSError:
        return []  # the directory exists only where some tool made it


def _names_in(file: Path) -> tuple[str, ...]:
    """The names in a spec of CDI_KIND; none in a spec of another kind, one that does not parse, or
    one that has a name twice, which a runtime refuses as a whole. Raises OSError."""
    content = file.read_bytes()
    try:
        if file.suffix == ".json":
            spec = msgspec.json.decode(content, type=_Spec)
        else:
            spec = msgspec.convert(read_value(content), type=_Spec)
    except (msgspec.MsgspecError, DocumentError) as error:
        log.warning("CDI spec %s: %s", file, " ".join(str(error).split()))
        return ()
    names = tuple(str(device.name) for device in spec.devices) if spec.kind == CDI_KIND else ()
    if len(set(names)) < len(names):
        log.warning("CDI spec %s: a name occurs twice", file)
        return ()
    return names
