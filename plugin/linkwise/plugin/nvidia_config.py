"""Reads the configuration file of NVIDIA's device plugin, as far as it means something here.

The file is YAML, `version: v1`, with `flags`, `resources` and `sharing` (README of
NVIDIA/k8s-device-plugin, *Configuration Option Details*). Every key that Linkwise does not follow
is named, so that no operator relies on it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linkwise.kube.documents import DocumentError, read_value
from linkwise.plugin.device_plugin.cdi import CdiMode
from linkwise.plugin.errors import SettingError

_PREFIX = "nvidia.com/"  # of a resource name without a domain, in the file
_CDI, _ENVVAR = "cdi-cri", "envvar"


@dataclass(frozen=True, slots=True)
class NvidiaConfig:
    """*settings*: by the name of a parameter of `linkwise-plugin`. *ignored*: what it does not
    follow, in words."""

    settings: Mapping[str, object] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def read_config(file: Path) -> NvidiaConfig:
    """Raises SettingError if the file cannot be read, or is no such configuration."""
    try:
        content = read_value(file.read_bytes())
    except (OSError, DocumentError) as error:
        raise SettingError(f"{file}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or content.get("version") != "v1":
        raise SettingError(f"{file}: expected a configuration of NVIDIA's plugin, version: v1")
    return config_of(content)


def config_of(content: Mapping[str, Any]) -> NvidiaConfig:
    settings: dict[str, object] = {}
    ignored = []
    for path, value in _leaves(content):
        found = _followed(path, value)
        if found is None:
            ignored.append(f"{path}: {value}")
        else:
            settings |= found
    return NvidiaConfig(settings, tuple(ignored))


def _leaves(content: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no mapping, by its path; `resources.gpus` as a whole."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif content not in (None, {}, []):
        yield path, content


def _followed(path: str, value: object) -> Mapping[str, object] | None:
    """The parameters that a value sets; empty: Linkwise always does so; None: it does not follow
    the value."""
    match path, value:
        case "version", "v1":
            return {}
        case "flags.failOnInitError", bool():
            return {"no_driver": "exit" if value else "wait"}
        case "flags.plugin.passDeviceSpecs", bool():
            return {"pass_device_specs": value}
        case "flags.plugin.deviceListStrategy", str() | list():
            strategies = [value] if isinstance(value, str) else value
            if strategies == [_ENVVAR]:
                return {"cdi": CdiMode.OFF}
            known = all(each in (_CDI, _ENVVAR) for each in strategies)
            return {"cdi": CdiMode.ON} if known else None
        case ("flags.plugin.deviceIDStrategy", "uuid") | ("flags.migStrategy", "none"):
            return {}
        case "resources.gpus", [{"pattern": "*", "name": str(name)}]:
            return {"resource_name": name if "/" in name else _PREFIX + name}
        case _:
            return None
