"""Why the plugin cannot do its work.

PluginError
├── InventoryError         the plugin cannot read this node's GPUs; names the call or the file
├── ListenError            the plugin cannot serve HTTP at the requested address
├── SettingError           a setting has an unknown name or value
├── UnknownDeviceError     the kubelet named a device that this node does not have
├── NoDeviceFileError      the device file of a GPU is unknown, and the plugin guesses none
└── PodResourcesError      the kubelet does not say which pod has which device
"""

from collections.abc import Collection


class PluginError(Exception):
    """Its text names the problem, its place, and what was expected."""


class InventoryError(PluginError):
    pass


class ListenError(PluginError):
    pass


class UnknownDeviceError(PluginError):
    """Its text becomes the pod's UnexpectedAdmissionError."""

    def __init__(self, unknown: Collection[str], known: int) -> None:
        super().__init__(
            f"unknown devices {', '.join(sorted(unknown))}: expected some of this node's {known}"
        )
        self.unknown = tuple(sorted(unknown))


class NoDeviceFileError(PluginError):
    """Its text becomes the pod's UnexpectedAdmissionError."""

    def __init__(self, index: int, uuid: str) -> None:
        super().__init__(
            f"GPU {index} ({uuid}): its device file is not known: expected a minor number from the "
            "driver (nvmlDeviceGetMinorNumber)"
        )
        self.uuid = uuid


class SettingError(PluginError):
    pass


class PodResourcesError(PluginError):
    pass
