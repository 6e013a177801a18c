"""What the gauges show: a scrape at any moment sees what stays, and nothing that has gone."""

from collections.abc import Callable, Mapping

import pytest
from prometheus_client import Gauge

from linkwise.plugin.metrics import Metrics
from tests.machines import DGX_1V


def show_unhealthy(metrics: Metrics, names: Mapping[str, str]) -> None:
    metrics.show_gpus(DGX_1V, list(names.items()), noted=[], left_out={})


def show_left_out(metrics: Metrics, names: Mapping[str, str]) -> None:
    left_out = {int(index): why for index, why in names.items()}
    metrics.show_gpus(DGX_1V, unhealthy=[], noted=[], left_out=left_out)


def show_allocated(metrics: Metrics, names: Mapping[str, str]) -> None:
    metrics.show_allocated({f"ml/{pod}": {container: ["a"]} for pod, container in names.items()})


@pytest.mark.parametrize(
    ("show", "gauge", "before"),
    [
        (show_unhealthy, "device_unhealthy", ()),
        (show_left_out, "device_left_out", ()),
        (show_allocated, "allocated", ("ml",)),
    ],
)
def test_a_series_that_stays_is_never_away(
    show: Callable[[Metrics, Mapping[str, str]], None], gauge: str, before: tuple[str, ...]
) -> None:
    metrics = Metrics()
    shown: Gauge = getattr(metrics, gauge)
    show(metrics, {"1": "stays", "2": "goes"})
    stays = shown.labels(*before, "1", "stays")
    show(metrics, {"1": "stays", "3": "comes"})
    # A series that was removed and made again would be another object.
    assert shown.labels(*before, "1", "stays") is stays
    (family,) = shown.collect()
    series = {tuple(sample.labels.values()) for sample in family.samples}
    assert series == {(*before, "1", "stays"), (*before, "3", "comes")}
