"""What one resource offers to the kubelet now, and the state of its vendor's plugin.

If the vendor's plugin is lost, its last list stays. The kubelet then sees the same devices, all
unhealthy, which is how it treats a plugin that it has lost itself.
"""

import logging
import time
from collections.abc import Callable
from enum import Enum
from threading import Condition

from linkwise.plugin.in_front.resource import joined
from linkwise.plugin.in_front.vendor import Vendor
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.topology.machine.model import Machine

log = logging.getLogger(__name__)


class State(Enum):
    """The state of a vendor's plugin, as the metric names it."""

    LISTS = "lists"  # all is well
    SILENT = "silent"  # registered, and has not listed its devices since
    HANGS = "hangs"  # its connection stands, and it answers nothing
    LOST = "lost"  # its connection is gone
    RENEWS = "renews"  # it was well, and should register again, as there is another kubelet


class Offer:
    """`managed`: whether Linkwise plans its whole GPUs. The offer calls `on_change` after each
    change that the vendor's plugin causes, outside any lock."""

    def __init__(
        self,
        resource: str,
        machine: Machine | None,
        *,
        managed: bool,
        on_change: Callable[["Offer"], None],
    ) -> None:
        self.resource, self.managed = resource, managed
        self._on_change = on_change
        self._changed = Condition()
        self._machine = machine
        self._vendor: Vendor | None = None
        self._listed: wire.ListAndWatchResponse | None = None
        self._state, self._why = State.SILENT, ""
        self._since = time.monotonic()
        self._alive = False  # whether the listed devices are available
        self._version = 0
        self._shown = wire.ListAndWatchResponse()

    @property
    def vendor(self) -> Vendor | None:
        return self._vendor

    @property
    def machine(self) -> Machine | None:
        """This node's GPUs; None until they are known."""
        return self._machine

    @property
    def last_list(self) -> wire.ListAndWatchResponse | None:
        """The last list of the vendor's plugin, unchanged; None if it never listed anything."""
        return self._listed

    @property
    def state(self) -> State:
        return self._state

    @property
    def why(self) -> str:
        """What is wrong with the vendor's plugin; empty if nothing is."""
        return self._why

    @property
    def seconds(self) -> float:
        """For how long the vendor's plugin has been in this state."""
        return time.monotonic() - self._since

    @property
    def options(self) -> wire.DevicePluginOptions:
        """The options for the kubelet: those of the vendor's plugin, except that Linkwise always
        knows which whole GPUs to prefer."""
        options = wire.DevicePluginOptions()
        if self._vendor is not None:
            options.CopyFrom(self._vendor.options)
        options.get_preferred_allocation_available |= self.managed
        return options

    # Events.

    def registered(self, vendor: Vendor) -> Vendor | None:
        """A plugin of the vendor has registered; returns the one that it replaces. The list of the
        old one stays until the new one lists, as with the kubelet."""
        with self._changed:
            before, self._vendor = self._vendor, vendor
            self._enter(State.SILENT, "", alive=self._alive)
        return before

    def renew(self) -> None:
        """There is another kubelet. A vendor's plugin that notices it ends and begins again. Until
        it has, or until some time has passed (`stayed`), its list does not count."""
        with self._changed:
            if self._state is not State.LISTS:
                return
            self._enter(State.RENEWS, "", alive=False)
        self._on_change(self)

    def stayed(self) -> None:
        """The vendor's plugin has not begun again."""
        with self._changed:
            if self._state is not State.RENEWS:
                return
            self._enter(State.LISTS, "", alive=True)
        self._on_change(self)

    def know(self, machine: Machine) -> None:
        """What Linkwise knows about the GPUs has changed."""
        with self._changed:
            self._machine = machine
            self._show()

    def overdue(self) -> None:
        """The vendor's plugin should have listed its devices by now: the list of an earlier one
        does not count."""
        with self._changed:
            if self._state is not State.SILENT or self._why:
                return
            self._enter(State.SILENT, "it has registered, and lists nothing", alive=False)
        self._on_change(self)

    # What the vendor's plugin reports (vendor.Listener). Reports of a replaced one do not count.

    def listed(self, vendor: Vendor, devices: wire.ListAndWatchResponse) -> None:
        with self._changed:
            if vendor is not self._vendor:
                return
            self._listed = devices
            self._enter(State.LISTS, "", alive=True)
        self._on_change(self)

    def lost(self, vendor: Vendor, why: str) -> None:
        with self._changed:
            if vendor is not self._vendor:
                return
            self._enter(State.LOST, why, alive=False)
        self._on_change(self)

    def answers(self, vendor: Vendor, *, well: bool) -> None:
        """Whether a plugin that lists answers; its connection would stand even if it hangs."""
        expected = State.HANGS if well else State.LISTS
        with self._changed:
            if vendor is not self._vendor or self._state is not expected:
                return
            if well:
                self._enter(State.LISTS, "", alive=True)
            else:
                self._enter(State.HANGS, "it answers no call", alive=False)
        self._on_change(self)

    def _enter(self, state: State, why: str, *, alive: bool) -> None:
        if state is not self._state:
            self._since = time.monotonic()
        self._state, self._why, self._alive = state, why, alive
        self._show()

    # What the kubelet sees.

    def wait_newer(
        self, version: int, *, given_up: Callable[[], bool]
    ) -> tuple[int, wire.ListAndWatchResponse]:
        """Wait until the list is newer than *version* or *given_up* returns True; return it with
        its version."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > version or given_up())
            return self._version, self._shown

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _show(self) -> None:
        """The caller holds the lock."""
        if self._listed is None:
            return
        shown = joined(self._listed, self._machine, alive=self._alive)
        if shown != self._shown or not self._version:
            self._shown, self._version = shown, self._version + 1
            self._changed.notify_all()
