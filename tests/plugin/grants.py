"""How the tests' plugins pass GPUs to containers."""

from linkwise.plugin.device_plugin.cdi import Cdi, CdiMode

NO_CDI = Cdi(CdiMode.OFF)
