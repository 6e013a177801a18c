"""`/metrics` is what Prometheus reads, and counts the cache at the moment of the request."""

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from linkwise.extender.run.metrics import Census, ExtenderMetrics
from linkwise.extender.state.views import Counts, MoveCounts, Placed

NOTHING = Counts(gangs={}, gpus={}, nodes={}, swaps=0, refusals=0)


def scrape(metrics: ExtenderMetrics) -> dict[str, Metric]:
    return {found.name: found for found in text_string_to_metric_families(metrics.text().decode())}


def test_every_metric_of_ours_has_a_help_text_and_our_prefix() -> None:
    metrics = ExtenderMetrics()
    metrics.watch_books(lambda: Census(NOTHING, broken=0, silent_seconds={}))

    ours = {name: m for name, m in scrape(metrics).items() if name.startswith("linkwise_")}

    assert len(ours) == 32
    for name, found in ours.items():
        assert name.startswith("linkwise_extender_")
        assert found.documentation.endswith("."), name


def test_a_scrape_takes_the_census_again() -> None:
    metrics, free = ExtenderMetrics(), [8]
    metrics.watch_books(
        lambda: Census(
            Counts(
                gangs={"running": 1, "forming": 2},
                gpus={"free": free[0], "held": 3},
                nodes={"usable": 4},
                swaps=5,
                refusals=6,
            ),
            broken=0,
            silent_seconds={"pods": 1.5},
        )
    )

    first = scrape(metrics)["linkwise_extender_gpus"]
    free[0] = 7
    then = scrape(metrics)

    assert {s.labels["state"]: s.value for s in first.samples} == {"free": 8, "held": 3}
    assert then["linkwise_extender_gpus"].samples[0].value == 7
    assert [s.value for s in then["linkwise_extender_swaps"].samples] == [5]
    phases = then["linkwise_extender_gangs"].samples
    assert [(s.labels["phase"], s.value) for s in phases] == [("forming", 2), ("running", 1)]


def test_moves_are_counted() -> None:
    counts = Counts({}, {}, {}, 0, 0, moves=MoveCounts(4, 2, 1, 2400.0, 3, 7200.0))
    metrics = ExtenderMetrics()
    metrics.watch_books(lambda: Census(counts, 0, {}))

    found = scrape(metrics)

    values = {
        name.removeprefix("linkwise_extender_moves_"): metric.samples[0].value
        for name, metric in found.items()
        if "_moves_" in name
    }
    assert values == {
        "begun": 4,
        "arrived": 2,
        "given_back": 1,
        "lost_gpu_seconds": 2400.0,
        "helped": 3,
        "saved_gpu_seconds": 7200.0,
    }


def test_gangs_are_counted_by_how_well_they_were_placed() -> None:
    placed = Placed().with_gang(1, 80.0, 120.0).with_gang(2, 48.0, 48.0).with_gang(3, 6.0, 48.0)
    counts = Counts({}, {}, {}, 0, 0, placed)
    metrics = ExtenderMetrics()
    metrics.watch_books(lambda: Census(counts, 0, {}))

    found = scrape(metrics)

    speeds = {
        (sample.labels["nodes"], sample.labels.get("le", "")): sample.value
        for sample in found["linkwise_extender_gang_gbytes_per_s"].samples
        if sample.name.endswith(("_bucket", "_sum"))
    }
    assert [speeds["one", le] for le in ("48.0", "96.0", "+Inf", "")] == [0, 1, 1, 80]
    assert [speeds["several", le] for le in ("6.0", "24.0", "48.0", "+Inf", "")] == [1, 1, 2, 2, 54]
    shares = {
        sample.labels["nodes"]: sample.value
        for sample in found["linkwise_extender_gang_share_of_idle"].samples
        if sample.name.endswith("_sum")
    }
    assert shares == {"one": pytest.approx(0.6667, abs=1e-4), "several": 1.125}


def test_two_programs_in_one_process_do_not_share_a_registry() -> None:
    first, second = ExtenderMetrics(), ExtenderMetrics()

    first.requests.labels("filter", "ok").inc()

    assert scrape(first)["linkwise_extender_requests"].samples[0].value == 1
    assert scrape(second)["linkwise_extender_requests"].samples == []
