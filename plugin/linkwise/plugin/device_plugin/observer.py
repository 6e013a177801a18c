"""Instead of a registration: the plugin observes, and a vendor's plugin serves the kubelet."""


class Observer:
    """Registers nothing, so nothing is missing."""

    ready = True
    trouble = ""

    def start(self) -> None:
        """Nothing begins."""

    def stop(self) -> None:
        """Nothing ends."""
