"""The metrics about each resource's vendor plugin."""

from linkwise.plugin.in_front.offer import Offer, State
from linkwise.plugin.in_front.resource import HEALTHY
from linkwise.plugin.metrics import Metrics


def show_state(metrics: Metrics, offer: Offer) -> None:
    for state in State:
        metrics.vendor_state.labels(offer.resource, state.value).set(state is offer.state)
    if offer.last_list is not None:
        health = [device.health == HEALTHY for device in offer.last_list.devices]
        metrics.vendor_devices.labels(offer.resource, "healthy").set(sum(health))
        metrics.vendor_devices.labels(offer.resource, "unhealthy").set(len(health) - sum(health))


def hide_state(metrics: Metrics, offer: Offer) -> None:
    for state in State:
        metrics.vendor_state.remove(offer.resource, state.value)
    if offer.last_list is not None:
        for health in ("healthy", "unhealthy"):
            metrics.vendor_devices.remove(offer.resource, health)
