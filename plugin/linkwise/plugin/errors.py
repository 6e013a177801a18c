"""Why the plugin cannot do its work.

PluginError
├── InventoryError         the GPUs of this node cannot be told; names the call or the file
├── ListenError            HTTP cannot be served at the address that was asked for
├── SettingError           an operator's word that means nothing here
├── UnknownDeviceError     the kubelet named a device that this node does not have
├── NoDeviceFileError      it is not known which device file is a GPU's, and none is guessed
└── PodResourcesError      the kubelet does not say who has what
"""

from collections.abc import Collection


class PluginError(Exception):
    """Its text names what was wrong, where, and what was expected."""


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
