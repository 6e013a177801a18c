"""In front of vendors' plugins: takes their registrations, and offers each resource to the kubelet.

One thread, the keeper, checks four times a second whether the socket for registrations exists,
whether there is another kubelet, and which vendor's plugin has been silent for too long.

The front offers a resource to the kubelet once its vendor's plugin has listed it and Linkwise knows
the GPUs and plans. If that knowledge does not come in time, the front passes on the vendor's list
without it: a node must not have less with Linkwise than without it.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

from linkwise.plugin.device_plugin.advisors import ShareAdvice
from linkwise.plugin.device_plugin.grpc_channel import reason_of
from linkwise.plugin.device_plugin.registration import API_VERSION, Identity, Registrar, identity
from linkwise.plugin.device_plugin.server import Advice
from linkwise.plugin.in_front.offer import Offer, State
from linkwise.plugin.in_front.patience import Patience
from linkwise.plugin.in_front.registry import RefusedError, Registry
from linkwise.plugin.in_front.resource import VENDOR_SAYS_SO, not_offered, offered
from linkwise.plugin.in_front.server import FrontPlugin
from linkwise.plugin.in_front.sharing import divided, still_true, with_sick_shares
from linkwise.plugin.in_front.vendor import Vendor, VendorError, socket_of
from linkwise.plugin.in_front.vendor_metrics import hide_state, show_state
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.later import Later
from linkwise.plugin.metrics import Metrics
from linkwise.topology.machine.model import Machine
from linkwise.topology.names import RESOURCE_NAME

log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0


@dataclass(slots=True)
class _Fronted:
    offer: Offer
    serving: Lock = field(default_factory=Lock)  # around `registrar`, its start and its end
    registrar: Registrar | None = None  # while the offer is registered with the kubelet
    probed: float = 0.0
    said: str = ""  # the trouble of its vendor's plugin that was logged last


class Front:
    """`vendor_socket` is where vendors' plugins register; `managed` is the resource whose whole
    GPUs are planned."""

    def __init__(
        self,
        *,
        kubelet_socket: Path,
        vendor_socket: Path,
        managed: str,
        metrics: Metrics,
        patience: Patience | None = None,
    ) -> None:
        self._kubelet_socket, self._vendor_socket = kubelet_socket, vendor_socket
        self._managed, self._metrics = managed, metrics
        self._patience = patience or Patience()
        below = vendor_socket.parent.parent == kubelet_socket.parent
        self._registry = Registry(vendor_socket, self.register, empties=below)
        self._machine: Machine | None = None
        self._advice: Advice | None = None
        self._shares: Callable[[str], ShareAdvice] | None = None
        self._on_allocated: Callable[[], None] = lambda: None
        self._on_lost: Callable[[], None] = lambda: None
        self._on_change: Callable[[], None] = lambda: None
        self._lock = Lock()  # around _fronted and _started; never held in a call
        self._fronted: dict[str, _Fronted] = {}
        self._started = False
        self._opened = 0.0
        self._registering = Lock()  # around the registry, and the kubelet that it was made for
        self._kubelet: Identity | None = None
        self._due = True  # the socket has to be made
        self._trouble = ""
        self._others_only = False  # vendors offer only other resources, such as MIG devices
        self._stopping = Event()
        self._keeper = Thread(target=self._keep, name="front-keeper", daemon=True)
        self._later = Later(
            "telling the cluster what vendors' plugins offer",
            lambda: self._on_change(),
            seconds=self._patience.tell,
        )

    # Life cycle.

    def open(self) -> None:
        """Let vendors' plugins register; the kubelet gets their resources after `start`."""
        self._opened = time.monotonic()
        self._keeper.start()
        self._later.start()

    def advise(
        self,
        advice: Advice,
        *,
        on_allocated: Callable[[], None],
        on_lost: Callable[[], None],
        on_change: Callable[[], None],
        shares: Callable[[str], ShareAdvice] | None = None,
    ) -> None:
        """*advice* knows the plans, *shares* those of shares by resource. The front calls
        *on_allocated* after each Allocate, *on_lost* when a kubelet is lost, and *on_change* when
        the vendor's plugin offers something else."""
        self._advice, self._on_allocated, self._shares = advice, on_allocated, shares
        self._on_lost, self._on_change = on_lost, on_change

    def know(self, machine: Machine) -> None:
        """Take this node's GPUs, with the health that Linkwise found."""
        self._machine = machine
        for fronted in self._all():
            fronted.offer.know(machine)
            self._show_state(fronted.offer)

    def start(self) -> None:
        with self._lock:
            self._started = True
        for fronted in self._all():
            self._offer_to_kubelet(fronted)

    def stop(self) -> None:
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join(_STOP_SECONDS)
        self._later.stop()
        with self._registering:
            self._registry.close()
        enders = [Thread(target=_end, args=(each,), daemon=True) for each in self._all()]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join(_STOP_SECONDS)

    # State.

    @property
    def ready(self) -> bool:
        """Vendors' plugins have registered, all are well, and the kubelet listens to each."""
        return not self.trouble

    @property
    def trouble(self) -> str:
        """What is missing; empty if nothing is."""
        if self._trouble:
            return self._trouble
        if not (found := self._all()):
            return (
                f"no vendor's plugin has registered at {self._vendor_socket}: expected "
                f"KUBELET_SOCKET={self._vendor_socket} in its environment"
            )
        for each in found:
            offer = each.offer
            if offer.state is not State.LISTS:
                why = f": {offer.why}" if offer.why else ""
                return f"{offer.resource}: the vendor's plugin {offer.state.value}{why}"
            registrar = each.registrar
            if registrar is None or not registrar.ready:
                why = registrar.trouble if registrar is not None else ""
                return f"{offer.resource}: {why or 'the kubelet does not listen'}"
        return ""

    def seen(self, machine: Machine) -> Machine:
        """The machine as the cluster should see it, by `lists`."""
        listed = self._listed()
        seen = machine if listed is None else offered(machine, listed)
        return divided(seen, machine, self.lists)

    @property
    def lists(self) -> Mapping[str, wire.ListAndWatchResponse]:
        """What counts of the last list of each resource. While a vendor's plugin is lost, its list
        counts, because plans outlive a restart, except where live lists contradict it."""
        found = self._all()
        lists = ((each.offer.resource, self._counting(each.offer, found)) for each in found)
        return {resource: listed for resource, listed in lists if listed is not None}

    def _counting(
        self, offer: Offer, found: Collection[_Fronted]
    ) -> wire.ListAndWatchResponse | None:
        if offer.state is not State.LOST or offer.last_list is None:
            return offer.last_list
        lists = (each.offer.last_list for each in found if each.offer.state is State.LISTS)
        live = [listed for listed in lists if listed is not None]
        return still_true(offer.last_list, live, self._machine)

    def not_offered(self, machine: Machine) -> Mapping[str, str]:
        """The GPUs that the vendor's plugin is known not to offer, or not with all their shares:
        uuid -> why. *machine* is as `seen`."""
        listed = self._listed()
        whole = {} if listed is None else not_offered(machine, listed)
        return whole | dict.fromkeys(with_sick_shares(machine, self.lists), VENDOR_SAYS_SO)

    def _listed(self) -> wire.ListAndWatchResponse | None:
        """What counts of the last list of the managed resource."""
        listed = self.lists.get(self._managed)
        if listed is None and self._others_only:
            return wire.ListAndWatchResponse()
        return listed

    # Calls and events of vendors' plugins.

    def register(self, request: wire.RegisterRequest) -> None:
        """Take a vendor's plugin, as the kubelet would. Raises registry.RefusedError."""
        resource = request.resource_name
        try:
            self._take(request)
        except (RefusedError, VendorError) as error:
            self._metrics.vendor_registrations.labels("refused").inc()
            log.warning("%s: the vendor's plugin is refused: %s", resource, error)
            raise RefusedError(str(error)) from error
        self._metrics.vendor_registrations.labels("taken").inc()

    def _take(self, request: wire.RegisterRequest) -> None:
        resource = request.resource_name
        if request.version != API_VERSION:
            raise RefusedError(
                f"requested API version {request.version!r} is not supported by kubelet. "
                f'Supported versions are ["{API_VERSION}"]'
            )
        if not RESOURCE_NAME.fullmatch(resource) or "kubernetes.io/" in resource:
            raise RefusedError(f'the ResourceName "{resource}" is invalid')
        places = self._kubelet_socket.parent, self._vendor_socket.parent
        vendor = Vendor(resource, socket_of(request.endpoint, *places))
        try:
            vendor.connect(self._patience.dial)
        except VendorError:
            vendor.stop()
            raise
        with self._lock:
            if resource not in self._fronted:
                self._fronted[resource] = _Fronted(self._offer(resource))
            fronted = self._fronted[resource]
            told = fronted.offer.options
            replaced = fronted.offer.registered(vendor)
        if replaced is not None:
            replaced.retire()
            if fronted.offer.options != told:
                with fronted.serving:
                    if fronted.registrar is not None:
                        fronted.registrar.again()
        log.info("%s: the vendor's plugin has registered, at %s", resource, vendor.socket)
        self._changed(fronted.offer)
        vendor.start(fronted.offer)
        if self._stopping.is_set():
            vendor.stop()

    def _offer(self, resource: str) -> Offer:
        managed = resource == self._managed
        return Offer(resource, self._machine, managed=managed, on_change=self._changed)

    def _registrar(self, offer: Offer) -> Registrar:
        return Registrar(
            kubelet_socket=self._kubelet_socket,
            resource=offer.resource,
            make_service=lambda: self._service(offer),
            metrics=self._metrics,
            options=lambda: offer.options,
            on_lost=lambda: self._kubelet_lost(offer),
        )

    def _kubelet_lost(self, offer: Offer) -> None:
        if offer.managed:
            self._on_lost()
        elif self._shares is not None:
            self._shares(offer.resource).kubelet_restarted()

    def _service(self, offer: Offer) -> FrontPlugin:
        """The service for one kubelet. This is the last place to notice a new kubelet: what the
        vendor's plugin said to the old one must not reach it."""
        self._keep_registry()
        return FrontPlugin(
            offer,
            self._metrics,
            advice=lambda: self._advice,
            on_allocated=lambda: self._on_allocated(),
            shares=lambda: self._shares(offer.resource) if self._shares is not None else None,
        )

    def _changed(self, offer: Offer) -> None:
        """The list or the state of a vendor's plugin has changed."""
        fronted = self._show_state(offer)
        if fronted is None:
            return
        if offer.why not in (fronted.said, ""):
            log.warning(
                "%s: the vendor's plugin %s: %s", offer.resource, offer.state.value, offer.why
            )
        elif fronted.said and offer.state is State.LISTS:
            log.info("%s: the vendor's plugin is well", offer.resource)
        if offer.why or offer.state is State.LISTS:
            fronted.said = offer.why
        self._let_go(fronted)
        self._offer_to_kubelet(fronted)
        self._later.ask()

    def _show_state(self, offer: Offer) -> _Fronted | None:
        """Show the offer in the metrics; None if it is forgotten or replaced."""
        with self._lock:
            fronted = self._fronted.get(offer.resource)
            if fronted is None or fronted.offer is not offer:
                return None
            show_state(self._metrics, offer)
            return fronted

    def _offer_to_kubelet(self, fronted: _Fronted) -> None:
        """Register a resource with the kubelet when its vendor's plugin lists it."""
        with fronted.serving:
            due = self._started and fronted.offer.state is State.LISTS
            if due and fronted.registrar is None and not self._stopping.is_set():
                fronted.registrar = self._registrar(fronted.offer)
                fronted.registrar.start()

    def _let_go(self, fronted: _Fronted) -> None:
        """End the kubelet's stream of a vendor's plugin that is gone, at once. The plugin may come
        back to the kubelet itself, as when Linkwise is removed: its pod is replaced in 0.8 s. The
        kubelet knows plugins by their resource alone, so a later end of Linkwise's stream would cut
        the plugin off until it restarts."""
        with fronted.serving:
            if fronted.registrar is not None and fronted.offer.state is State.LOST:
                fronted.registrar.stop()
                fronted.registrar = None

    def _all(self) -> list[_Fronted]:
        with self._lock:
            return list(self._fronted.values())

    # The keeper.

    def _keep(self) -> None:
        defect = ""
        while True:
            try:
                self._keep_registry()
                for fronted in self._all():
                    self._look_after(fronted)
                self._look_for_whole()
                if (
                    not self._started
                    and self._opened + self._patience.own_knowledge < time.monotonic()
                ):
                    log.warning("the GPUs are not known yet: the vendor's list goes out alone")
                    self.start()
            except Exception as error:  # the keeper must still notice what comes later
                if str(error) != defect:
                    log.exception("looking after vendors' plugins failed; trying again")
                defect = str(error)
            if self._stopping.wait(self._patience.look):
                return

    def _keep_registry(self) -> None:
        with self._registering:
            kubelet = identity(self._kubelet_socket)
            if kubelet is not None and kubelet != self._kubelet:
                # Do this before the socket is made: the vendor's plugin may be quick.
                if self._kubelet is not None:
                    # A registrar that ends with its vendor's plugin does not notice the kubelet.
                    self._on_lost()
                    for fronted in self._all():
                        fronted.offer.renew()
                self._kubelet, self._due = kubelet, True
            if self._stopping.is_set() or (self._registry.there and not self._due):
                return
            try:
                self._registry.open()
            except OSError as error:
                before, self._trouble = self._trouble, reason_of(error)
                if self._trouble != before:
                    log.warning("vendors' plugins cannot register: %s; trying again", error)
                return
            self._due, self._trouble = False, ""
            log.info("vendors' plugins may register at %s", self._vendor_socket)

    def _look_after(self, fronted: _Fronted) -> None:
        offer, patience, now = fronted.offer, self._patience, time.monotonic()
        if offer.state is State.SILENT and offer.seconds > patience.first_list:
            offer.overdue()
        elif offer.state is State.RENEWS and offer.seconds > patience.renewal:
            offer.stayed()
        elif offer.state is State.LOST:
            if offer.seconds > patience.grace or self._withdrawn(offer):
                self._forget(fronted)
        elif offer.vendor is not None and now - fronted.probed > patience.probe:
            fronted.probed = now
            offer.vendor.probe()

    def _withdrawn(self, offer: Offer) -> bool:
        """Whether live lists contradict all that a lost plugin offered: it will not come back."""
        counting = self._counting(offer, self._all())
        return counting is not None and counting is not offer.last_list and not counting.devices

    def _look_for_whole(self) -> None:
        """Set whether vendors offer only other resources. Resources register one after the other,
        so this is known only after some time. It stays known if one of them begins again."""
        found = self._all()
        others_only = bool(found) and all(each.offer.resource != self._managed for each in found)
        waited = (each.offer.seconds > self._patience.first_list for each in found)
        others_only = others_only and (self._others_only or any(waited))
        if others_only != self._others_only:
            self._others_only = others_only
            self._later.ask()

    def _forget(self, fronted: _Fronted) -> None:
        with self._lock:
            if fronted.offer.state is not State.LOST:  # the vendor's plugin has just come back
                return
            del self._fronted[fronted.offer.resource]
            # Its GPUs must not look whole while `_look_for_whole` waits.
            self._others_only |= fronted.offer.managed and bool(self._fronted)
            hide_state(self._metrics, fronted.offer)
        _end(fronted)
        self._later.ask()


def _end(fronted: _Fronted) -> None:
    """End the kubelet's side first, so that it gets nothing more of the vendor's side."""
    with fronted.serving:
        if fronted.registrar is not None:
            fronted.registrar.stop()
    if fronted.offer.vendor is not None:
        fronted.offer.vendor.stop()
