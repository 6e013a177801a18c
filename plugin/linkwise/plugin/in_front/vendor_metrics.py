"""The metrics about each resource's vendor plugin."""

from collections import Counter

from linkwise.plugin.in_front.offer import Offer, State
from linkwise.plugin.in_front.resource import HEALTHY
from linkwise.plugin.in_front.sharing import not_read
from linkwise.plugin.metrics import Metrics

_KINDS = ("healthy", "unhealthy", "not-read")


def show_state(metrics: Metrics, offer: Offer) -> None:
    for state in State:
        metrics.vendor_state.labels(offer.resource, state.value).set(state is offer.state)
    if offer.last_list is not None:
        unread = not_read(offer.last_list, offer.machine)
        kinds = Counter(
            "not-read"
            if each.ID in unread
            else "healthy"
            if each.health == HEALTHY
            else "unhealthy"
            for each in offer.last_list.devices
        )
        for kind in _KINDS:
            metrics.vendor_devices.labels(offer.resource, kind).set(kinds[kind])


def hide_state(metrics: Metrics, offer: Offer) -> None:
    for state in State:
        metrics.vendor_state.remove(offer.resource, state.value)
    if offer.last_list is not None:
        for kind in _KINDS:
            metrics.vendor_devices.remove(offer.resource, kind)
